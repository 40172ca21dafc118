"""Topics that are made, given more partitions and deleted while their cluster is harmed."""

import random
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from tests.chaos.workloads import PASSING, Worker
from tests.support.cluster import Cluster
from tests.support.patience import EVENT_S, attempts, wait_until

_MOST = 4
"""That are there at once."""
_REPLICAS = 3
_AGAIN_S = 0.2
_NOT_NOW = (
    *PASSING,
    "BROKER_NOT_AVAILABLE",
    "INVALID_REPLICATION_FACTOR",
    "KAFKA_STORAGE_ERROR",
    "NOT_CONTROLLER",
    "REQUEST_TIMED_OUT",
)
"""Too few brokers are there, or they were lost, or the controller was, in the middle of it."""


class Changing(Worker):
    """Asks for one change after the other, and for each again until it is certain to be done."""

    def __init__(self, cluster: Cluster, chance: random.Random) -> None:
        super().__init__(cluster)
        self.done: Counter[str] = Counter()
        self.asked_again = 0
        self._cluster = cluster
        self._chance = random.Random(chance.random())
        self._admin = AdminClient(self._servers)
        self._topics: dict[str, int] = {}
        """Those that are there, and how many partitions each has."""
        self._deleted: set[str] = set()
        self._asked_twice: set[str] = set()
        """To be made: the first request may be carried out after the topic is deleted."""
        self._number = 0

    def check(self) -> None:
        """Each of the topics takes records in all partitions, whose replicas are alike; there are
        no others."""
        producer = Producer({**self._servers, "linger.ms": 2, "message.timeout.ms": 0})
        for name, count in self._topics.items():
            for partition in range(count):
                producer.produce(name, name.encode(), partition=partition)
        assert producer.flush(EVENT_S) == 0, self._topics
        for name, count in self._topics.items():
            assert len(self._cluster.partitions(name)) == count
            self._cluster.wait_in_sync(name, _REPLICAS)
            self._cluster.wait_equal_logs(name, count)
        gone = self._deleted - self._asked_twice
        assert gone.isdisjoint(self._admin.list_topics(timeout=EVENT_S).topics)
        wait_until(lambda: not self._left(gone), lambda: self._left(gone), pause_s=0.1)

    def _left(self, gone: set[str]) -> list[str]:
        """Logs of topics that are gone."""
        nodes = self._cluster.brokers
        paths = [path for node_id in nodes for path in self._cluster.data_dir(node_id).iterdir()]
        return [str(path) for path in paths if path.name.rpartition("-")[0] in gone]

    def _work(self) -> None:
        kind = self._chance.choice(["grow", "delete"])
        if len(self._topics) < self._chance.randint(1, _MOST):
            kind = "create"
        change: Callable[[], None] = getattr(self, f"_{kind}")
        change()
        self.done[kind] += 1
        self._is_over.wait(self._chance.random())

    def _create(self) -> None:
        name, count = f"chaos-changing-{self._number}", self._chance.randint(1, 3)
        self._number += 1
        asked_again = self.asked_again
        self._insist(
            lambda: self._admin.create_topics([NewTopic(name, count, _REPLICAS)], **self._waits),
            "TOPIC_ALREADY_EXISTS",
        )
        if self.asked_again != asked_again:
            self._asked_twice.add(name)
        self._topics[name] = count

    def _grow(self) -> None:
        name = self._chance.choice([*self._topics])
        count = self._topics[name] + self._chance.randint(1, 2)
        self._insist(
            lambda: self._admin.create_partitions([NewPartitions(name, count)], **self._waits),
            "INVALID_PARTITIONS",
        )
        self._topics[name] = count

    def _delete(self) -> None:
        name = self._chance.choice([*self._topics])
        self._insist(
            lambda: self._admin.delete_topics([name], **self._waits), "UNKNOWN_TOPIC_OR_PART"
        )
        del self._topics[name]
        self._deleted.add(name)

    @property
    def _waits(self) -> Mapping[str, float]:
        return {"operation_timeout": 4.0, "request_timeout": 5.0}

    def _insist(self, ask: Callable[[], Mapping[str, Future[None]]], done: str) -> None:
        """`done`: the error that says so, where an answer was lost."""
        # Also when it is over: only what is certain can be checked.
        for has_asked, _ in enumerate(attempts("an answer", 10 * EVENT_S, _AGAIN_S)):
            try:
                (answer,) = ask().values()
                answer.result(EVENT_S)
                return
            except KafkaException as exception:
                error: KafkaError = exception.args[0]
                if error.name() == done and has_asked:
                    return
                if not error.retriable() and error.name() not in _NOT_NOW:
                    raise
            self.asked_again += 1
            with suppress(KafkaException):  # it asks the same broker, whoever is controller now
                self._admin.list_topics(timeout=1)
