"""A schema registry in memory over loopback HTTP: what Confluent's own serializers and the decoders
use of its REST interface."""

import base64
import json
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

from google.protobuf.descriptor_pb2 import FileDescriptorSet

from pyspark_kafkalog.decoding.proto_files import compile_proto


class Registry:
    """Schemas by id and subject; `asked` are the paths of the requests so far."""

    def __init__(self) -> None:
        self.by_id: dict[int, dict[str, Any]] = {}
        self.subjects: dict[str, list[int]] = {}
        self.url = ""
        self.asked: list[str] = []
        self.authorizations: list[str | None] = []
        self.failures: list[tuple[int, str]] = []
        """(status, body) of the next answers, before those that are right."""

    def register(
        self, subject: str, text: str, kind: str = "AVRO", references: Sequence[dict[str, Any]] = ()
    ) -> int:
        """The schema's id, as the REST call gives it."""
        schema = {"schema": text, "schemaType": kind, "references": list(references)}
        known = [number for number, one in self.by_id.items() if one == schema]
        number = known[0] if known else len(self.by_id) + 1
        self.by_id[number] = schema
        versions = self.subjects.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        return number

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        parts = [unquote(part) for part in path.strip("/").split("/")]
        if method == "GET" and parts[:2] == ["schemas", "ids"]:
            if int(parts[2]) in self.by_id:
                return 200, self.by_id[int(parts[2])]
            return 404, {"error_code": 40403, "message": "Schema not found"}
        if parts[0] != "subjects":
            return 404, {"error_code": 404, "message": "Not found"}
        subject = parts[1]
        if method == "POST":
            number = self.register(
                subject, body["schema"], body.get("schemaType", "AVRO"), body.get("references", ())
            )
            version = self.subjects[subject].index(number) + 1
            return 200, {"id": number, "subject": subject, "version": version, **self.by_id[number]}
        versions = self.subjects.get(subject, [])
        version = len(versions) if parts[3] == "latest" else int(parts[3])
        if not 0 < version <= len(versions):
            return 404, {"error_code": 40401, "message": "Subject not found"}
        number = versions[version - 1]
        return 200, {"id": number, "subject": subject, "version": version, **self.by_id[number]}


def _serialized(text: str) -> str:
    """The other form in which a registry gives Protobuf schemas: the descriptor, as base64."""
    file = FileDescriptorSet.FromString(compile_proto(text)).file[-1]
    return base64.b64encode(file.SerializeToString()).decode()


class _Server(ThreadingHTTPServer):
    registry: Registry


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, _Server)
        registry = self.server.registry
        path = urlsplit(self.path).path
        registry.asked.append(path)
        registry.authorizations.append(self.headers.get("Authorization"))
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else {}
        if registry.failures:
            status, text = registry.failures.pop(0)
        else:
            status, answer = registry.answer(self.command, path, body)
            if "format=serialized" in self.path and answer.get("schemaType") == "PROTOBUF":
                answer = {**answer, "schema": _serialized(answer["schema"])}
            text = json.dumps(answer)
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(data)))
        if 300 <= status < 400:
            self.send_header("Location", "http://127.0.0.1:1/")
        self.end_headers()
        self.wfile.write(data)

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(tls: ssl.SSLContext | None = None) -> Iterator[Registry]:
    """A registry at work; its `url` is where."""
    server = _Server(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    registry = server.registry = Registry()
    registry.url = f"http{'s' if tls else ''}://127.0.0.1:{server.server_port}"
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=[0.01])
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
