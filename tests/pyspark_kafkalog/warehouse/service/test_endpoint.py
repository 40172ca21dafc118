"""/healthz is answered, whoever else is connected."""

import socket
import threading
from contextlib import ExitStack

import pytest

from pyspark_kafkalog.warehouse.service.endpoint import endpoint
from pyspark_kafkalog.warehouse.service.figures import Figures
from pyspark_kafkalog.warehouse.service.metrics import LoadCollector
from tests.support.patience import wait_until
from tests.support.serving import fetched


def test_who_asks_byte_by_byte_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark_kafkalog.warehouse.service.endpoint._EXCHANGE_S", 1.0)
    is_over = threading.Event()

    def drip(connection: socket.socket) -> None:
        try:
            while not is_over.wait(0.2):
                connection.send(b"G")
        except OSError:
            pass

    def answers() -> bool:
        try:
            return fetched(f"http://{address}/healthz") == (200, "serving\n")
        except OSError:
            return False

    with ExitStack() as stack:
        collector = LoadCollector(Figures())
        address = stack.enter_context(endpoint("127.0.0.1", 0, collector, lambda: None))
        stack.callback(is_over.set)
        host, _, port = address.partition(":")
        for _ in range(40):
            connection = stack.enter_context(socket.create_connection((host, int(port))))
            threading.Thread(target=drip, args=[connection], daemon=True).start()
        wait_until(answers, "no answer")
