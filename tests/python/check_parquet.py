"""With the server off, DuckDB and pyarrow open the cold files and find every record, absurd timestamps included."""

import datetime
import json
import pathlib
import socket
import struct

import duckdb
import pyarrow.compute
import pyarrow.parquet

from basalt_server import expect, serving

SAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "flights.ndjson"

# PUB-08: nothing of these may become a negative, a wrapped or a 1677 date, or fail the others.
STAMPS = [0, 1, 1700000000123456789, 2**63 - 1, 2**63, 2**64 - 1]
REPRESENTABLE = 2**63 - 1


def produce_stamps(address: str, topic: str) -> None:
    """Six lean frames with the stamps above, over the 29-byte protocol."""
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        name = topic.encode()
        opening = bytes([1, len(name)]) + name + struct.pack(">I", 0)
        frames = b""
        for stamp in STAMPS:
            payload = str(stamp).encode()
            frames += struct.pack(">BQQIII", 1, stamp, 0, 0, len(payload), 1) + payload
        connection.sendall(opening + frames)
        acks = b""
        while len(acks) < 9 * len(STAMPS):
            part = connection.recv(4096)
            if not part:
                raise AssertionError("the connection ended before every frame was acknowledged")
            acks += part
    expected = b"".join(struct.pack(">BQ", 0, offset) for offset in range(len(STAMPS)))
    expect(acks, expected, "every stamp is stored")


def files_of(data: pathlib.Path, topic: str) -> list[str]:
    found = sorted(str(path) for path in (data / "cold" / topic).rglob("*.parquet"))
    if not found:
        raise AssertionError(f"no Parquet file of {topic} under {data / 'cold'}")
    return found


def check_flights(files: list[str], sample: bytes) -> None:
    rows = sample.count(b"\n")
    table = pyarrow.parquet.read_table(files, columns=["_offset", "_payload", "_record_count"])
    expect(table.num_rows, rows, "pyarrow counts every record")
    ordered = table.sort_by("_offset")
    expect(ordered["_offset"].to_pylist(), list(range(rows)), "pyarrow sees dense offsets")
    expect(
        b"".join(payload + b"\n" for payload in ordered["_payload"].to_pylist()) == sample,
        True,
        "pyarrow reads the produced bytes",
    )
    counts = duckdb.sql(
        f"SELECT count(*), count(DISTINCT _offset), min(_offset), max(_offset) FROM read_parquet({files!r})"
    ).fetchall()
    expect(counts, [(rows, rows, 0, rows - 1)], "DuckDB counts every offset once")
    delays = duckdb.sql(
        "SELECT count(*), round(avg(CAST(decode(_payload)->>'dep_delay' AS DOUBLE)), 4) "
        f"FROM read_parquet({files!r}) WHERE decode(_payload)->>'carrier' = 'UA'"
    ).fetchall()
    flights = [json.loads(line) for line in sample.splitlines()]
    united = [flight["dep_delay"] for flight in flights if flight["carrier"] == "UA"]
    known = [delay for delay in united if delay is not None]
    expect(delays, [(len(united), round(sum(known) / len(known), 4))], "DuckDB averages the delays")


def check_stamps(files: list[str]) -> None:
    table = pyarrow.parquet.read_table(files).sort_by("_offset")
    expect([payload.decode() for payload in table["_payload"].to_pylist()], [str(s) for s in STAMPS], "all six rows")
    expect(table["_timestamp_ns"].to_pylist(), STAMPS, "raw stamps are exact in pyarrow")
    shown = pyarrow.compute.cast(table["_timestamp"], pyarrow.int64()).to_pylist()
    expect(
        shown,
        [stamp if stamp < REPRESENTABLE else None for stamp in STAMPS],
        "_timestamp is exact to the ns, or NULL where it cannot be",
    )
    rows = duckdb.sql(
        f"SELECT _timestamp_ns, _timestamp, epoch_ns(_timestamp) FROM read_parquet({files!r}) ORDER BY _offset"
    ).fetchall()
    expect([row[0] for row in rows], STAMPS, "raw stamps are exact in DuckDB")
    expect([row[2] for row in rows][:2], [0, 1], "the first stamps are exact in DuckDB")
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
    dates = [row[1] for row in rows if row[1] is not None]
    expect(len(dates), 3, "three stamps are dates in DuckDB")
    expect(all(date.replace(tzinfo=date.tzinfo or datetime.timezone.utc) >= epoch for date in dates), True, "none is before 1970")


def main() -> None:
    sample = SAMPLE.read_bytes()
    with serving("log.segment_bytes=400000", "cold.row_group_bytes=100000") as server:
        server.run("produce", "flights", stdin=sample)
        produce_stamps(server.address, "stamps")
        server.run("topic", "cool", "flights", "--wait")
        server.run("topic", "cool", "stamps", "--wait")
        replay = server.run("consume", "flights", "--from", "earliest", "--to", "end")
        expect(replay == sample, True, "the replay from cold files is byte-identical")
        server.stop()
        check_flights(files_of(server.data, "flights"), sample)
        check_stamps(files_of(server.data, "stamps"))


if __name__ == "__main__":
    main()
