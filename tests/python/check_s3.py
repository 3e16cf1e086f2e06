"""Cold records in an S3 server: replayed byte for byte, counted by SQL; nothing is lost, doubled or left behind while the server
is killed and comes back; and a second Basalt on the same prefix changes nothing."""

import contextlib
import pathlib
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time

from basalt_server import Server, expect
from seaweed import SECRET_KEY, Seaweed

SAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "flights.ndjson"
BUCKET = "lava"
STORAGE_FULL = 6
TOPICS = ["left", "right"]


def settings_for(weed: Seaweed, prefix: str, *more: str) -> list[str]:
    return [
        f"cold.store=s3://{BUCKET}/{prefix}",
        f"cold.store_endpoint={weed.endpoint}",
        "cold.store_allow_http=true",
        "log.segment_bytes=400000",
        "cold.row_group_bytes=100000",
        "cold.maintenance_interval_ms=500",
        *more,
    ]


def wait_for(what: str, condition, seconds: float = 60):
    """What the condition gives once that is true."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError(f"waited {seconds} s in vain until {what}")


class Producer:
    """A native connection to partition 0 of a topic. It knows what was stored where, and what was refused."""

    def __init__(self, server: Server, topic: str):
        host, port = server.address.rsplit(":", 1)
        self.connection = socket.create_connection((host, int(port)), timeout=60)
        self.connection.sendall(bytes([1, len(topic)]) + topic.encode() + struct.pack(">I", 0))
        self.topic = topic
        self.sent = 0
        self.stored: dict[int, bytes] = {}
        self.refused: list[tuple[int, int]] = []

    def send(self, count: int) -> int:
        """Sends so many records of some 4 KB, and waits for their answers. How many were stored."""
        payloads, frames = [], b""
        for _ in range(count):
            payload = f"{self.topic}-{self.sent}-".encode().ljust(4000, b"abcdefg"[self.sent % 7 : self.sent % 7 + 1])
            self.sent += 1
            payloads.append(payload)
            frames += struct.pack(">BQQIII", 1, self.sent, 0, 0, len(payload), 1) + payload
        self.connection.sendall(frames)
        answers = b""
        while len(answers) < 9 * count:
            part = self.connection.recv(65536)
            if not part:
                raise AssertionError("the connection ended before every frame was answered")
            answers += part
        stored = 0
        for index, payload in enumerate(payloads):
            status, number = struct.unpack(">BQ", answers[9 * index : 9 * index + 9])
            if status == 0:
                if number in self.stored:
                    raise AssertionError(f"offset {number} was acknowledged twice")
                self.stored[number] = payload
                stored += 1
            else:
                self.refused.append((number >> 56, number & 0xFFFFFFFF))
        return stored


def replayed(server: Server, topic: str) -> list[bytes]:
    return server.run("consume", topic, "--from", "earliest", "--to", "end").splitlines()


def check_refusals(binary: str, weed: Seaweed) -> None:
    """A server that cannot use its store does not start, says why and what to do, and tells no secret."""

    def refused(what: str, words: list[str], settings: list[str], variables: dict[str, str]) -> None:
        with tempfile.TemporaryDirectory(prefix="basalt-python-") as folder:
            log = pathlib.Path(folder) / "log"
            with contextlib.suppress(RuntimeError):
                Server(binary, *settings, data=pathlib.Path(folder) / "data", variables=variables, log=log).kill()
                raise AssertionError(f"{what}: the server has started")
            said = log.read_text()
        missing = [word for word in words if word not in said]
        if missing:
            print(said)
        expect(missing, [], f"{what} is refused with the cause and the next step")
        expect(SECRET_KEY in said or "hunter2" in said, False, f"{what}: no secret is told")

    good = settings_for(weed, "refusals")
    refused("a bucket that is not there", ["create the bucket"], [*good, "cold.store=s3://nowhere/x"], weed.variables)
    wrong = {**weed.variables, "AWS_SECRET_ACCESS_KEY": "hunter2"}
    refused("a wrong secret", ["AWS_SECRET_ACCESS_KEY"], good, wrong)
    refused("plain HTTP", ["cold.store_allow_http"], [*good, "cold.store_allow_http=false"], weed.variables)
    url = f"cold.store=s3://key:hunter2@{BUCKET}/x"
    refused("a secret in the URL", ["variables"], [*good, url], weed.variables)
    dead = "cold.store_endpoint=http://127.0.0.1:1"
    refused("a service that is down", ["service runs"], [*good, dead], weed.variables)
    command = [binary, "serve", "--print-config", "--set", f"cold.store=s3://{BUCKET}/x"]
    printed = subprocess.run(command, capture_output=True, text=True, env={**weed.variables}, check=True).stdout
    expect(f"s3://{BUCKET}/x" in printed and SECRET_KEY not in printed, True, "--print-config shows the store and no secret")


def check_whole_path(binary: str, weed: Seaweed, folder: pathlib.Path) -> None:
    """Produced, cooled into the bucket, replayed and queried, also after a restart."""
    sample = SAMPLE.read_bytes()
    data = folder / "path"
    settings = settings_for(weed, "path")
    rows = sample.count(b"\n")
    server = Server(binary, *settings, data=data, variables=weed.variables)
    try:
        server.run("produce", "flights", stdin=sample)
        server.run("topic", "cool", "flights", "--wait")
        expect(replayed(server, "flights") == sample.splitlines(), True, "the replay from the bucket is byte-identical")
        settings_shown = server.sql("SELECT name, value FROM sys.settings")
        expect(SECRET_KEY in str(settings_shown), False, "sys.settings shows no secret")
        server.stop()
        shutil.rmtree(data / "cache")
        expect([path for path in data.rglob("*.parquet")], [], "no Parquet file is in the data folder")
        server = Server(binary, *settings, data=data, variables=weed.variables)
        expect(replayed(server, "flights") == sample.splitlines(), True, "and after a restart without the cache")
        query = "SELECT count(*) AS n, count(DISTINCT _offset) AS d, min(_offset) AS low, max(_offset) AS high FROM flights"
        expect(server.sql(query), [{"n": rows, "d": rows, "low": 0, "high": rows - 1}], "SQL counts every record once")
        united = sum(b'"carrier":"UA"' in line for line in sample.splitlines())
        query = "SELECT count(*) AS n FROM flights WHERE _payload->>'carrier' = 'UA'"
        expect(server.sql(query), [{"n": united}], "SQL reads payloads from the bucket")
        server.stop()
        # Without the setting, or with another prefix, the records would seem to be gone.
        for wrong in [["log.segment_bytes=400000"], settings_for(weed, "elsewhere")]:
            log = folder / "wrong.log"
            with contextlib.suppress(RuntimeError):
                Server(binary, *wrong, data=data, variables=weed.variables, log=log).kill()
                raise AssertionError("a data folder was opened without its store")
            expect(f"s3://{BUCKET}/path" in log.read_text(), True, "a data folder keeps to its store")
            log.unlink()
    finally:
        server.kill()


def hot_bytes(server: Server) -> int:
    return sum(row["hot_bytes"] for row in server.sql("SELECT hot_bytes FROM sys.partitions"))


def cold_files(server: Server) -> set[str]:
    return {row["path"] for row in server.sql("SELECT path FROM sys.files")}


def expect_all_once(server: Server, producers: list[Producer], when: str) -> None:
    """Every acknowledged record is there once, in its place, for consumers and for SQL."""
    for producer in producers:
        expected = [payload for _, payload in sorted(producer.stored.items())]
        expect(sorted(producer.stored) == list(range(len(expected))), True, f"{producer.topic}: offsets are dense {when}")
        expect(replayed(server, producer.topic) == expected, True, f"{producer.topic}: replayed byte for byte {when}")
        query = f'SELECT count(*) AS n, count(DISTINCT _offset) AS d FROM "{producer.topic}"'
        expect(server.sql(query), [{"n": len(expected), "d": len(expected)}], f"{producer.topic}: counted once {when}")


def check_outage(binary: str, weed: Seaweed, folder: pathlib.Path) -> tuple[Server, list[Producer]]:
    """The S3 server is killed while segments are cooled under load."""
    limit = 6_000_000
    # Without merging: whoever takes the prefix over while a merge is committed deletes what this server still knows.
    settings = settings_for(weed, "outage", "cold.hot_bytes=0", "cold.merge_bytes=0", f"cold.hot_limit_bytes={limit}")
    server = Server(binary, *settings, data=folder / "outage", variables=weed.variables, log=folder / "outage.log")
    producers = [Producer(server, topic) for topic in TOPICS]
    wait_for("some segments are cold", lambda: [p.send(50) for p in producers] and len(cold_files(server)) >= 4)
    expect(sum(len(p.refused) for p in producers), 0, "nothing is refused while the store keeps up")
    weed.kill()
    stored_away = 0
    while not all(p.refused for p in producers):
        stored_away += sum(p.send(50) for p in producers)
    expect(stored_away * 4000 > limit // 4, True, "hot writes go on while the store is away")
    refusals = [refusal for p in producers for refusal in p.refused]
    expect({kind for kind, _ in refusals}, {STORAGE_FULL}, "then they are refused as storage full")
    expect(all(retry_ms > 0 for _, retry_ms in refusals), True, "each with when to try again")
    expect(hot_bytes(server) <= limit, True, "no more is hot than may be")
    newest = producers[0].stored[max(producers[0].stored)]
    tail = server.run("consume", TOPICS[0], "--from", str(max(producers[0].stored)), "--to", "end")
    expect(tail.splitlines(), [newest], "what is hot is read all the while")
    weed.start()
    for producer in producers:
        wait_for("appends are taken again", lambda: producer.send(1) == 1)
    for _ in range(10):
        for producer in producers:
            wait_for("the backlog goes", lambda: producer.send(20) == 20)
    for topic in TOPICS:
        server.run("topic", "cool", topic)
    wait_for("everything is uploaded by itself", lambda: hot_bytes(server) == 0)
    expect_all_once(server, producers, "after the outage")
    return server, producers


def check_nothing_is_left(server: Server, weed: Seaweed, prefix: str) -> None:
    """Every object in the bucket is one that a manifest names, a manifest or a claim."""
    server.run("topic", "cool", TOPICS[0])

    def named_is_what_is_there() -> bool:
        there = {key for key in weed.keys(BUCKET, prefix) if key.endswith(".parquet")}
        return there == {f"{prefix}/{path}" for path in cold_files(server)}

    wait_for("the objects are those that manifests name", named_is_what_is_there)
    print("ok: no object is left that nobody names, none is missing")
    wait_for("no upload is left unfinished", lambda: not weed.uploads(BUCKET))
    manifests = [key for key in weed.keys(BUCKET, prefix) if "/manifest/" in key]
    expect(len(manifests) <= 2 * len(TOPICS), True, "old manifests are gone")


def check_two_servers(binary: str, weed: Seaweed, folder: pathlib.Path, first: Server, producers: list[Producer]) -> None:
    """A second server on the prefix: with another data folder it does not start, with a copy it takes over, once."""
    settings = settings_for(weed, "outage", "cold.hot_bytes=0", "cold.merge_bytes=0")
    log = folder / "second.log"
    with contextlib.suppress(RuntimeError):
        Server(binary, *settings, data=folder / "stranger", variables=weed.variables, log=log).kill()
        raise AssertionError("a second data folder was let into the prefix")
    expect("another data folder" in log.read_text(), True, "another data folder is refused, and told why")
    copy = folder / "copy"
    shutil.copytree(first.data, copy)
    before = {p.topic: len(p.stored) for p in producers}
    second = Server(binary, *settings, data=copy, variables=weed.variables, log=log)
    try:
        for producer in producers:
            producer.send(150)
        wait_for("the first finds out", lambda: "taken over" in (folder / "outage.log").read_text())
        expect(hot_bytes(first) > 0, True, "what the first still takes stays hot")
        expect_all_once(first, producers, "on the first server, fenced")
        for topic in TOPICS:
            expect(len(replayed(second, topic)), before[topic], f"{topic}: the second has what was there when it was copied")
        second_producer = Producer(second, TOPICS[0])
        expect(second_producer.send(150), 150, "the second takes appends")
        second.run("topic", "cool", TOPICS[0], "--wait")
        expect(len(replayed(second, TOPICS[0])), before[TOPICS[0]] + 150, "and cools them")
        first.stop()
        with contextlib.suppress(RuntimeError):
            Server(binary, *settings, data=first.data, variables=weed.variables, log=log).kill()
            raise AssertionError("the first was let in again")
        expect(log.read_text().count("another data folder"), 2, "the first is refused when it starts again")
        second.stop()
    finally:
        second.kill()


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} PATH-OF-BASALT")
    binary = sys.argv[1]
    with tempfile.TemporaryDirectory(prefix="basalt-s3-") as name:
        folder = pathlib.Path(name)
        weed = Seaweed(folder)
        server = None
        try:
            weed.start()
            weed.make_bucket(BUCKET)
            check_refusals(binary, weed)
            check_whole_path(binary, weed, folder)
            server, producers = check_outage(binary, weed, folder)
            check_nothing_is_left(server, weed, "outage")
            check_two_servers(binary, weed, folder, server, producers)
        finally:
            if server is not None:
                server.kill()
            weed.kill()


if __name__ == "__main__":
    main()
