"""The Arrow Flight SQL JDBC driver from Maven Central connects, reads metadata and rows, and binds parameters (../java);
without and with a login."""

import os
import pathlib
import shutil
import subprocess
import urllib.parse

from basalt_server import PASSWORD, USER, guarded, serving

DRIVER = "org.apache.arrow:flight-sql-jdbc-driver:18.3.0"
PROGRAM = pathlib.Path(__file__).parents[1] / "java" / "Jdbc.java"


def driver() -> pathlib.Path:
    """The driver's jar, fetched once."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "basalt-jdbc"
    _, name, version = DRIVER.split(":")
    jar = cache / f"{name}-{version}.jar"
    if not jar.exists():
        fetch = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={DRIVER}", f"-DoutputDirectory={cache}"]
        subprocess.run(fetch, check=True, timeout=600)
    return jar


def main() -> None:
    for tool in ["java", "mvn"]:
        if shutil.which(tool) is None:
            raise SystemExit(f"this check needs {tool}: install a JDK (17 or later) and Maven")
    jar = driver()
    # A stamp is a moment: the clock on the client's wall does not move it.
    check(jar, serving, "America/New_York", "")
    check(jar, guarded, "Asia/Tokyo", f"&user={USER}&password={urllib.parse.quote_plus(PASSWORD)}")


def check(jar: pathlib.Path, start, zone: str, login: str) -> None:
    with start() as server:
        for numbers in [range(5), range(5, 10)]:
            server.run("produce", "numbers", stdin=b"".join(b'{"n":%d}\n' % number for number in numbers))
            if 0 in numbers:
                server.run("topic", "cool", "numbers", "--wait")
        server.run("produce", "a_b", stdin=b"underscore\n")
        host = server.uri.split("//")[1]
        url = f"jdbc:arrow-flight-sql://{host}/?useEncryption=false{login}"
        [stamp] = server.sql("SELECT _timestamp::BIGINT AS ns FROM numbers WHERE _offset = 7")
        options = ["--add-opens=java.base/java.nio=ALL-UNNAMED", f"-Duser.timezone={zone}", "-cp", str(jar)]
        program = ["java", *options, str(PROGRAM), url, str(stamp["ns"])]
        subprocess.run(program, check=True, timeout=300)


if __name__ == "__main__":
    main()
