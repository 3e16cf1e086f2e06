"""bytewax over the topic `flights`: flights and summed delay of each carrier, a line in `delays.jsonl` for each flight. Killed and
started again it goes on from its recovery store.

    python -m bytewax.recovery recovery 1
    ADDRESS=127.0.0.1:9092 python -m bytewax.run delays -r recovery -s 1 -b 0"""

import json
import os
import pathlib

import bytewax.operators as op
from bytewax.connectors.files import FileSink
from bytewax.connectors.kafka import KafkaSource
from bytewax.dataflow import Dataflow

flow = Dataflow("delays")
source = KafkaSource([os.environ["ADDRESS"]], ["flights"], tail=False, batch_size=500)
lines = op.input("flights", flow, source)


def parse(message):
    flight = json.loads(message.value)
    return flight["carrier"], flight.get("dep_delay") or 0


def add(state, delay):
    n, total = state or (0, 0)
    state = (n + 1, total + delay)
    return state, state


delays = op.stateful_map("count", op.map("parse", lines, parse), add)
rows = op.map("format", delays, lambda row: (row[0], json.dumps([row[0], *row[1]])))
op.output("delays", rows, FileSink(pathlib.Path("delays.jsonl")))
