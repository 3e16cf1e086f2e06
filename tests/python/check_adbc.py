"""The Flight SQL driver from PyPI connects, lists tables and reads results, hot and cold."""

import pathlib
import urllib.request

import adbc_driver_flightsql.dbapi
import pyarrow

from basalt_server import expect, serving

SAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "flights.ndjson"


def tables(connection) -> list[str]:
    """Names of all topics' tables, from GetObjects."""
    found = []
    for catalog in connection.adbc_get_objects(depth="tables").read_all().to_pylist():
        for schema in catalog["catalog_db_schemas"] or []:
            if schema["db_schema_name"] == "public":
                found += [table["table_name"] for table in schema["db_schema_tables"] or []]
    return sorted(found)


def fetch(connection, sql: str) -> list[tuple]:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchall()


def run(connection, sql: str, parameters) -> list[tuple]:
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        return cursor.fetchall()


def refusal(connection, sql: str, parameters) -> str:
    try:
        rows = run(connection, sql, parameters)
    except Exception as error:  # the driver's own class of errors
        return str(error)
    raise AssertionError(f"{sql} with {parameters} gave {rows}")


def check_isolation(server) -> None:
    """The header that says what is seen of transactions arrives, and one that makes no sense is refused."""
    option = "adbc.flight.sql.rpc.call_header.basalt-isolation"
    for isolation, taken in [("read_uncommitted", True), ("read_committed", True), ("dirty", False)]:
        options = {option: isolation}
        with adbc_driver_flightsql.dbapi.connect(server.uri, db_kwargs=options, autocommit=True) as connection:
            try:
                found = fetch(connection, "SELECT 1")
            except Exception as error:  # the driver's own class of errors
                found = isolation in str(error) and "INVALID_ARGUMENT" in str(error)
                expect((found, taken), (True, False), f"isolation {isolation} is refused")
            else:
                expect((found, taken), ([(1,)], True), f"isolation {isolation} is taken")


def check_parameters(connection) -> None:
    """PUB-24: question marks in prepared statements."""
    marks = 'SELECT ? AS tag, "_offset" FROM flights WHERE "_offset" >= ? AND "_offset" < ? ORDER BY 2'
    expected = [("x", 2), ("x", 3), ("x", 4)]
    expect(run(connection, marks, ("x", 2, 5)), expected, "? in written order")
    numbers = "SELECT $1 AS tag, _offset FROM flights WHERE _offset >= $2 AND _offset < $3 ORDER BY 2"
    expect(run(connection, numbers, ("x", 2, 5)), expected, "$1 $2 $3")
    turned = "SELECT $3, _offset FROM flights WHERE _offset >= $1 AND _offset < $1 + $2 ORDER BY 2"
    expect(run(connection, turned, (2, 3, "x")), expected, "$3 $1 $1 $2")
    for value in ["x", 5, -1.5, True, b"\x00\xff", None]:
        expect(run(connection, "SELECT ?", (value,)), [(value,)], f"SELECT ? gives {value!r} back")
    null = "SELECT count(*) FROM flights WHERE _offset = ?"
    expect(run(connection, null, (None,)), [(0,)], "nothing equals NULL")
    for parameters in [("x", 2), ("x", 2, 5, 6)]:
        said = f"takes 3 values for its parameters, {len(parameters)} were bound"
        expect(said in refusal(connection, marks, parameters), True, f"{len(parameters)} values for 3 parameters")
    for value in ["5' OR '1'='1", "'; DROP TABLE flights; --", "?"]:
        carrier = "SELECT count(*) FROM flights WHERE _payload->>'carrier' = ?"
        expect(run(connection, carrier, (value,)), [(0,)], f"{value!r} is a value")
    with connection.cursor() as cursor:
        for first, last in [(2, 4), (8, 10), (2, 4)]:
            cursor.execute("SELECT _offset FROM flights WHERE _offset >= ? AND _offset < ? ORDER BY 1", (first, last))
            expect(cursor.fetchall(), [(first,), (first + 1,)], "a second bind replaces the first")
    batch = pyarrow.record_batch([["a", "b"], [7, 3]], names=["tag", "offset"])
    each = run(connection, "SELECT ?, _offset FROM flights WHERE _offset = ?", batch)
    expect(each, [("a", 7), ("b", 3)], "a row of values is a run")


