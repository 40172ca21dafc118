"""What compaction costs the broker's loop: latency of produce requests beside a cleaning.

    python -m benchmarks.cleaner_latency [MEGABYTES]

Fills a compacted topic, then measures single produce requests to another topic, one in flight: with
the cleaner off, with it in its own process (as it is), and with its work in a thread of the broker.
"""

import os
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

from kafka.protocol.admin import CreateTopicsRequest, CreateTopicsResponse

from tests.support.broker_child import BrokerChild, RawClient
from tests.support.records import batch_of

DISTINCT_KEYS = 100_000
BATCH_RECORDS = 5_000
PROPERTIES = {"log.cleaner.min.cleanable.ratio": "0.01", "log.cleaner.backoff.ms": "100"}
SECONDS_OFF = 10
IN_THREAD = """
import contextlib
import broker.log.manager as manager
from broker.log.cleaner import Cleaner
from broker.log.files import DiskFiles
class Worker:
    def __init__(self, settings):
        self.settings = settings
    def clean(self, job):
        return Cleaner(self.settings, DiskFiles()).clean(job)
    def kill(self):
        pass
    def close(self):
        pass
defaults = list(manager.LogManager.__init__.__defaults__)
manager.LogManager.__init__.__defaults__ = (*defaults[:-1], Worker)
"""


def create(client: RawClient, name: str, configs: dict[str, str]) -> None:
    topic = CreateTopicsRequest.CreatableTopic(
        name=name,
        num_partitions=1,
        replication_factor=1,
        assignments=[],
        configs=[
            CreateTopicsRequest.CreatableTopic.CreatableTopicConfig(name=key, value=value)
            for key, value in configs.items()
        ],
    )
    request = CreateTopicsRequest(topics=[topic], timeout_ms=5000, validate_only=False)
    answer = client.call(request, CreateTopicsResponse, 4)
    assert not answer.topics[0].error_code, answer


def fill(directory: Path, megabytes: int) -> None:
    with BrokerChild(directory, PROPERTIES | {"log.cleaner.enable": "false"}) as broker:
        with RawClient(broker.host, broker.port) as client:
            create(client, "compacted", {"cleanup.policy": "compact", "segment.bytes": "20000000"})
            create(client, "other", {})
            sent = number = 0
            while sent < megabytes << 20:
                rows = [
                    (b"key-%06d" % ((number + n) * 7919 % DISTINCT_KEYS), bytes(100))
                    for n in range(BATCH_RECORDS)
                ]
                records = batch_of(rows)
                assert not client.produce("compacted", 0, records).error_code
                sent += len(records)
                number += BATCH_RECORDS
        assert broker.stop() == 0


def measure(directory: Path, enabled: bool) -> str:
    with BrokerChild(
        directory, PROPERTIES | {"log.cleaner.enable": str(enabled).lower()}
    ) as broker:
        latencies = []
        small = batch_of(1)
        with RawClient(broker.host, broker.port) as client:
            until = time.monotonic() + (SECONDS_OFF if not enabled else 300)
            while time.monotonic() < until:
                started = time.perf_counter()
                assert not client.produce("other", 0, small).error_code
                latencies.append(time.perf_counter() - started)
                if len(latencies) % 200 == 0 and enabled and "log.cleaned" in broker.stderr():
                    break
        log = broker.stderr()
        broker.stop()
    latencies.sort()
    p99 = latencies[len(latencies) * 99 // 100]
    cleaned = re.search(r"bytes_read=\d+ .*duration_ms=\d+", log)
    return (
        f"p50 {statistics.median(latencies) * 1e3:.2f} ms, p99 {p99 * 1e3:.2f} ms, "
        f"max {latencies[-1] * 1e3:.1f} ms over {len(latencies)} requests; "
        f"{cleaned.group() if cleaned else 'no cleaning'}"
    )


def main() -> None:
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    for mode in ("off", "process", "thread"):
        with tempfile.TemporaryDirectory() as directory, tempfile.TemporaryDirectory() as patch:
            fill(Path(directory), megabytes)
            path = os.environ.get("PYTHONPATH", "")
            if mode == "thread":
                Path(patch, "sitecustomize.py").write_text(IN_THREAD, encoding="utf-8")
                os.environ["PYTHONPATH"] = os.pathsep.join([patch, path])
            try:
                print(f"{mode:8} {measure(Path(directory), mode != 'off')}", flush=True)
            finally:
                os.environ["PYTHONPATH"] = path


if __name__ == "__main__":
    main()
