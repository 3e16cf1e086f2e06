"""Apache Kafka's own client (../java/Kafka.java, its defaults) writes and reads every codec, hot and cold, shares a topic in a group,
and administers topics and groups; logged in by each mechanism too."""

import os
import pathlib
import re
import shutil
import subprocess

from basalt_server import PASSWORD, USER, expect, guarded, serving
from compatibility import record

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
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

        def cool() -> None:
            for codec in CODECS:
                server.run("topic", "cool", f"java-{codec}", "--wait")

        java("write", "0")
        java("read", "hot", "1")
        cool()
        java("write", "1")
        java("read", "half cold", "2")
        cool()
        java("read", "cold", "2")
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
    for mechanism in ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]:
        login = {"SASL_MECHANISM": mechanism, "SASL_USER": USER, "SASL_PASSWORD": PASSWORD}
        with guarded() as server:
            command = [*program, server.address]
            subprocess.run([*command, "admin"], check=True, timeout=300, env={**os.environ, **login})
            if mechanism == "SCRAM-SHA-512":
                subprocess.run([*command, "groups", "classic"], check=True, timeout=300, env={**os.environ, **login})
            if mechanism == "PLAIN":
                done = subprocess.run([*command, "admin"], timeout=300, env={**os.environ, **login, "SASL_PASSWORD": "wrong"}, capture_output=True)
                expect(b"SaslAuthenticationException" in done.stderr, True, "a wrong password is refused")
    [version] = re.findall(r"<artifactId>kafka-clients</artifactId>\s*<version>(\S+)</version>", (JAVA / "pom.xml").read_text())
    record(
        "Java kafka-clients",
        version,
        codecs=", ".join(CODECS),
        records="null, empty, repeated headers, 1 byte to 8 MiB",
        where="hot, half cold, cold",
        offsets="seek, commit",
        times="yes",
        groups="cooperative, static members, KIP-848",
        idempotent="yes",
        transactions="commit, abort, offsets, fence",
        administration="create, describe, alter, delete; groups",
        SASL="PLAIN, SCRAM-SHA-256, SCRAM-SHA-512",
    )


if __name__ == "__main__":
    main()
