"""Keeps the targets of loads in order that say `maintain-every`: one after the other, in a thread
of its own, so that no load waits for it.

A target is maintained when it is first seen, as nobody remembers when that was last, and then so
often. What fails is told, and tried again the next time. It may end at any instant with its
process: maintain.py says what is then.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator

from pyspark_kafkalog.errors import KafkalogError, UnknownTargetError, counted, sentence
from pyspark_kafkalog.warehouse.maintain import MaintainResult, maintain
from pyspark_kafkalog.warehouse.service.jobs import Job
from pyspark_kafkalog.warehouse.topic_places import target_of

_TURN_S = 5.0
"""How long it may be until it sees that loads were read anew."""

_log = logging.getLogger(__name__)


class Maintainer:
    """Works until `stopping` is set; `jobs` gives the loads of now, `tell` gets a text, the job and
    whether it is an error."""

    def __init__(
        self,
        jobs: Callable[[], Iterable[Job]],
        tell: Callable[[str, Job, bool], None],
        stopping: threading.Event,
    ) -> None:
        self._jobs = jobs
        self._tell = tell
        self._stopping = stopping
        self._began_s: dict[str, float] = {}
        self._thread = threading.Thread(target=self._run, name="maintain", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, most_s: float) -> None:
        self._thread.join(most_s)

    def _run(self) -> None:
        while not self._stopping.is_set():
            for job in self._due():
                self._began_s[job.target] = time.monotonic()
                self._maintain(job)
            self._stopping.wait(self._wait_s())

    def _due(self) -> list[Job]:
        """One job for each target."""
        due = {job.target: job for job in self._jobs() if self._due_in_s(job) <= 0}
        return list(due.values())

    def _wait_s(self) -> float:
        return max(0.0, min([_TURN_S, *(self._due_in_s(job) for job in self._jobs())]))

    def _due_in_s(self, job: Job) -> float:
        if job.maintain_every_s is None:
            return _TURN_S
        began_s = self._began_s.get(job.target)
        return 0.0 if began_s is None else began_s + job.maintain_every_s - time.monotonic()

    def _maintain(self, job: Job) -> None:
        try:
            targets = list(self._targets(job))
        except Exception as error:
            self._tell_failure(job.place, job, error)
            return
        for place, target in targets:
            if self._stopping.is_set():
                return
            try:
                done = maintain(target, target_file_bytes=job.arguments.get("target_file_bytes"))
            except UnknownTargetError:
                continue  # nothing was loaded yet
            except Exception as error:
                self._tell_failure(place, job, error)
                continue
            if done.compacted_files or done.expired or done.removed:
                self._tell(_told(done), job, False)

    def _tell_failure(self, place: str, job: Job, error: Exception) -> None:
        if not isinstance(error, KafkalogError | OSError):
            _log.warning("%s was not maintained", place, exc_info=error)
        self._tell(f"{place} was not maintained: {sentence(error)}", job, True)

    @staticmethod
    def _targets(job: Job) -> Iterator[tuple[str, str]]:
        """Each with what it is called, without secrets."""
        if not job.is_for_each_topic:
            yield job.place, job.target
            return
        for topic in job.each().topics():
            yield f"{job.place} for topic {topic}", target_of(job.target, topic)


def _told(done: MaintainResult) -> str:
    return (
        f"{done.target}: {counted(done.compacted_files, 'file')} compacted into "
        f"{done.written_files:,}; {counted(done.expired, 'old version')} and "
        f"{counted(len(done.removed), 'path')} removed."
    )
