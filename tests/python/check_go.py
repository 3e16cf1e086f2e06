"""franz-go (../go/main.go, its defaults) writes and reads every codec, hot, half cold and cold; a group, transactions, a compacted topic,
administration."""

import os
import pathlib
import shutil
import subprocess
import tempfile

from basalt_server import expect, serving

GO = pathlib.Path(__file__).parents[1] / "go"
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def main() -> None:
    if shutil.which("go") is None:
        raise SystemExit("this check needs go: install Go 1.24 or later")
    with serving() as server, tempfile.TemporaryDirectory(prefix="basalt-go-") as folder:
        program = pathlib.Path(folder) / "kafka"
        environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly"}
        subprocess.run(["go", "build", "-o", program, "."], check=True, cwd=GO, env=environment, timeout=900)

        def go(*arguments: str) -> None:
            subprocess.run([program, server.address, *arguments], check=True, timeout=300)

        def cool(*topics: str) -> None:
            for topic in topics:
                server.run("topic", "cool", topic, "--wait")

        topics = [f"go-{codec}" for codec in CODECS]
        go("write", "first")
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
