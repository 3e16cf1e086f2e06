"""An S3 server on this machine: SeaweedFS from PyPI, on free ports, and signed requests to look at what is in it."""

import datetime
import hashlib
import hmac
import http.client
import json
import pathlib
import random
import socket
import subprocess
import sys
import time
import urllib.parse
import xml.etree.ElementTree

ACCESS_KEY = "basalt"
SECRET_KEY = "basalt-secret-that-nothing-may-print"
REGION = "us-east-1"


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_ports(count: int) -> list[int]:
    """Ports that are free, each with the one ten thousand above it, which SeaweedFS takes for gRPC."""
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(20000, 30000)
        if port not in found and is_free(port) and is_free(port + 10000):
            found.append(port)
    return found


class Seaweed:
    """`weed server` in a folder. It may be killed and started again: what it has answered is there then."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        (folder / "weed").mkdir(parents=True)
        self.settings = folder / "s3.json"
        identity = {
            "name": "basalt",
            "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        self.settings.write_text(json.dumps({"identities": [identity]}))
        self.ports = free_ports(4)
        self.process: subprocess.Popen | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.ports[3]}"

    @property
    def variables(self) -> dict[str, str]:
        """What a server needs to know to reach it, as any client of S3 wants it."""
        return {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_REGION": REGION}

    def start(self) -> None:
        master, volume, filer, s3 = self.ports
        weed = pathlib.Path(sys.executable).parent / "weed"
        command = [
            str(weed), "-logtostderr=true", "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
            f"-dir={self.folder / 'weed'}", "-master.telemetry=false", f"-master.port={master}",
            f"-volume.port={volume}", "-master.volumeSizeLimitMB=64", "-volume.max=0", "-filer",
            f"-filer.port={filer}", "-s3", f"-s3.port={s3}", "-s3.port.lance=0", "-s3.port.iceberg=0",
            f"-s3.config={self.settings}",
        ]  # fmt: skip
        with open(self.folder / "weed.log", "ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            try:
                if self.request("GET", "/healthz")[0] == 200:
                    return
            except OSError:
                pass
            time.sleep(0.1)
        tail = (self.folder / "weed.log").read_text(errors="replace")[-2000:]
        raise RuntimeError(f"SeaweedFS did not start: {tail}")

    def kill(self) -> None:
        """As a machine that loses power: it gets no chance to finish anything."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def request(self, method: str, path: str, query: dict[str, str] | None = None) -> tuple[int, bytes]:
        """A request without a body, signed as AWS does it (version 4)."""
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
        host = f"127.0.0.1:{self.ports[3]}"
        quote = lambda text: urllib.parse.quote(text, safe="-_.~")
        pairs = sorted((quote(name), quote(value)) for name, value in (query or {}).items())
        query_string = "&".join(f"{name}={value}" for name, value in pairs)
        empty = hashlib.sha256(b"").hexdigest()
        headers = {"host": host, "x-amz-content-sha256": empty, "x-amz-date": now}
        signed = ";".join(sorted(headers))
        lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
        canonical = "\n".join([method, urllib.parse.quote(path), query_string, lines, signed, empty])
        scope = f"{now[:8]}/{REGION}/s3/aws4_request"
        digest = hashlib.sha256(canonical.encode()).hexdigest()
        to_sign = "\n".join(["AWS4-HMAC-SHA256", now, scope, digest])
        key = f"AWS4{SECRET_KEY}".encode()
        for part in [now[:8], REGION, "s3", "aws4_request"]:
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        signature = hmac.new(key, to_sign.encode(), hashlib.sha256).hexdigest()
        headers["Authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/{scope}, SignedHeaders={signed}, Signature={signature}"
        )
        connection = http.client.HTTPConnection("127.0.0.1", self.ports[3], timeout=20)
        try:
            connection.request(method, path + (f"?{query_string}" if query_string else ""), headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def make_bucket(self, bucket: str) -> None:
        status, answer = self.request("PUT", f"/{bucket}")
        if status != 200:
            raise RuntimeError(f"cannot make the bucket {bucket}: {status} {answer!r}")

    def keys(self, bucket: str, prefix: str = "") -> list[str]:
        """The names of all objects below a prefix."""
        found: list[str] = []
        query = {"list-type": "2", "prefix": prefix}
        while True:
            status, answer = self.request("GET", f"/{bucket}", query)
            if status != 200:
                raise RuntimeError(f"cannot list {bucket}: {status} {answer!r}")
            root = xml.etree.ElementTree.fromstring(answer)
            text = lambda name: [element.text or "" for element in root.iter() if element.tag.endswith("}" + name)]
            found += text("Key")
            if text("IsTruncated") != ["true"]:
                return found
            query["continuation-token"] = text("NextContinuationToken")[0]

    def uploads(self, bucket: str) -> list[str]:
        """The names of objects whose multipart upload has begun and not ended."""
        status, answer = self.request("GET", f"/{bucket}", {"uploads": ""})
        if status != 200:
            raise RuntimeError(f"cannot list the uploads of {bucket}: {status} {answer!r}")
        root = xml.etree.ElementTree.fromstring(answer)
        return [element.text or "" for element in root.iter() if element.tag.endswith("}Key")]
