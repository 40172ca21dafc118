"""An S3 server on loopback for tests: moto, in memory, one request at a time.

One at a time makes its conditional puts atomic, as S3's are. moto lies in `$KAFKALOG_PEERS/moto`
(`make peers`), apart from this environment, because its boto wants an older python-dateutil.
`s3()` starts one server for the whole process, which ends with it.
"""

import atexit
import functools
import json
import os
import subprocess
import sys
import urllib.request
from collections import Counter
from pathlib import Path
from urllib.parse import quote

ROOT = Path(__file__).resolve().parents[2]
MOTO = Path(os.environ.get("KAFKALOG_PEERS", ROOT / ".peers")).absolute() / "moto"
BUCKET = "lake"
REGION = "us-east-1"
# In the environment before Spark starts, whose workers have it from there.
os.environ["AWS_ACCESS_KEY_ID"] = "loader"
os.environ["AWS_SECRET_ACCESS_KEY"] = "sesame/+&"

# The server ends with its parent: its stdin closes then.
_PROGRAM = """
import collections, json, os, re, sys, threading
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server
faults = set()
counts = collections.Counter()
REFUSALS = ("503 Slow Down", "SlowDown"), ("400 Bad Request", "ExpiredToken")
moto = DomainDispatcherApplication(create_backend_app)
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
server = make_server("127.0.0.1", 0, application)
print(server.server_port, flush=True)
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
server.serve_forever()
"""


class S3Server:
    """A running server with one empty bucket."""

    def __init__(self) -> None:
        assert MOTO.is_dir(), f"no moto in {MOTO}: make peers"
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": str(MOTO)},
            text=True,
        )
        assert self._process.stdout
        self.endpoint = f"http://127.0.0.1:{int(self._process.stdout.readline())}"
        self._put(BUCKET)

    def fail(self, fault: str) -> None:
        """From now on: `blind`, conditions of puts are ignored; `lost`, the next commit is put and
        answered by an error, `lost for long`, and all that follows too; `SlowDown` and
        `ExpiredToken`, all is refused so; `none`."""
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


@functools.cache
def s3() -> S3Server:
    server = S3Server()
    atexit.register(server.stop)
    return server
