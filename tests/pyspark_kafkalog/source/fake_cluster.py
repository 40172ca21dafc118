"""A cluster that is a dictionary: what the planning of reads asks, without a broker."""

from types import SimpleNamespace

from kafka.structs import OffsetAndTimestamp

from pyspark_kafkalog.errors import UnknownTopicError
from pyspark_kafkalog.source.offsets import EARLIEST, LATEST


class FakeCluster:
    """Logs are given as {topic: [(earliest, latest) of each partition]} and may be changed.

    The record at offset n has the time n * 1000. A reader of committed records sees up to
    `stable`, where that says an offset of a partition.
    """

    def __init__(self, **logs):
        self.logs = {name.replace("_", "-"): bounds for name, bounds in logs.items()}
        self.closed = False
        self.topic_ids = {}
        self.config = SimpleNamespace(request_timeout_ms=30_000, isolation_level=0)
        self.stable = {}

    def topics(self, names=None):
        if missing := [name for name in names or () if name not in self.logs]:
            raise UnknownTopicError(f"no topic {missing[0]}")
        wanted = self.logs if names is None else names
        return {name: list(range(len(self.logs[name]))) for name in wanted}

    def topic_id(self, topic):
        return self.topic_ids.get(topic)

    def list_offsets(self, partitions, timestamp, isolation=None):
        if timestamp >= 0:
            return self._offsets_at_time(partitions, timestamp)
        end = {EARLIEST: 0, LATEST: 1}[timestamp]
        for tp in partitions:
            if tp.partition >= len(self.logs.get(tp.topic, ())):
                raise UnknownTopicError(f"no partition {tp.partition} of {tp.topic}")
        found = {tp: self.logs[tp.topic][tp.partition][end] for tp in partitions}
        level = self.config.isolation_level if isolation is None else isolation
        if timestamp == LATEST and level:
            found = {tp: min(offset, self.stable.get(tp, offset)) for tp, offset in found.items()}
        return {tp: OffsetAndTimestamp(offset, -1, -1) for tp, offset in found.items()}

    def _offsets_at_time(self, partitions, timestamp):
        found = {}
        for tp in partitions:
            earliest, latest = self.logs[tp.topic][tp.partition]
            offset = max(earliest, -(-timestamp // 1000))
            if offset < latest:
                found[tp] = OffsetAndTimestamp(offset, offset * 1000, -1)
        return found

    def refresh(self):
        pass

    def close(self):
        self.closed = True
