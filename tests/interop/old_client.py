"""An old client in its own process: its package shadows the one that the tests use.

    python old_client.py CLIENT write|read BOOTSTRAP TOPIC CODEC API_VERSION < REQUEST > ANSWER

Rows are [key, value] as JSON, in Latin-1, or null; `read` is given how many to wait for, and
answers [offset, key, value] of each. Not a test: `test_old_clients` runs it.
"""

import json
import sys
from collections.abc import Callable


def text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("latin-1")


def data_of(row: list[str | None]) -> list[bytes | None]:
    return [None if part is None else part.encode("latin-1") for part in row]


class KafkaPython:
    """kafka-python 1.4.7."""

    def __init__(
        self, bootstrap: str, topic: str, codec: str, api_version: tuple[int, ...]
    ) -> None:
        self.topic = topic
        self.options = {"bootstrap_servers": bootstrap, "api_version": api_version}
        self.codec = None if codec == "none" else codec

    def write(self, rows: list[list[bytes | None]]) -> list[int]:
        from kafka import KafkaProducer

        producer = KafkaProducer(
            compression_type=self.codec, linger_ms=50, acks=1, retries=3, **self.options
        )
        futures = [
            producer.send(self.topic, key=key, value=value, partition=0) for key, value in rows
        ]
        offsets = [future.get(timeout=30).offset for future in futures]
        producer.close()
        return offsets

    def read(self, count: int) -> list[tuple[int, bytes | None, bytes | None]]:
        from kafka import KafkaConsumer, TopicPartition

        consumer = KafkaConsumer(group_id=None, consumer_timeout_ms=20_000, **self.options)
        partition = TopicPartition(self.topic, 0)
        consumer.assign([partition])
        consumer.seek(partition, 0)
        found = []
        for message in consumer:
            found.append((message.offset, message.key, message.value))
            if len(found) == count:
                break
        consumer.close()
        return found


class PyKafka:
    """pykafka 2.8.0: message sets of magic 0, Produce and Fetch 0."""

    def __init__(self, bootstrap: str, topic: str, codec: str, _: tuple[int, ...]) -> None:
        from pykafka import KafkaClient
        from pykafka.common import CompressionType

        self.client = KafkaClient(hosts=bootstrap)  # its topics hold it by weak references
        self.topic = self.client.topics[topic]
        self.codec = getattr(CompressionType, codec.upper())

    def write(self, rows: list[list[bytes | None]]) -> list[int]:
        from pykafka.partitioners import BasePartitioner

        class First(BasePartitioner):  # type: ignore[misc]
            def __call__(self, partitions: list[int], key: bytes | None = None) -> int:
                return partitions[0]

        producer = self.topic.get_producer(
            compression=self.codec, partitioner=First(), linger_ms=50, min_queued_messages=50
        )
        with producer:
            for key, value in rows:
                producer.produce(value, partition_key=key)
        return []

    def read(self, count: int) -> list[tuple[int, bytes | None, bytes | None]]:
        consumer = self.topic.get_simple_consumer(consumer_timeout_ms=20_000)
        found = []
        for message in consumer:
            found.append((message.offset, message.partition_key, message.value))
            if len(found) == count:
                break
        consumer.stop()
        return found


CLIENTS: dict[str, Callable[..., KafkaPython | PyKafka]] = {
    "kafka-python": KafkaPython,
    "pykafka": PyKafka,
}


def main() -> None:
    name, action, bootstrap, topic, codec, api_version = sys.argv[1:]
    version = tuple(int(part) for part in api_version.split("."))
    client = CLIENTS[name](bootstrap, topic, codec, version)
    request = json.load(sys.stdin)
    if action == "write":
        json.dump(client.write([data_of(row) for row in request]), sys.stdout)
    else:
        found = client.read(request)
        json.dump([(offset, text(key), text(value)) for offset, key, value in found], sys.stdout)


if __name__ == "__main__":
    main()
