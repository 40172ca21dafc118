"""An S3 server on loopback for tests: moto, in memory, one request at a time.

One at a time makes its conditional puts atomic, as S3's are. With KAFKALOG_S3=minio it is MinIO
(`$KAFKALOG_PEERS/minio`), with all at once and signatures that count, behind the same faults.
moto lies in `$KAFKALOG_PEERS/moto` (`make peers`), apart from this environment, because its boto
wants an older python-dateutil.
`s3()` starts one server for the whole process, which ends with it.
"""

import atexit
import functools
import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from collections import Counter
from pathlib import Path
from urllib.parse import quote

from pyarrow.fs import S3FileSystem

from tests.support.patience import wait_until
from tests.support.ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
MOTO = Path(os.environ.get("KAFKALOG_PEERS", ROOT / ".peers")).absolute() / "moto"
BUCKET = "lake"
REGION = "us-east-1"
IS_MINIO = os.environ.get("KAFKALOG_S3") == "minio"
# In the environment before Spark starts, whose workers have it from there.
os.environ["AWS_ACCESS_KEY_ID"] = "loader"
os.environ["AWS_SECRET_ACCESS_KEY"] = "sesame/+&"

# The server ends with its parent: its stdin closes then.
_PROGRAM = """
import collections, http.client, json, os, re, sys, threading
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server
minio = sys.argv[1] if len(sys.argv) > 1 else None
faults = set()
counts = collections.Counter()
REFUSALS = ("503 Slow Down", "SlowDown"), ("400 Bad Request", "ExpiredToken")
HOPS = ("HTTP_CONNECTION", "HTTP_EXPECT", "HTTP_TRANSFER_ENCODING")
def forwarded(environ, start_response):
    headers = {
        name[5:].replace("_", "-"): value
        for name, value in environ.items()
        if name.startswith("HTTP_") and name not in HOPS
    }
    if environ.get("CONTENT_TYPE"):
        headers["Content-Type"] = environ["CONTENT_TYPE"]
    is_chunked = "chunked" in environ.get("HTTP_TRANSFER_ENCODING", "")
    body = environ["wsgi.input"].read(-1 if is_chunked else int(environ.get("CONTENT_LENGTH") or 0))
    store = http.client.HTTPConnection(minio)
    try:
        store.request(environ["REQUEST_METHOD"], environ["REQUEST_URI"], body, headers)
        answer = store.getresponse()
        hops = ("connection", "transfer-encoding", "keep-alive")
        given = [each for each in answer.getheaders() if each[0].lower() not in hops]
        start_response(f"{answer.status} {answer.reason}", given)
        return [answer.read()]
    finally:
        store.close()
moto = forwarded if minio else DomainDispatcherApplication(create_backend_app)
def application(environ, start_response):
    path = environ["PATH_INFO"]
    if path.startswith("/_fault/"):
        faults.clear()
        faults.add(path.removeprefix("/_fault/"))
        start_response("200 OK", [("Content-Length", "0")])
        return []
    if path == "/_counts":
        content = json.dumps(counts).encode()
        start_response("200 OK", [("Content-Length", str(len(content)))])
        return [content]
    kind = environ["REQUEST_METHOD"]
    if "HTTP_X_AMZ_COPY_SOURCE" in environ:
        kind = "COPY"
    elif kind == "GET" and "list-type" in environ["QUERY_STRING"]:
        kind = "LIST"
    counts[kind] += 1
    if "blind" in faults:
        environ.pop("HTTP_IF_NONE_MATCH", None)
    for status, code in REFUSALS:
        if code in faults:
            token = environ.get("HTTP_X_AMZ_SECURITY_TOKEN", "")
            said = f"<Error><Code>{code}</Code><Message>no</Message><T>{token}</T></Error>"
            start_response(status, [("Content-Length", str(len(said)))])
            return [said.encode()]
    is_commit = environ["REQUEST_METHOD"] == "PUT" and re.search("/(commits|_delta_log)/", path)
    if is_commit and faults.intersection(("lost", "lost for long")):
        list(moto(environ, lambda *_: None))
        left = {"SlowDown"} if "lost for long" in faults else ()
        faults.clear()
        faults.update(left)
        start_response("500 Lost", [("Content-Length", "0")])
        return []
    return moto(environ, start_response)
server = make_server("127.0.0.1", 0, application, threaded=bool(minio))
print(server.server_port, flush=True)
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
server.serve_forever()
"""


class MinIO:
    """A server of `$KAFKALOG_PEERS/minio`, on a port of 127.0.0.1 and a directory of its own."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory()
        program = str(MOTO.parent / "minio" / "minio")
        user, password = os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]
        self.address = f"127.0.0.1:{free_ports(1)[0]}"
        self._process = subprocess.Popen(
            [program, "server", "--quiet", "--address", self.address, self._directory.name],
            env=os.environ
            | {"MINIO_ROOT_USER": user, "MINIO_ROOT_PASSWORD": password, "MINIO_BROWSER": "off"}
            | {"MINIO_CI_CD": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_until(self._is_ready, "MinIO")

    def _is_ready(self) -> bool:
        try:
            urllib.request.urlopen(f"http://{self.address}/minio/health/ready").close()
        except OSError:
            return False
        return True

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        self._directory.cleanup()


class S3Server:
    """A running server with one empty bucket."""

    def __init__(self) -> None:
        assert MOTO.is_dir(), f"no moto in {MOTO}: make peers"
        self._minio = MinIO() if IS_MINIO else None
        behind = [self._minio.address] if self._minio else []
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, *behind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": str(MOTO)},
            text=True,
        )
        assert self._process.stdout
        self.endpoint = f"http://127.0.0.1:{int(self._process.stdout.readline())}"
        if self._minio:
            address = self._minio.address
            files = S3FileSystem(
                endpoint_override=address,
                scheme="http",
                region=REGION,
                allow_bucket_creation=True,
            )
            files.create_dir(BUCKET)
        else:
            self._put(BUCKET)

    def fail(self, fault: str) -> None:
        """From now on: `blind`, conditions of puts are ignored (not on MinIO: they are signed);
        `lost`, the next commit is put and answered by an error, `lost for long`, and all that
        follows too; `SlowDown` and `ExpiredToken`, all is refused so; `none`."""
        self._put(f"_fault/{quote(fault)}")

    def counts(self) -> Counter[str]:
        """How many requests of each kind were made so far; kinds are methods, COPY and LIST."""
        with urllib.request.urlopen(f"{self.endpoint}/_counts") as answer:
            return Counter(json.load(answer))

    def _put(self, path: str) -> None:
        request = urllib.request.Request(f"{self.endpoint}/{path}", method="PUT")
        urllib.request.urlopen(request).close()

    def url(self, prefix: str) -> str:
        """A place in the bucket, as `parquet:` targets take it."""
        return f"s3://{BUCKET}/{prefix}?endpoint={self.endpoint}&region={REGION}"

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe
            pipe.close()
        if self._minio:
            self._minio.stop()


@functools.cache
def s3() -> S3Server:
    server = S3Server()
    atexit.register(server.stop)
    return server
