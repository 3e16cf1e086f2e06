"""A Basalt server in a temporary folder, and the command line against it."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile


class Server:
    """`basalt serve` on a free port, over a folder of its own or `data`. That outlives `stop`, so that files can be read with the
    server off. Its environment is ours and `variables`; its log goes to `log`."""

    def __init__(
        self,
        binary: str,
        *settings: str,
        data: pathlib.Path | None = None,
        variables: dict[str, str] | None = None,
        log: pathlib.Path | None = None,
    ):
        self.binary = binary
        self.folder = tempfile.TemporaryDirectory(prefix="basalt-python-")
        # What the command line is given beside its arguments.
        self.login: dict[str, str] = {}
        self.data = data or pathlib.Path(self.folder.name) / "data"
        command = [binary, "serve", "--data", str(self.data), "--listen", "127.0.0.1:0"]
        for setting in settings:
            command += ["--set", setting]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=open(log, "ab") if log else None,
            text=True,
            env={**os.environ, **(variables or {})},
        )
        line = self.process.stdout.readline()
        if " listening on " not in line:
            self.process.kill()
            self.process.wait()
            raise RuntimeError(f"the server did not start: {line!r}")
        self.address = line.strip().split(" listening on ")[1].split(", ")[0]

    @property
    def uri(self) -> str:
        return f"grpc://{self.address}"

    def run(self, *arguments: str, stdin: bytes = b"") -> bytes:
        """A client command against this server; its stdout."""
        command = [self.binary, *arguments, "--server", self.address]
        done = subprocess.run(command, input=stdin, capture_output=True, timeout=120, env={**os.environ, **self.login})
        if done.returncode != 0:
            raise RuntimeError(f"{command} ended with {done.returncode}: {done.stderr.decode(errors='replace')}")
        return done.stdout

    def sql(self, query: str) -> list[dict]:
        """The rows of a query."""
        return [json.loads(line) for line in self.run("sql", query, "--format", "json").splitlines()]

    def kill(self) -> None:
        """SIGKILL: nothing is finished."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def stop(self) -> None:
        """SIGTERM; it must end by itself, with 0."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            status = self.process.wait(timeout=60)
            expect(status, 0, "exit status after SIGTERM")


@contextlib.contextmanager
def serving(*settings: str):
    """The server of a check: the binary is the script's only argument."""
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} PATH-OF-BASALT")
    server = Server(sys.argv[1], *settings)
    try:
        yield server
        server.stop()
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()
        server.folder.cleanup()


USER, PASSWORD = "alice", "wonder/land +1"


@contextlib.contextmanager
def guarded(*settings: str):
    """The server of a check, which serves USER alone; its command line logs in."""
    with tempfile.TemporaryDirectory(prefix="basalt-users-") as folder:
        users = pathlib.Path(folder) / "users"
        add = [sys.argv[1], "user", "add", str(users), USER]
        subprocess.run(add, input=f"{PASSWORD}\n", text=True, check=True, timeout=60)
        with serving(f"server.users_file={users}", *settings) as server:
            server.login = {"BASALT_USER": USER, "BASALT_PASSWORD": PASSWORD}
            yield server


def expect(found, expected, what: str) -> None:
    if found != expected:
        raise AssertionError(f"{what}: found {found!r}, expected {expected!r}")
    print(f"ok: {what}")
