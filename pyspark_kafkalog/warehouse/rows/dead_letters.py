"""Dead letters: records whose values could not be decoded, sent to a topic as they came.

A letter has the record's key, value and headers, and says in further headers where it came from and
why: `kafkalog.topic`, `kafkalog.partition`, `kafkalog.offset`, `kafkalog.timestamp` (milliseconds)
and `kafkalog.reason`, each as text. Its own time is the clock's, so that retention counts from
the load. Letters are acknowledged before the load commits. They are sent at least once: a task that
Spark runs again, or a load that fails afterwards, sends them again.

A letter that its topic refuses would stop every load. So a topic that is made for letters takes
batches as large as their own topics do, letters are compressed, as the records may have been, and
the client's own bound, max.request.size, does not count. Compaction would lose letters of one key:
a compacted topic takes none.

A task has one thread and one DeadLetters; the producer is made for the first letter.
"""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import TracebackType

import pyarrow as pa
from kafka.errors import BrokerResponseError, TopicAlreadyExistsError
from kafka.structs import TopicPartition

from pyspark_kafkalog.arrow.schema import HEADERS_TYPE
from pyspark_kafkalog.client.admin import create_topic, topic_property
from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.client.producer import Producer
from pyspark_kafkalog.errors import InvalidOptionError, sentence
from pyspark_kafkalog.record.compression import Codec
from pyspark_kafkalog.source.options import SinkOptions
from pyspark_kafkalog.source.partitions import SubscribePattern, Subscription
from pyspark_kafkalog.source.rows_to_records import RowsToRecords

SUFFIX = "-dead-letters"
_LARGEST_REQUEST_BYTES = 100 * 1024 * 1024
"""What brokers take by default (socket.request.max.bytes)."""
_ROOM_BYTES = 64 * 1024
"""For what a letter's headers say."""


class DeadLetters:
    """A context manager: leaving it without an error waits until every letter is acknowledged."""

    def __init__(self, client: ClientConfig, letters_to: str | None) -> None:
        codec = client.compression_type
        self._client = replace(
            client,
            max_request_size=max(client.max_request_size, _LARGEST_REQUEST_BYTES),
            compression_type=Codec.ZSTD if codec is Codec.NONE else codec,
        )
        self._letters_to = letters_to
        self._exits = ExitStack()
        self._producer: Producer | None = None

    def __enter__(self) -> "DeadLetters":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._exits.__exit__(kind, error, traceback)

    def send(self, records: pa.RecordBatch, reasons: Sequence[str]) -> None:
        """Sends records, which have all columns, headers included; not waited for.

        Raises DeliveryError, also for letters that were sent before.
        """
        if self._producer is None:
            self._producer = self._exits.enter_context(Producer(self._client))
        topic = records.column("topic")[0].as_py()
        options = SinkOptions(self._client, dead_letter_topic(topic, self._letters_to))
        letters = RowsToRecords(options, self._producer)
        letters.write(
            pa.RecordBatch.from_arrays(
                [records.column("key"), records.column("value"), with_origin(records, reasons)],
                names=["key", "value", "headers"],
            )
        )
        letters.finish()


def dead_letter_topic(topic: str, letters_to: str | None) -> str:
    """Where the letters of a topic go: its own name and SUFFIX, if no other was given."""
    return topic + SUFFIX if letters_to is None else letters_to


@dataclass(frozen=True, slots=True)
class BesideLetters:
    """A subscription without the topics that take the dead letters of its own topics.

    A pattern leaves them out, as the load that makes them would be the first to match them. Raises
    InvalidOptionError, from the first load on, when they are subscribed by name.
    """

    subscription: Subscription
    letters_to: str | None

    def partitions(self, cluster: Cluster, missing_ok: bool = False) -> list[TopicPartition]:
        found = self.subscription.partitions(cluster, missing_ok)
        topics = {each.topic for each in found}
        letters = topics & {dead_letter_topic(topic, self.letters_to) for topic in topics}
        if isinstance(self.subscription, SubscribePattern):
            # A topic's letters stay what they are when it is deleted.
            own = self.subscription.finds
            bases = {topic.removesuffix(SUFFIX) for topic in topics if topic.endswith(SUFFIX)}
            letters |= topics & {dead_letter_topic(t, self.letters_to) for t in bases if own(t)}
        elif letters:
            raise InvalidOptionError(
                f"the dead letters would go to {min(letters)}, which this load reads: name another "
                "dead_letter_topic, or leave it out of the subscription"
            )
        return [each for each in found if each.topic not in letters]

    def covers(self, topic_partition: TopicPartition) -> bool:
        return self.subscription.covers(topic_partition)


def checked_topic(name: str | None) -> str | None:
    """The name that was given for a topic; raises InvalidOptionError for none at all."""
    if name is not None and not name.strip():
        raise InvalidOptionError("dead_letter_topic is empty: name a topic, or leave it out")
    return name


def make_topics(cluster: Cluster, topics: Iterable[str], letters_to: str | None) -> None:
    """Makes the topics for the letters of `topics`, where they are not there.

    Raises InvalidOptionError for one that is compacted, or that the brokers refuse to make.
    """
    there = cluster.topics(None).keys()
    largest_bytes: dict[str, int] = {}
    for topic in set(topics):
        letters = dead_letter_topic(topic, letters_to)
        if letters in there:
            _check_kept(cluster, letters)
        else:
            # Unknown where the brokers do not tell: their default then.
            largest = int(topic_property(cluster, topic, "max.message.bytes") or 0)
            largest_bytes[letters] = max(largest_bytes.get(letters, 0), largest)
    for letters, largest in sorted(largest_bytes.items()):
        size = min(largest + _ROOM_BYTES, (1 << 31) - 1)
        configs = {"max.message.bytes": str(size)} if largest else {}
        try:
            create_topic(cluster, letters, configs={"cleanup.policy": "delete", **configs})
        except TopicAlreadyExistsError:
            pass  # Another load was faster.
        except BrokerResponseError as error:
            if error.retriable:
                raise
            raise InvalidOptionError(
                f"the topic {letters} for dead letters cannot be made: {sentence(error)}. Make it, "
                "or name another dead_letter_topic (--dead-letter-topic)"
            ) from error


def _check_kept(cluster: Cluster, letters: str) -> None:
    """Raises InvalidOptionError for a topic that would keep one letter of each key."""
    if "compact" in (topic_property(cluster, letters, "cleanup.policy") or ""):
        raise InvalidOptionError(
            f"the dead letters would go to {letters}, which is compacted: of letters with one key "
            "it keeps the last, and it refuses those without. Set its cleanup.policy to delete, or "
            "name another dead_letter_topic"
        )


def with_origin(records: pa.RecordBatch, reasons: Sequence[str]) -> pa.Array:
    """The headers of letters: the records' own, and where and why."""
    times_us = records.column("timestamp").cast(pa.int64()).to_pylist()
    said = {
        **{name: records.column(name).to_pylist() for name in ("topic", "partition", "offset")},
        "timestamp": ["" if time_us is None else time_us // 1000 for time_us in times_us],
        "reason": reasons,
    }
    headers = [
        [
            # A header without a key, which no producer should send, can be sent to no broker.
            *({**header, "key": header["key"] or ""} for header in old or []),
            *({"key": f"kafkalog.{name}", "value": str(said[name][row]).encode()} for name in said),
        ]
        for row, old in enumerate(records.column("headers").to_pylist())
    ]
    return pa.array(headers, HEADERS_TYPE)
