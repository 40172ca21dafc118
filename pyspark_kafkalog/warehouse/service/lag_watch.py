"""How far the loads of a service are behind: where they go on, by their targets, beside the ends of
their topics, by the brokers. Asked now and then in a thread of its own, so that neither loads nor
whoever scrapes waits for it; a target is asked again only when its load has committed.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark_kafkalog.client.cluster import EARLIEST, LATEST, Cluster
from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.source.partitions import offsets_at, topic_ids_of
from pyspark_kafkalog.warehouse.commit import NOWHERE, Position
from pyspark_kafkalog.warehouse.options import LoadOptions
from pyspark_kafkalog.warehouse.service.figures import Figures
from pyspark_kafkalog.warehouse.service.jobs import Job, Key
from pyspark_kafkalog.warehouse.status import load_status, progress_beside
from pyspark_kafkalog.warehouse.targets.target import open_target

_EVERY_S = 15.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Known:
    """Where a load goes on, as of its so many commits."""

    position: Position
    commits: int


class LagWatch:
    """Tells `figures` of the lag of `jobs`."""

    def __init__(self, jobs: Callable[[], Mapping[Key, Job]], figures: Figures) -> None:
        self._jobs = jobs
        self._figures = figures
        self._known: dict[tuple[str, str], _Known] = {}
        self._is_over = threading.Event()

    @contextmanager
    def watching(self) -> Iterator[None]:
        thread = threading.Thread(target=self._watch, name="lag", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._is_over.set()

    def look(self) -> None:
        """Asks once, of all loads."""
        for key, job in list(self._jobs().items()):
            lag: dict[str, int] = {}
            with _left_out(job.name):
                lag = self._lag(job)
            if self._is_over.is_set():
                return
            self._figures.lags(key, lag)

    def _watch(self) -> None:
        while True:
            self.look()
            if self._is_over.wait(_EVERY_S):
                return

    def _lag(self, job: Job) -> dict[str, int]:
        """By topic, of each load that there is for the job."""
        if job.is_for_each_topic:
            each = job.each()
            loads = [each.of(topic) for topic in each.topics()]
        else:
            loads = [job.wanted()]
        found: dict[str, int] = {}
        if not loads:
            return found
        # They differ in topics and targets, not in their brokers.
        with Cluster(loads[0].source.client, fails_fast=True) as cluster:
            for wanted in loads:
                if self._is_over.is_set():
                    break
                with _left_out(wanted.name):
                    found |= self._lag_of(job, wanted, cluster)
        return found

    def _lag_of(self, job: Job, wanted: LoadOptions, cluster: Cluster) -> dict[str, int]:
        position = self._position(job, wanted)
        there = wanted.source.subscription.partitions(cluster, missing_ok=True)
        ids = topic_ids_of(cluster, there)
        begins = offsets_at(cluster, there, EARLIEST)
        ends = offsets_at(cluster, there, LATEST)
        lag: Counter[str] = Counter()
        for row in progress_beside(position, there, begins, ends, ids):
            if row.lag is not None:
                lag[row.topic] += max(0, row.lag)
        return dict(lag)

    def _position(self, job: Job, wanted: LoadOptions) -> Position:
        place = (wanted.target, wanted.name)
        commits = self._figures.commits_into(str(open_target(wanted.target)), wanted.name)
        known = self._known.get(place)
        if known is None or known.commits != commits:
            known = self._known[place] = _Known(self._asked(job, wanted), commits)
        return known.position

    def _asked(self, job: Job, wanted: LoadOptions) -> Position:
        """By the target, which is asked of this load alone: it may have thousands, and refuse to
        say where another one goes on."""
        try:
            (found,) = load_status(wanted.target, wanted.name)
        except InvalidOptionError:
            return NOWHERE  # it has not committed yet
        if found.last is not None:
            self._figures.knows_commit(job.key, found.last.committed_at_ms / 1000)
        return found.position


@contextmanager
def _left_out(name: str) -> Iterator[None]:
    """What cannot be told, of a load or of one of its topics: who is away is told of by the load
    itself."""
    try:
        yield
    except Exception as error:
        _log.debug("The lag of load %s is not known: %s", name, error)
