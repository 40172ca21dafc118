"""Work done by processes of their own in a cluster that is harmed, which are started again whenever
they end: transactions that copy a topic, judged by the checker of the crash tests, and a streaming
query of Spark's whose sink writes exactly once."""

import sys
from pathlib import Path

from tests.chaos.workloads import ONE_IN_FLIGHT, PARTITIONS, TOPIC, Worker
from tests.crash.checker import check, check_copy
from tests.crash.history import read_history
from tests.crash.recorded import RecordedProducer, RecordedReader, commit_start, read_to_end
from tests.crash.supervised import Supervised
from tests.support.cluster import Cluster
from tests.support.patience import EVENT_S, wait_until

SOURCE = "chaos-source"
COPIES = "chaos-copies"
STREAMED = "chaos-streamed"
_GROUP = "chaos-copiers"
_KEYS = 7
_BETWEEN_RECORDS_S = 0.02
_COPIERS = 2
_RECORDS_PER_MICRO_BATCH = "20000"


class Copying(Worker):
    """Sends numbers to a topic, and has two members of a group copy them in transactions."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        super().__init__(cluster)
        self._addresses = ",".join(cluster.bootstrap)
        self._history = directory / "history"
        self._history.mkdir()
        self._count = 0
        self._producer = RecordedProducer(self._history, "feeder", self._addresses, ONE_IN_FLIGHT)
        self._reader = RecordedReader(
            self._history, "reader", self._addresses, {COPIES: PARTITIONS}, "read_committed"
        )
        commit_start(self._history, self._addresses, _GROUP, SOURCE, PARTITIONS)
        self._copiers = [self._copier(f"copier-{number}", directory) for number in range(_COPIERS)]

    @property
    def failures(self) -> int:
        """Copiers that ended by themselves, as their library told them to."""
        return sum(each.failures for each in self._copiers)

    def stop(self) -> None:
        """When all is copied."""
        super().stop()
        self._producer.flush(2 * EVENT_S)
        try:
            while not self._is_copied():
                self._wait_for_more(self._reader.seen.total())
        finally:
            for each in self._copiers:
                each.retire()
            self._reader.stop()

    def check(self) -> None:
        """Each number is there once, each key's in order; nobody saw anything else meanwhile."""
        for topic in (SOURCE, COPIES):
            name = f"end-{topic}"
            read_to_end(self._history, name, self._addresses, topic, PARTITIONS, "read_committed")
        history = read_history(self._history)
        assert [*check(history), *check_copy(history, SOURCE, COPIES)] == []

    def _work(self) -> None:
        key = self._count % _KEYS
        self._producer.send(SOURCE, key % PARTITIONS, f"key {key}", str(self._count))
        self._count += 1
        if self._count % 10 == 0:
            self._revive()
        self._is_over.wait(_BETWEEN_RECORDS_S)

    def _copier(self, name: str, directory: Path) -> Supervised:
        return Supervised(
            name,
            directory / f"{name}.log",
            lambda client: [
                *(sys.executable, "-m", "tests.crash.copier", "confluent-kafka"),
                *(str(self._history), client, self._addresses, _GROUP),
                *(SOURCE, COPIES, name),
            ],
        )

    def _is_copied(self) -> bool:
        return self._reader.seen.total() >= self._count

    def _wait_for_more(self, seen: int) -> None:
        """However much is left: copiers that are started again and again fall behind."""

        def is_more() -> bool:
            self._revive()
            return self._reader.seen.total() > seen

        wait_until(is_more, self._state, 2 * EVENT_S, 0.1)

    def _revive(self) -> None:
        for each in self._copiers:
            each.revive()

    def _state(self) -> str:
        return f"{self._reader.seen} of {self._count} copied, {self.failures} failures"


class Streaming(Worker):
    """A query that copies the topic that is produced to; one that failed is started again."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        super().__init__(cluster)
        self._arguments = [",".join(cluster.bootstrap), TOPIC, STREAMED]
        self._arguments += [str(directory / "checkpoint"), _RECORDS_PER_MICRO_BATCH]
        self._log = directory / "query.log"
        self._query = self._supervised("2 seconds")

    @property
    def failures(self) -> int:
        return self._query.failures

    def stop(self) -> None:
        """When all is copied."""
        super().stop()
        self._query.kill()
        last = self._supervised()
        wait_until(lambda: self._has_ended(last), lambda: f"failures {last.failures}", 4 * EVENT_S)

    def _work(self) -> None:
        self._query.revive()
        self._is_over.wait(1)

    def _supervised(self, *interval: str) -> Supervised:
        program = [sys.executable, "-m", "tests.crash.sink_stream", *self._arguments, *interval]
        return Supervised("query", self._log, lambda _: program)

    def _has_ended(self, query: Supervised) -> bool:
        if query.code == 0:
            return True
        query.revive()
        return False