def metric(server, name: str, topic: str) -> int:
    """A number of /metrics, over all partitions of a topic."""
    with urllib.request.urlopen(f"http://{server.address}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    of_topic = [line for line in lines if line.startswith(name + "{") and f'topic="{topic}"' in line]
    expect(len(of_topic) > 0, True, f"/metrics has {name}")
    return sum(int(line.split()[-1]) for line in of_topic)


def check_sys_tables(server, connection) -> None:
    files = fetch(connection, "SELECT count(*), sum(file_bytes), sum(rows) FROM sys.files WHERE topic = 'flights'")
    rows = fetch(connection, "SELECT cold_end_offset FROM sys.partitions WHERE topic = 'flights'")[0][0]
    found = (metric(server, "basalt_cold_files", "flights"), metric(server, "basalt_cold_bytes", "flights"), rows)
    expect(files, [found], "sys.files says what /metrics says")
    server.run("consume", "flights", "--group", "readers", "--from", "earliest", "--to", "10")
    ends = metric(server, "basalt_high_watermark", "flights")
    groups = fetch(connection, "SELECT group_name, committed_offset, high_watermark, lag_records FROM sys.groups")
    expect(groups, [("readers", 10, ends, ends - 10)], "sys.groups says what /metrics says")
    settings = dict(fetch(connection, "SELECT name, value FROM sys.settings"))
    expect(settings["data_dir"], str(server.data), "sys.settings shows a flag's effect")
    expect(settings["query.batch_rows"], "8192", "sys.settings shows a default")


def main() -> None:
    sample = SAMPLE.read_bytes()
    lines = sample.splitlines(keepends=True)
    half = len(lines) // 2
    with serving() as server:
        server.run("produce", "flights", stdin=b"".join(lines[:half]))
        server.run("produce", "a.b", stdin=b"dot\n")
        server.run("produce", "a_b", stdin=b"underscore\n")
        server.run("topic", "cool", "flights", "--wait")
        server.run("produce", "flights", stdin=b"".join(lines[half:]))

        with adbc_driver_flightsql.dbapi.connect(server.uri, autocommit=True) as connection:
            expect(tables(connection), ["a.b", "a_b", "flights"], "GetObjects lists every topic once")
            schema = connection.adbc_get_table_schema("flights", db_schema_filter="public")
            expect(
                schema.names,
                ["_partition", "_offset", "_timestamp", "_key", "_headers", "_payload", "_record_count"],
                "columns of a topic",
            )
            expect(schema.field("_timestamp").type, pyarrow.timestamp("ns", "UTC"), "type of _timestamp")

            count = "SELECT count(*), count(DISTINCT _offset), max(_offset) FROM flights"
            expect(fetch(connection, count), [(len(lines), len(lines), len(lines) - 1)], "counts over hot and cold")

            with connection.cursor() as cursor:
                cursor.execute("SELECT _offset, _payload FROM flights ORDER BY _offset")
                rows = cursor.fetch_arrow_table()
            expect(rows["_offset"].to_pylist(), list(range(len(lines))), "offsets are dense")
            payloads = b"".join(payload + b"\n" for payload in rows["_payload"].to_pylist())
            expect(payloads == sample, True, "payloads are the produced bytes")

            carriers = fetch(
                connection,
                "SELECT json_get_str(_payload, 'carrier') AS carrier, count(*) FROM flights GROUP BY 1 ORDER BY 1",
            )
            expect(len(carriers), 16, "carriers")
            expect(sum(flights for _, flights in carriers), len(lines), "flights of all carriers")
            arrow_operator = fetch(connection, "SELECT count(*) FROM flights WHERE _payload->>'carrier' = 'UA'")
            expect(arrow_operator, [(dict(carriers)["UA"],)], "the ->> operator agrees with json_get_str")

            expect(fetch(connection, 'SELECT _payload FROM "a.b"'), [(b"dot",)], 'topic "a.b" keeps to itself')
            expect(fetch(connection, 'SELECT _payload FROM "a_b"'), [(b"underscore",)], 'topic "a_b" keeps to itself')
            expect(fetch(connection, "SELECT _payload FROM flights WHERE false"), [], "no rows, no error")
            partitions = fetch(
                connection, "SELECT cold_end_offset, high_watermark FROM sys.partitions WHERE topic = 'flights'"
            )
            expect(partitions, [(half, len(lines))], "sys.partitions shows the seam")

            check_parameters(connection)
            check_sys_tables(server, connection)

            check_isolation(server)

            try:
                fetch(connection, "SELECT nothing FROM nowhere")
            except Exception as error:  # the driver's own class of errors
                expect("nowhere" in str(error), True, "an error names the missing table")
            else:
                raise AssertionError("a query of a missing table succeeded")


if __name__ == "__main__":
    main()
