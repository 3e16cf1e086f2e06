"""With the server off, DuckDB and pyarrow open the cold files and find every record, absurd timestamps and shredded payloads
included."""

import datetime
import json
import pathlib
import re
import socket
import struct
import time

import duckdb
import pyarrow.compute
import pyarrow.parquet

from basalt_server import expect, serving

ROOT = pathlib.Path(__file__).parents[2]
SAMPLE = ROOT / "examples" / "flights.ndjson"

# As several pens write, and with what no column can hold.
WRITINGS = [
    b'{"id":1,"name":"Ann","score":1.0,"tags":["a"],"at":{"x":-0.5,"y":1}}',
    b'{"id": 2, "name": "B\\u00e9a \\ud83d\\ude00\\n", "score": 1, "tags": [], "at": null}',
    '{"name":"höhe\\"\\\\","id":18446744073709551615,"score":1e5}'.encode(),
    b'{"id":3,"id":4,"name":"twice"}',
    b'{"id":-0,"score":0.1,"price":12.50}',
    b'{"score":1e-7,"price":0.01,"at":{"x":1e16,"y":-7}}',
    b"not json",
    b"",
    b"\xff{",
    b'{"id":5,"name":null,"tags":{"deep":[1,{"a":"b"}]}}',
]

# A column of each type.
COLUMNS = {
    "b": "bool", "i8": "int8", "i64": "int64", "u64": "uint64", "f32": "float32", "f64": "float64", "d": "decimal(38, 10)",
    "s": "string", "j": "json", "bin": "binary", "at_s": "timestamp(s)", "at_ms": "timestamp(ms)", "at_us": "timestamp(us)",
    "at_ns": "timestamp(ns)", "day": "date", "l": "list<string>", "st": "struct<a: int32, t: string>",
}
# What must hold for as many rows of the files as of the topic.
CONDITIONS = [
    "true", "b", "i8 = -7", "i64 = 9007199254740993", "u64 > 18446744073709551000", "f32 = 2.5", "f64 < 3.25",
    "d = CAST('12345678901234567890.0000000007' AS DECIMAL(38, 10))", "s = 'x3'", "s > 'x4'", "j LIKE '%[1]%'", "at_s = TIMESTAMPTZ '2024-05-06T07:08:09Z'",
    "at_ms > TIMESTAMPTZ '2024-05-06T07:08:09.100Z'", "at_us IS NULL", "day = DATE '2024-05-07'", "l IS NOT NULL", "st IS NULL",
    "_error IS NOT NULL",
]

# PUB-08: nothing of these may become a negative, a wrapped or a 1677 date, or fail the others.
STAMPS = [0, 1, 1700000000123456789, 2**63 - 1, 2**63, 2**64 - 1]
REPRESENTABLE = 2**63 - 1


def produce_frames(address: str, topic: str, records: list[tuple[int, bytes]]) -> None:
    """Lean frames of these stamps and payloads, over the 29-byte protocol."""
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        name = topic.encode()
        opening = bytes([1, len(name)]) + name + struct.pack(">I", 0)
        frames = b"".join(
            struct.pack(">BQQIII", 1, stamp, 0, 0, len(payload), 1) + payload for stamp, payload in records
        )
        connection.sendall(opening + frames)
        acks = b""
        while len(acks) < 9 * len(records):
            part = connection.recv(4096)
            if not part:
                raise AssertionError("the connection ended before every frame was acknowledged")
            acks += part
    expected = b"".join(struct.pack(">BQ", 0, offset) for offset in range(len(records)))
    expect(acks, expected, "every record is stored")


def files_of(data: pathlib.Path, topic: str) -> list[str]:
    found = sorted(str(path) for path in (data / "cold" / topic).rglob("*.parquet"))
    if not found:
        raise AssertionError(f"no Parquet file of {topic} under {data / 'cold'}")
    return found


def documented_payloads():
    """The function of docs/SHREDDING.md that renders a file's payloads."""
    page = (ROOT / "docs" / "SHREDDING.md").read_text()
    snippet = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    if snippet is None:
        raise AssertionError("docs/SHREDDING.md has no Python")
    names: dict = {}
    exec(snippet.group(1), names)  # our own documentation
    return names["payloads"]


def check_shredded(files: list[str], expected: list[bytes], least: int) -> None:
    payloads = documented_payloads()
    rendered = [payload for file in files for payload in payloads(file)]
    expect(len(rendered), len(expected), "a payload for each record")
    other = next((pair for pair in zip(rendered, expected) if pair[0] != pair[1]), None)
    expect(other, None, "the documented snippet renders the produced bytes")
    [(left_out,)] = duckdb.sql(
        f"SELECT count(*) FROM read_parquet({files!r}) WHERE _payload IS NULL AND _template IS NOT NULL"
    ).fetchall()
    expect(left_out >= least, True, f"{left_out} of {len(expected)} payloads are left out, at least {least} should be")


