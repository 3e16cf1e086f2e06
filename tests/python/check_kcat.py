"""kcat (librdkafka on the command line) produces, consumes from offsets, by time and in a group, and lists, hot and cold."""

import os
import re
import shutil
import subprocess

from basalt_server import expect, serving
from compatibility import record

# A program that lives somewhere else may need libraries from there.
KCAT = os.environ.get("KCAT", "kcat")
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def main() -> None:
    if shutil.which(KCAT) is None:
        raise SystemExit("this check needs kcat: install it, or name it in KCAT")
    with serving() as server:

        def kcat(*arguments: str, stdin: str = "") -> str:
            command = [KCAT, "-b", server.address, *arguments]
            done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120)
            if done.returncode != 0:
                raise RuntimeError(f"{command} ended with {done.returncode}: {done.stderr}")
            return done.stdout

        lines = [f"{n % 7}:value {n}" for n in range(1000)]
        for codec in CODECS:
            topic = f"kcat-{codec}"
            kcat("-P", "-t", topic, "-p", "0", "-K:", "-z", codec, "-H", "trace=7", stdin="\n".join(lines[:500]) + "\n")
            for where, count in [("hot", 500), ("half cold", 1000), ("cold", 1000)]:
                if where == "half cold":
                    server.run("topic", "cool", topic, "--wait")
                    kcat("-P", "-t", topic, "-p", "0", "-K:", "-z", codec, "-H", "trace=7", stdin="\n".join(lines[500:]) + "\n")
                read = kcat("-C", "-t", topic, "-p", "0", "-o", "beginning", "-e", "-q", "-f", "%o %h %k:%s\n")
                expected = "".join(f"{n} trace=7 {line}\n" for n, line in enumerate(lines[:count]))
                expect(read == expected, True, f"{codec}: what was produced is consumed, {where}")
                read = kcat("-C", "-t", topic, "-p", "0", "-o", str(count - 10), "-e", "-q", "-f", "%o\n")
                expect(read.split(), [str(n) for n in range(count - 10, count)], f"{codec}: from an offset, {where}")
                if where == "half cold":
                    server.run("topic", "cool", topic, "--wait")
        grouped = kcat("-G", "kcat-group", "-c", "1000", "-q", "-o", "beginning", "-f", "%o\n", "kcat-none")
        expect(len(set(grouped.split())), 1000, "a group reads each record")
        ends = kcat("-Q", "-t", "kcat-none:0:0", "-t", "kcat-lz4:0:4000000000000")
        expect(sorted(line.split()[-1] for line in ends.splitlines()), ["-1", "0"], "offsets by time")
        expect('topic "kcat-zstd" with 1 partitions' in kcat("-L"), True, "topics are listed")
        [version] = re.findall(r"Version (\S+) .*librdkafka (\S+) ", subprocess.run([KCAT, "-V"], capture_output=True, text=True).stdout)
        record(
            "kcat",
            f"{version[0]} (librdkafka {version[1]})",
            codecs=", ".join(CODECS),
            records="keys, headers",
            where="hot, half cold, cold",
            offsets="seek",
            times="yes",
            groups="range",
            administration="list",
        )


if __name__ == "__main__":
    main()
