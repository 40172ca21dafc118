"""confluent-kafka reads a partition from its begin: `python -m benchmarks.consume_load`.

    SERVERS TOPIC RECORDS

Prints the seconds from the assignment to the last record, and the bytes of all values. In a process
of its own, as a user's consumer is.
"""

import sys
import time

from confluent_kafka import Consumer, TopicPartition

_TIMEOUT_S = 60.0
_MESSAGES_AT_ONCE = 10_000
# With a full queue librdkafka waits a second before it fetches again, unless told not to.
_CONFIG = {
    "group.id": "consume-load",
    "enable.auto.commit": False,
    "auto.offset.reset": "earliest",
    "queued.min.messages": 1_000_000,
    "queued.max.messages.kbytes": 256 << 10,
    "fetch.queue.backoff.ms": 0,
}


def run(servers: str, topic: str, records: int) -> tuple[float, int]:
    consumer = Consumer({"bootstrap.servers": servers, **_CONFIG})
    try:
        began = time.perf_counter()
        consumer.assign([TopicPartition(topic, 0, 0)])
        found = size_bytes = 0
        while found < records:
            messages = consumer.consume(min(_MESSAGES_AT_ONCE, records - found), _TIMEOUT_S)
            assert messages, f"{found} records of {records} came"
            for message in messages:
                assert message.error() is None, message.error()
                size_bytes += len(message.value() or b"")
            found += len(messages)
        return time.perf_counter() - began, size_bytes
    finally:
        consumer.close()


if __name__ == "__main__":
    servers, topic, records = sys.argv[1:]
    print(*run(servers, topic, int(records)))
