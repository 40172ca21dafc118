"""Transactions of librdkafka's over the topic `t` of a cluster, which has PARTITIONS."""

from itertools import count

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.support.cluster import Cluster
from tests.support.patience import EVENT_S, wait_until

PARTITIONS = 3
RECORDS = 15


class Transactions:
    """A producer of librdkafka's, and what it has committed."""

    def __init__(self, cluster: Cluster, transactional_id: str, timeout_ms: int = 60_000) -> None:
        self.committed: list[int] = []
        self._numbers = count()
        self._open: list[int] = []
        self._producer = Producer(
            {
                "bootstrap.servers": ",".join(cluster.bootstrap),
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                "log_level": 0,
            }
        )
        self._producer.init_transactions(EVENT_S)

    def begin(self) -> None:
        self._producer.begin_transaction()
        self._open = []
        self.produce()

    def produce(self) -> None:
        for _ in range(RECORDS):
            number = next(self._numbers)
            self._producer.produce("t", b"%d" % number, partition=number % PARTITIONS)
            self._open.append(number)

    def flush(self) -> None:
        """Its partitions are part of the transaction from here on. librdkafka ends one whose first
        request to add them was lost as if it had begun, and takes the refusal for fatal."""
        assert self._producer.flush(EVENT_S) == 0

    def commit(self) -> None:
        self._producer.commit_transaction(EVENT_S)
        self.committed += self._open

    def abort(self) -> None:
        self._producer.abort_transaction(EVENT_S)


def read_committed(cluster: Cluster, count: int) -> list[int]:
    """The values, at least so many, and whatever follows them."""
    consumer = Consumer(
        {
            "bootstrap.servers": ",".join(cluster.bootstrap),
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    try:
        consumer.assign([TopicPartition("t", index, 0) for index in range(PARTITIONS)])
        values: list[int] = []
        ended: set[int] = set()

        def is_read() -> bool:
            message = consumer.poll(0.1)
            if message is None:
                return False
            value, partition = message.value(), message.partition()
            assert partition is not None
            if message.error():
                ended.add(partition)
            else:
                ended.discard(partition)
                values.append(int(value or b""))
            return len(ended) == PARTITIONS and len(values) >= count

        wait_until(is_read, lambda: f"{len(values)} of {count}", pause_s=0)
        return values
    finally:
        consumer.close()
