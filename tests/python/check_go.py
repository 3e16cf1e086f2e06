"""franz-go (../go/main.go, its defaults) writes and reads every codec, hot, half cold and cold; a group, transactions, a compacted topic,
administration; logged in by each mechanism too."""

import os
import pathlib
import re
import shutil
import subprocess
import tempfile

from basalt_server import PASSWORD, USER, expect, guarded, serving
from compatibility import record

GO = pathlib.Path(__file__).parents[1] / "go"
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def main() -> None:
    if shutil.which("go") is None:
        raise SystemExit("this check needs go: install Go 1.24 or later")
    with tempfile.TemporaryDirectory(prefix="basalt-go-") as folder:
        program = pathlib.Path(folder) / "kafka"
        environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly"}
        subprocess.run(["go", "build", "-o", program, "."], check=True, cwd=GO, env=environment, timeout=900)

        check(program)
        for mechanism in ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]:
            login = {"SASL_MECHANISM": mechanism, "SASL_USER": USER, "SASL_PASSWORD": PASSWORD}
            with guarded() as server:
                subprocess.run([program, server.address, "admin"], check=True, timeout=300, env={**os.environ, **login})
        [version] = re.findall(r"franz-go v(\S+)\n", (GO / "go.mod").read_text())
        record(
            "franz-go",
            version,
            codecs=", ".join(CODECS),
            records="null, empty, repeated headers, 1 byte to 8 MiB",
            where="hot, half cold, cold",
            offsets="seek, commit",
            times="yes",
            groups="cooperative",
            idempotent="yes",
            transactions="commit, abort, fence; compacted topics",
            administration="create, describe, alter, delete",
            SASL="PLAIN, SCRAM-SHA-256, SCRAM-SHA-512",
        )


def check(program: pathlib.Path) -> None:
    with serving() as server:

        def go(*arguments: str) -> None:
            subprocess.run([program, server.address, *arguments], check=True, timeout=300)

        def cool(*topics: str) -> None:
            for topic in topics:
                server.run("topic", "cool", topic, "--wait")

        topics = [f"go-{codec}" for codec in CODECS]
        go("write", "first")
        for codec in CODECS:
            go("read", codec, "hot")
        cool(*topics)
        go("write", "second")
        for codec in CODECS:
            go("read", codec, "half cold")
        cool(*topics)
        for codec in CODECS:
            go("read", codec, "cold")
        go("group")
        go("transactions")
        go("committed", "hot")
        cool("go-txn-out")
        go("committed", "cold")
        expect(server.sql('SELECT count(*) AS rows FROM "go-txn-out"'), [{"rows": 150}], "SQL sees what is committed")
        go("compacted", "written")
        cool("go-compacted")
        go("compacted", "cooled")
        expect(server.sql('SELECT count(*) AS rows FROM "go-compacted"'), [{"rows": 10}], "so does SQL")
        go("admin")


if __name__ == "__main__":
    main()
