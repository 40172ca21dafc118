"""A producer at work, and what is there in the end."""

import itertools
import threading
import time

from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import OffsetSpec
from kafka.errors import KafkaError

from tests.support.cluster import Cluster
from tests.support.patience import EVENT_S, wait_until


class Producing:
    """A producer with acks=all, at work in a thread until `stop`, or an error."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        partitions: int = 1,
        is_idempotent: bool = True,
        codec: str | None = None,
    ) -> None:
        self.is_idempotent = is_idempotent
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        self.longest_s = 0.0
        self.errors: list[KafkaError] = []
        self._producer = KafkaProducer(
            bootstrap_servers=cluster.bootstrap,
            acks="all",
            enable_idempotence=is_idempotent,
            compression_type=codec,
            retry_backoff_ms=50,
            request_timeout_ms=5000,
            delivery_timeout_ms=int(EVENT_S * 1000),
        )
        self._topic = topic
        self._partitions = partitions
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Producing":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()
        self._producer.close()

    def wait_for(self, more: int = 20) -> None:
        """Until so many more are acknowledged."""
        enough = len(self.acknowledged) + more
        wait_until(lambda: self.errors or len(self.acknowledged) >= enough, "more is acknowledged")
        assert not self.errors

    def _run(self) -> None:
        for number in itertools.count():
            if self._is_over.is_set():
                return
            value = b"%d" % number
            began_s = time.monotonic()
            try:
                told = self._producer.send(
                    self._topic, value, partition=number % self._partitions
                ).get(EVENT_S)
            except KafkaError as error:
                self.errors.append(error)
                return
            self.acknowledged[told.partition, told.offset] = value
            self.longest_s = max(self.longest_s, time.monotonic() - began_s)


def read(cluster: Cluster, topic: str, partitions: int = 1) -> dict[tuple[int, int], bytes]:
    """Everything committed, by partition and offset."""
    ends = cluster.offsets(topic, OffsetSpec.LATEST, partitions)
    consumer = KafkaConsumer(
        bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest", enable_auto_commit=False
    )
    try:
        consumer.assign([*ends])
        found: dict[tuple[int, int], bytes] = {}
        while any(consumer.position(place) < end for place, end in ends.items()):
            for records in consumer.poll(1000).values():
                found |= {(each.partition, each.offset): each.value for each in records}
        return found
    finally:
        consumer.close()


def check(cluster: Cluster, producing: Producing, topic: str, partitions: int = 1) -> None:
    """Nothing lost, nothing doubled by who is idempotent, nothing out of order, and all replicas
    alike."""
    found = read(cluster, topic, partitions)
    assert producing.acknowledged.items() <= found.items()
    assert not producing.errors
    for partition in range(partitions):
        values = [int(found[place]) for place in sorted(found) if place[0] == partition]
        assert values == sorted(set(values) if producing.is_idempotent else values)
    cluster.wait_in_sync(topic)
    cluster.wait_equal_logs(topic, partitions)
