"""Apache Kafka's own client (../java/Kafka.java, its defaults) writes and reads every codec, hot and cold, shares a topic in a group,
and administers topics and groups."""

import os
import pathlib
import shutil
import subprocess

from basalt_server import expect, serving

JAVA = pathlib.Path(__file__).parents[1] / "java"


def libraries() -> pathlib.Path:
    """The folder of the client's jars, fetched once."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "basalt-kafka-4.1.0"
    if not (cache / "fetched").exists():
        fetch = ["mvn", "-q", "-B", "-f", str(JAVA / "pom.xml"), "dependency:copy-dependencies", f"-DoutputDirectory={cache}"]
        subprocess.run(fetch, check=True, timeout=600)
        (cache / "fetched").touch()
    return cache


def main() -> None:
    for tool in ["java", "mvn"]:
        if shutil.which(tool) is None:
            raise SystemExit(f"this check needs {tool}: install a JDK (17 or later) and Maven")
    program = ["java", "-cp", f"{libraries()}/*", str(JAVA / "Kafka.java")]
    with serving() as server:

        def java(*arguments: str) -> None:
            subprocess.run([*program, server.address, *arguments], check=True, timeout=300)

        java("write")
        java("read", "hot")
        for codec in ["none", "gzip", "snappy", "lz4", "zstd"]:
            server.run("topic", "cool", f"java-{codec}", "--wait")
        java("read", "cold")
        for protocol in ["classic", "consumer"]:
            java("groups", protocol)
        java("transactions")
        query = 'SELECT count(*) AS rows, count(DISTINCT _payload) AS different FROM "txn-out"'
        committed = [{"rows": 300, "different": 300}]
        expect(server.sql(query), committed, "SQL sees what is committed, hot")
        server.run("topic", "cool", "txn-out", "--wait")
        java("committed", "cold")
        expect(server.sql(query), committed, "SQL sees what is committed, cold")
        java("admin")


if __name__ == "__main__":
    main()