def check_columns(files: list[str], sample: bytes) -> None:
    delays = duckdb.sql(
        'SELECT count(*), round(avg("payload.dep_delay"), 4) '
        f"FROM read_parquet({files!r}) WHERE \"payload.carrier\" = 'UA'"
    ).fetchall()
    flights = [json.loads(line) for line in sample.splitlines()]
    united = [flight["dep_delay"] for flight in flights if flight["carrier"] == "UA"]
    known = [delay for delay in united if delay is not None]
    expect(delays, [(len(united), round(sum(known) / len(known), 4))], "DuckDB averages a column of the payloads")
    table = pyarrow.parquet.read_table(files, columns=["payload.carrier"])
    carriers = [flight["carrier"] for flight in flights]
    expect(table["payload.carrier"].to_pylist(), carriers, "pyarrow reads a column of the payloads")


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


def typed_payloads() -> bytes:
    start = datetime.datetime(2024, 5, 6, 7, 8, 9, tzinfo=datetime.timezone.utc)
    lines = []
    for number in range(300):
        moment = (start + datetime.timedelta(milliseconds=number)).isoformat()
        record = {
            "b": number % 3 == 0, "i8": number % 256 - 128, "i64": 2**53 + number, "u64": 2**64 - 1 - number * 10,
            "f32": number / 4, "f64": number / 8, "d": f"12345678901234567890.{number:010}", "s": f"x{number % 7}",
            "j": {"k": [number % 5]}, "bin": "AAECAw==", "at_s": int(start.timestamp()) + number, "at_ms": moment,
            "at_ns": moment, "day": f"2024-05-{number % 28 + 1:02}", "st": {"a": number, "t": "t"},
        }
        if number % 2:
            record |= {"at_us": moment, "l": ["a", None]}
        if number % 10 == 0:
            del record["st"]
        lines.append(b"no json" if number % 50 == 49 else json.dumps(record).encode())
    return b"".join(line + b"\n" for line in lines)


def check_typed() -> None:
    """A file for each of many small segments, then merged: the same rows for every reader, by every condition."""
    schema = {"format": "json", "columns": [{"name": name, "type": type} for name, type in COLUMNS.items()]}
    payloads = typed_payloads()
    with serving("log.segment_bytes=8192", "log.block_bytes=8192") as server:
        definition = server.data.parent / "schema.json"
        definition.write_text(json.dumps(schema))
        server.run("topic", "create", "typed", "--schema", str(definition))

        def number(value: str, condition: str = "true") -> int:
            [row] = server.sql(f"SELECT {value} AS found FROM typed WHERE {condition}")
            return row["found"]

        server.run("produce", "typed", "--quiet", stdin=payloads)
        server.run("topic", "cool", "typed", "--wait")
        deadline = time.monotonic() + 60
        while len(files := server.sql("SELECT path FROM sys.files WHERE topic = 'typed'")) > 3:
            expect(time.monotonic() < deadline, True, f"{len(files)} small files are merged in a minute")
            time.sleep(0.1)
        # Before a stop, which may leave what was merged beside what it was merged from.
        paths = [str(server.data / "cold" / file["path"]) for file in files]
        for condition in CONDITIONS:
            [(found,)] = duckdb.sql(f"SELECT count(*) FROM read_parquet({paths!r}) WHERE {condition}").fetchall()
            expect(found, number("count(*)", condition), f"DuckDB counts the rows with {condition}")
        table = pyarrow.parquet.read_table(paths, columns=list(COLUMNS) + ["_offset"])
        expect(table.num_rows, number("count(*)"), "pyarrow reads every column of every row")
        expect(pyarrow.compute.sum(table["i64"]).as_py(), number("sum(i64)"), "pyarrow sums a column")
        server.stop()


def main() -> None:
    check_typed()
    sample = SAMPLE.read_bytes()
    # Without merging, since a stop may come between a merged file and the end of those it replaces.
    with serving("log.segment_bytes=400000", "cold.row_group_bytes=100000", "cold.merge_bytes=0") as server:
        server.run("topic", "create", "plain", "--shred", "on")
        for choice, shown in [("default", False), ("off", True)]:
            server.run("topic", "alter", "plain", "--shred", choice)
            described = server.run("topic", "describe", "plain", "--format", "json")
            expect(b"shred_json=off" in described, shown, f"topic describe after --shred {choice}")
        for topic in ["flights", "plain"]:
            server.run("produce", topic, stdin=sample)
        produce_frames(server.address, "stamps", [(stamp, str(stamp).encode()) for stamp in STAMPS])
        writings = WRITINGS * 50
        produce_frames(server.address, "writings", [(1, payload) for payload in writings])
        for topic in ["flights", "plain", "stamps", "writings"]:
            server.run("topic", "cool", topic, "--wait")
        for topic in ["flights", "plain"]:
            replay = server.run("consume", topic, "--from", "earliest", "--to", "end")
            expect(replay == sample, True, f"the replay of {topic} from cold files is byte-identical")
        server.stop()
        check_flights(files_of(server.data, "plain"), sample)
        check_stamps(files_of(server.data, "stamps"))
        flights = files_of(server.data, "flights")
        lines = sample.splitlines()
        check_shredded(flights, lines, len(lines))
        check_columns(flights, sample)
        check_shredded(files_of(server.data, "writings"), writings, len(writings) // 4)


if __name__ == "__main__":
    main()
