"""A broker in the test's own process, for tests that reach under it."""

import asyncio
import threading
import time

import pytest

from broker.config import BrokerConfig
from broker.network.loop import new_event_loop
from broker.server import BrokerServer
from tests.broker.child import RawClient


class ServedHere:
    """Starts a broker in a thread, once; `stop` is harmless when called again."""

    def __init__(self, data_dir) -> None:
        self._data_dir = data_dir
        self._loop = new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self.server: BrokerServer | None = None
        self._client: RawClient | None = None

    def __call__(self, **properties: str) -> RawClient:
        given = {"log.dirs": str(self._data_dir), "listeners": "PLAINTEXT://127.0.0.1:0"}
        self.server = BrokerServer(BrokerConfig.from_properties(given | properties), self._loop)
        endpoint = self.server.open()
        self._thread.start()
        self._loop.call_soon_threadsafe(self.server.start)
        for _ in range(500):
            try:
                self._client = RawClient(endpoint.host, endpoint.port, timeout_s=20)
            except ConnectionRefusedError:
                time.sleep(0.01)
                continue
            return self._client
        raise AssertionError("the broker does not listen")

    def stop(self) -> None:
        if self.server is not None:
            asyncio.run_coroutine_threadsafe(self.server.stop(), self._loop).result(20)
            self.server = None
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
        if self._client is not None:
            self._client.socket.close()


@pytest.fixture
def serve(tmp_path):
    """serve(**properties) -> RawClient of a broker in a thread of the test's own process."""
    served = ServedHere(tmp_path)
    yield served
    served.stop()
