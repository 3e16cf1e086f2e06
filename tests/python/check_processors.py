"""Stream processors, as the examples have them (../../examples): bytewax and quixstreams read flights, half of them cold, are killed twice and
started again, and end with exactly the right counts. With BASALT_TEST_DATA the full year, without it the sample many times."""

import collections
import gzip
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

from basalt_server import expect, serving

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
PROCESSORS = {"bytewax": ["bytewax[kafka]==0.21.1"], "quixstreams": ["quixstreams==3.28.1"]}
SAMPLE_COPIES = 20
PATIENCE = 300.0


def flights() -> list[bytes]:
    folder = os.environ.get("BASALT_TEST_DATA")
    if folder:
        with gzip.open(pathlib.Path(folder) / "flights.ndjson.gz") as file:
            return file.read().splitlines(keepends=True)
    return (EXAMPLES / "flights.ndjson").read_bytes().splitlines(keepends=True) * SAMPLE_COPIES


def python(processor: str) -> str:
    """An interpreter that has the processor, made once."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache"))
    folder = cache / f"basalt-{PROCESSORS[processor][0].replace('[', '-').replace(']', '')}"
    if not (folder / "ready").exists():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=300)
        install = [folder / "bin/pip", "--quiet", "--disable-pip-version-check", "install", *PROCESSORS[processor]]
        subprocess.run(install, check=True, timeout=600)
        (folder / "ready").touch()
    return str(folder / "bin/python")


def killed_at(command: list[str], folder: pathlib.Path, address: str, progress, target: int) -> None:
    """Runs the program until it has come that far, then kills it."""
    log = open(folder / "log", "ab")
    process = subprocess.Popen(command, cwd=folder, env={**os.environ, "ADDRESS": address}, stdout=log, stderr=log)
    deadline = time.monotonic() + PATIENCE
    try:
        while (at := progress()) < target:
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"it ended or stood still at {at} of {target}: {(folder / 'log').read_text()[-2000:]}")
            time.sleep(0.05)
    finally:
        process.kill()
        process.wait()
    print(f"ok: killed at {at}")


def check_bytewax(server, folder: pathlib.Path, carriers: collections.Counter) -> None:
    interpreter = python("bytewax")
    shutil.copy(EXAMPLES / "bytewax/delays.py", folder)
    (folder / "recovery").mkdir()
    subprocess.run([interpreter, "-m", "bytewax.recovery", "recovery", "1"], cwd=folder, check=True, timeout=60)
    command = [interpreter, "-m", "bytewax.run", "delays", "-r", "recovery", "-s", "1", "-b", "0"]
    output = folder / "delays.jsonl"

    def lines() -> int:
        return output.read_bytes().count(b"\n") if output.exists() else 0

    for part in [0.3, 0.6]:
        killed_at(command, folder, server.address, lines, int(carriers.total() * part))
    subprocess.run(command, cwd=folder, env={**os.environ, "ADDRESS": server.address}, check=True, timeout=PATIENCE)
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    counts = collections.defaultdict(list)
    for carrier, count, _ in rows:
        counts[carrier].append(count)
    # Its sink may write again what it wrote before it was killed, and then the same.
    expect({carrier: sorted(set(seen)) == list(range(1, carriers[carrier] + 1)) for carrier, seen in counts.items()}, dict.fromkeys(carriers, True), "bytewax: each carrier was counted one by one")
    expect(len(rows), carriers.total(), "bytewax: no line twice")


def check_quixstreams(server, folder: pathlib.Path, carriers: collections.Counter) -> None:
    command = [python("quixstreams"), "delays.py"]
    shutil.copy(EXAMPLES / "quixstreams/delays.py", folder)

    def topics() -> list[str]:
        return [row["topic"] for row in server.sql("SELECT topic FROM sys.topics")]

    def rows() -> int:
        return server.sql("SELECT count(*) AS n FROM delays")[0]["n"] if "delays" in topics() else 0

    for part in [0.3, 0.6, 1.0]:
        killed_at(command, folder, server.address, rows, int(carriers.total() * part))
        # Its state comes back from the changelog.
        shutil.rmtree(folder / "state", ignore_errors=True)
        if part < 1.0:
            [changelog] = [topic for topic in topics() if topic.startswith("changelog__")]
            server.run("topic", "cool", changelog, "--wait")
    query = """SELECT _payload->>'carrier' AS carrier, count(*) AS flights, count(DISTINCT _payload->>'n') AS different,
        max((_payload->>'n')::bigint) AS n FROM delays GROUP BY 1"""
    found = {row["carrier"]: {row["flights"], row["different"], row["n"]} for row in server.sql(query)}
    expect(found, {carrier: {count} for carrier, count in carriers.items()}, "quixstreams: each flight was counted exactly once")


def main() -> None:
    lines = flights()
    carriers = collections.Counter(json.loads(line)["carrier"] for line in lines)
    if "BASALT_TEST_DATA" in os.environ:
        expect((len(lines), carriers["UA"]), (336_776, 58_665), "the full year of flights")
    with serving() as server:
        server.run("topic", "create", "flights", "--partitions", "2")
        middle = len(lines) // 2
        server.run("produce", "flights", "--partition", "0", stdin=b"".join(lines[:middle]))
        server.run("topic", "cool", "flights", "--wait")
        server.run("produce", "flights", "--partition", "1", stdin=b"".join(lines[middle:]))
        for check in [check_bytewax, check_quixstreams]:
            with tempfile.TemporaryDirectory(prefix="basalt-processor-") as folder:
                check(server, pathlib.Path(folder), carriers)


if __name__ == "__main__":
    main()
