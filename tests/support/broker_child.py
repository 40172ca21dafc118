"""A broker as a child process, and a client that sends it single requests."""

import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kafka.protocol.metadata import MetadataRequest, MetadataResponse

from pyspark_kafkalog.protocol.fetch import (
    FetchRequest,
    FetchResponse,
    decode_fetch_response,
    encode_fetch_request,
)
from pyspark_kafkalog.protocol.frames import (
    API_VERSIONS_KEY,
    decode_response_header,
    encode_request_header,
)
from pyspark_kafkalog.protocol.produce import (
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    decode_produce_response,
    encode_produce_request,
)
from tests.support.patience import EVENT_S
from tests.support.ports import free_ports


class BrokerChild:
    """`python -m broker` on a port of its own (or the given one) of 127.0.0.1; or a `module` that
    starts one, with arguments of its own."""

    def __init__(
        self,
        data_dir: Path,
        properties: Mapping[str, str] | None = None,
        port: int = 0,
        arguments: tuple[str, ...] = (),
        module: str = "broker",
    ) -> None:
        given = dict(properties or {})
        overrides = [f"--override={name}={value}" for name, value in given.items()]
        if "log.dirs" not in given:
            overrides.append(f"--data-dir={data_dir}")
        self.data_dir = data_dir
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close
        self._log = b""
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", *module.split(), "--exit-with-parent"),
                f"--listen=127.0.0.1:{port or free_ports(1)[0]}",
                *overrides,
                *arguments,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
        )
        assert self.process.stdout is not None
        self.ready_line = self.process.stdout.readline().decode()
        if not self.ready_line:
            code = self.wait()
            raise RuntimeError(f"the broker did not start: exit code {code}, {self.stderr()}")
        self.host, _, port_text = self.ready_line.split()[1].rpartition(":")
        self.port = int(port_text)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def stderr(self) -> str:
        """What it has logged so far, or until its end."""
        if not self._stderr.closed:
            self._stderr.seek(0)
            self._log = self._stderr.read()
        return self._log.decode()

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.wait()

    def wait(self) -> int:
        try:
            return self.process.wait(EVENT_S)
        finally:
            self.close()

    def close(self) -> None:
        """Kills what is left and closes our ends; safe to call twice."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(EVENT_S)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        self.stderr()
        self._stderr.close()

    def __enter__(self) -> "BrokerChild":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def cpu_s(self) -> float:
        """What it has used of the processors so far, whatever else these have to do."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident_bytes(self) -> int:
        with open(f"/proc/{self.process.pid}/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class RawClient:
    """One connection; every request in the version the test says."""

    def __init__(self, host: str, port: int, timeout_s: float = EVENT_S) -> None:
        self.socket = socket.create_connection((host, port), timeout=timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation_id = 0

    def __enter__(self) -> "RawClient":
        return self

    def __exit__(self, *exception: object) -> None:
        self.socket.close()

    def send_body(self, api_key: int, version: int, body: bytes) -> int:
        self._correlation_id += 1
        header = encode_request_header(api_key, version, self._correlation_id, "raw")
        frame = header + body
        self.socket.sendall(struct.pack(">i", len(frame)) + frame)
        return self._correlation_id

    def receive_body(self, api_key: int, version: int) -> memoryview:
        (size_bytes,) = struct.unpack(">i", self._exactly(4))
        correlation_id, body = decode_response_header(
            memoryview(self._exactly(size_bytes)), api_key, version
        )
        assert correlation_id <= self._correlation_id
        return body

    def call(self, request: Any, response_class: Any, version: int) -> Any:
        """A request of kafka.protocol, and its answer."""
        self.send_body(request.API_KEY, version, bytes(request.encode(version=version)))
        body = self.receive_body(request.API_KEY, version)
        # kafka-python's ApiVersionsResponse wants a stream, all others a view.
        return response_class.decode(
            bytes(body) if request.API_KEY == API_VERSIONS_KEY else body, version=version
        )

    def metadata_of(self, topic: str) -> Any:
        """The topic, as the answer to a Metadata request has it."""
        wanted = MetadataRequest.MetadataRequestTopic(name=topic)
        request = MetadataRequest(topics=[wanted], allow_auto_topic_creation=False)
        (found,) = self.call(request, MetadataResponse, 12).topics
        return found

    def produce(
        self,
        topic: str,
        partition: int,
        batch: bytes,
        *,
        version: int = 9,
        acks: int = -1,
        transactional_id: str | None = None,
    ) -> ProducedPartition:
        self.send_produce(
            topic, partition, batch, version=version, acks=acks, transactional_id=transactional_id
        )
        return self.receive_produced(version)

    def send_produce(
        self,
        topic: str,
        partition: int,
        batch: bytes,
        *,
        version: int = 9,
        acks: int = -1,
        transactional_id: str | None = None,
        timeout_ms: int = 5000,
    ) -> None:
        parts = [ProducePartition(topic, partition, batch)]
        request = ProduceRequest(version, transactional_id, acks, timeout_ms, parts)
        self.send_body(0, version, b"".join(bytes(p) for p in encode_produce_request(request)))

    def receive_produced(self, version: int = 9) -> ProducedPartition:
        (produced,) = decode_produce_response(self.receive_body(0, version), version).partitions
        return produced

    def fetch(self, request: FetchRequest) -> FetchResponse:
        self.send_fetch(request)
        return self.receive_fetched(request.version)

    def send_fetch(self, request: FetchRequest) -> None:
        self.send_body(1, request.version, bytes(encode_fetch_request(request)))

    def receive_fetched(self, version: int) -> FetchResponse:
        return decode_fetch_response(self.receive_body(1, version), version)

    def _exactly(self, size_bytes: int) -> bytes:
        data = bytearray()
        while len(data) < size_bytes:
            piece = self.socket.recv(size_bytes - len(data))
            if not piece:
                raise EOFError("the broker closed the connection")
            data += piece
        return bytes(data)

    def is_closed_by_broker(self) -> bool:
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True


@contextmanager
def broker_under_test(data_dir: Path, properties: Mapping[str, str] | None = None) -> Iterator[str]:
    """HOST:PORT of a broker: ours as a child, or the one named by KAFKALOG_TEST_BOOTSTRAP.

    With the latter the same tests ask Apache Kafka, and so tell what the right answers are.
    """
    oracle = os.environ.get("KAFKALOG_TEST_BOOTSTRAP")
    if oracle is not None:
        yield oracle
        return
    with BrokerChild(data_dir, properties) as child:
        yield child.address
        log = child.stderr()
        assert "level=error" not in log, log
        assert child.stop() == 0
