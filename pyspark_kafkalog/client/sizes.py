"""How many bytes of the log an offset takes: a look at the batches where a read goes on.

Fetches a little from many partitions at once and reads the headers of what comes, which needs no
right that reading itself does not need, and sees what lies ahead rather than a mean of the whole
log. A broker sends what fits into SAMPLE_BYTES, at least one batch: partitions that are asked for
late get no answer.

Blocking; one thread at a time. An estimate is not worth an error: what is not told is left out.
"""

from collections import defaultdict
from collections.abc import Mapping

from kafka.errors import KafkaError
from kafka.structs import TopicPartition

from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.client.connection import Connection
from pyspark_kafkalog.client.deadline import Deadline
from pyspark_kafkalog.client.fetch_state import whole_batches
from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.protocol import fetch

SAMPLE_BYTES = 1 << 20
_LEAST_BYTES = 64 << 10
_MIN_VERSION = 4
_TIMEOUT_MS = 5_000


def sample_sizes(
    cluster: Cluster, positions: Mapping[TopicPartition, int]
) -> dict[TopicPartition, float]:
    """Bytes for each offset from `positions` on, where leaders say; the first ones are preferred.

    Takes 5 s at most.
    """
    deadline = Deadline(min(_TIMEOUT_MS, cluster.config.request_timeout_ms))
    by_leader: dict[Connection, list[TopicPartition]] = defaultdict(list)
    found: dict[TopicPartition, float] = {}
    try:
        for topic_partition in positions:
            by_leader[cluster.leader(topic_partition, deadline)].append(topic_partition)
        for connection, partitions in by_leader.items():
            found |= _sample(connection, partitions, positions, deadline)
    except (KafkaError, KafkalogError):
        pass  # A read will meet it, and say it.
    return found


def _sample(
    connection: Connection,
    partitions: list[TopicPartition],
    positions: Mapping[TopicPartition, int],
    deadline: Deadline,
) -> dict[TopicPartition, float]:
    version = connection.version(fetch.API_KEY, fetch.LAST_FROM_LEADERS, _MIN_VERSION)
    most_bytes = max(_LEAST_BYTES, SAMPLE_BYTES // len(partitions))
    asks = [
        fetch.FetchPartition(each.topic, each.partition, positions[each], most_bytes)
        for each in partitions
    ]
    request = fetch.FetchRequest(version, 0, 0, asks, SAMPLE_BYTES)
    sent = connection.send(fetch.API_KEY, version, [fetch.encode_fetch_request(request)], deadline)
    response = fetch.decode_fetch_response(connection.receive(sent, deadline), version)
    found = {}
    for each in response.partitions:
        topic_partition = TopicPartition(each.topic, each.partition)
        if isinstance(each.records, memoryview) and topic_partition in positions:
            whole = whole_batches(each.records, positions[topic_partition])
            if whole.base_offsets:
                # From the first batch's begin, which may lie before the position.
                offsets = whole.next_offset - min(whole.base_offsets[0], positions[topic_partition])
                found[topic_partition] = whole.size_bytes / max(1, offsets)
    return found
