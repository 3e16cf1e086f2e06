"""Spark Structured Streaming over the topic `flights`: flights and mean delay of each carrier, written after each batch to
`result/<batch>.json`. Killed and started again it goes on from its checkpoint.

    python delays.py ADDRESS FOLDER"""

import json
import pathlib
import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import avg, count, from_json

address, folder = sys.argv[1], pathlib.Path(sys.argv[2])
jars = sorted((pathlib.Path(__file__).parent / "target" / "jars").glob("*.jar"))
spark = (
    SparkSession.builder.master("local[2]")
    .appName("delays")
    .config("spark.jars", ",".join(map(str, jars)))
    .config("spark.sql.shuffle.partitions", 2)
    .config("spark.ui.enabled", False)
    .getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")

flights = (
    spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", address)
    .option("subscribe", "flights")
    .option("startingOffsets", "earliest")
    .option("maxOffsetsPerTrigger", 20_000)
    .load()
)
carrier = from_json(flights.value.cast("string"), "carrier STRING, dep_delay DOUBLE")
delays = flights.select(carrier.alias("flight")).groupBy("flight.carrier").agg(
    count("*").alias("n"), avg("flight.dep_delay").alias("delay")
)
result = folder / "result"
result.mkdir(parents=True, exist_ok=True)


def write(rows, batch: int) -> None:
    """The whole table after each batch: written again it is the same."""
    table = {row.carrier: [row.n, row.delay] for row in rows.collect()}
    part = result / f"{batch}.part"
    part.write_text(json.dumps(table))
    part.rename(result / f"{batch}.json")


query = (
    delays.writeStream.outputMode("complete")
    .option("checkpointLocation", str(folder / "checkpoint"))
    .foreachBatch(write)
    .start()
)
query.processAllAvailable()
query.stop()
last = max(result.glob("*.json"), key=lambda path: int(path.stem))
print(last.read_text())
