"""`kafkalog serve` at work: begins loads when they are due, each in a thread, until it is stopped.

    agenda     which load is next, and when one that failed is tried again (agenda.py)
    jobs       what is to be done, read anew on `reload` (jobs.py)
    engine     the processes that all loads share (engines/local.py)
    maintainer keeps targets in order beside the loads (maintainer.py)
    figures    what has become of the loads (figures.py)

One thread, that of `run`, decides; all others send it messages, signal handlers too. What a load
raises is its own. Stopped, it begins nothing more and lets each load make the commit at work;
ended, it kills the processes that land, which leaves targets as any kill does.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from enum import Enum
from queue import Empty, SimpleQueue
from random import Random
from typing import TypeAlias

from pyspark_kafkalog.errors import KafkalogError, counted, sentence
from pyspark_kafkalog.warehouse.each_topic import TopicLoad, load_each
from pyspark_kafkalog.warehouse.engines.local import LocalEngine
from pyspark_kafkalog.warehouse.load import LoadResult, run_load
from pyspark_kafkalog.warehouse.service.agenda import Agenda, Ended
from pyspark_kafkalog.warehouse.service.failures import how_ended
from pyspark_kafkalog.warehouse.service.figures import Figures
from pyspark_kafkalog.warehouse.service.jobs import Job, Jobs, Key
from pyspark_kafkalog.warehouse.service.maintainer import Maintainer
from pyspark_kafkalog.warehouse.service.schedule import Moment

MOST_AT_ONCE = 4

_TURN_S = 5.0
"""How long it may wait for nothing: the wall's clock may be set, and /healthz asks for turns."""
_IDLE_S = 60.0
_END_S = 5.0

_log = logging.getLogger(__name__)


class Asked(Enum):
    """What others want of the service."""

    STOP = "stop"
    """The first time; to end, from the second one on."""
    RELOAD = "reload"


@dataclass(frozen=True, slots=True)
class Said:
    """Something that the service has to tell. A load's `result`, of a `topic` where it has many;
    or what is wrong, `is_error`."""

    text: str
    job: Job | None = None
    topic: str | None = None
    result: LoadResult | None = None
    is_error: bool = False


@dataclass(slots=True)
class _Run:
    """A run of a job, and how it ended."""

    job: Job
    began_s: float
    how: Ended = Ended.WELL
    errors: int = 0


_Message: TypeAlias = Asked | _Run


class Service:
    """Runs what `read` says; tells by `tell`, from any thread."""

    def __init__(
        self,
        read: Callable[[], Jobs],
        tell: Callable[[Said], None],
        workers: int | None = None,
        most_at_once: int | None = None,
    ) -> None:
        jobs = read()
        self._read = read
        self._tell = tell
        at_once = most_at_once or jobs.most_at_once or MOST_AT_ONCE
        self.figures = Figures()
        self._agenda = Agenda(at_once, Random())
        self._engine = LocalEngine(workers or jobs.workers, at_once)
        self._messages: SimpleQueue[_Message] = SimpleQueue()
        self._stopping = threading.Event()
        self._jobs: dict[Key, Job] = {}
        self._held_topics: dict[Key, set[str]] = {}
        self._threads: set[threading.Thread] = set()
        self._turned_s = time.monotonic()
        self._maintainer = Maintainer(
            lambda: list(self._jobs.values()),
            lambda text, job, is_error: tell(Said(text, job, is_error=is_error)),
            self._stopping,
        )
        self._take(jobs)

    @property
    def jobs(self) -> dict[Key, Job]:
        """The loads that there are now."""
        return self._jobs

    def ask(self, what: Asked) -> None:
        """From any thread or signal handler."""
        self._messages.put(what)

    def unwell(self) -> str | None:
        """Why it does not do its work; None when it does. A load that fails is no reason."""
        if self._stopping.is_set():
            return "stopping"
        late_s = time.monotonic() - self._turned_s - _TURN_S
        return f"no turn for {late_s:.0f} s" if late_s > _TURN_S else None

    def run(self) -> bool:
        """Works until it is asked to stop; False when it was asked twice, and has ended at once."""
        self._maintainer.start()
        with self._engine:
            while True:
                self._turned_s = time.monotonic()
                if not self._stopping.is_set():
                    self._begin()
                elif not self._agenda.at_work():
                    self._maintainer.join(_END_S)
                    return True
                if not self._turn():
                    self._end()
                    return False
                self._engine.end_idle(_IDLE_S)

    def _turn(self) -> bool:
        """Waits for a message, or until something is due; False when all is to end."""
        stopping = self._stopping.is_set()
        wait_s = _TURN_S if stopping else self._agenda.wait_s(_now(), _TURN_S)
        try:
            message = self._messages.get(timeout=wait_s)
        except Empty:
            return True
        if isinstance(message, _Run):
            self._ended(message)
        elif message is Asked.RELOAD:
            self._reload()
        elif stopping:
            return False
        else:
            self._stopping.set()
            if at_work := self._agenda.at_work():
                self._tell(
                    Said(f"Stopping {counted(len(at_work), 'load')} after the commit at work.")
                )
        return True

    def _take(self, jobs: Jobs) -> None:
        self._jobs = {job.key: job for job in jobs.jobs}
        self._held_topics = {}
        self.figures.take(self._jobs)
        loads = {key: (job.schedule, job.retry) for key, job in self._jobs.items()}
        self._agenda.take(loads, _now())  # type: ignore[arg-type]

    def _reload(self) -> None:
        try:
            jobs = self._read()
        except Exception as error:
            if not isinstance(error, KafkalogError | OSError):
                _log.warning("The file of loads was not read.", exc_info=True)
            text = f"{sentence(error)}\nThe loads stay as they were."
            self._tell(Said(text, is_error=True))
            return
        self._take(jobs)
        self._tell(Said(f"Read anew: {counted(len(jobs.jobs), 'load')}."))

    def _begin(self) -> None:
        for key in self._agenda.begin(_now()):
            job = self._jobs[key]  # type: ignore[index]
            self.figures.began(job.key)
            run = _Run(job, time.monotonic())
            thread = threading.Thread(
                target=self._run, args=[run], name=f"load {job.name}", daemon=True
            )
            self._threads.add(thread)
            thread.start()

    def _run(self, run: _Run) -> None:
        try:
            if run.job.is_for_each_topic:
                self._load_each(run)
            else:
                result = run_load(self._engine, run.job.wanted(), stop=self._stopping.is_set)
                self._landed(run.job, result)
        except Exception as error:
            self._failed(run, error)
        finally:
            self._threads.discard(threading.current_thread())
            self._messages.put(run)

    def _load_each(self, run: _Run) -> None:
        job = run.job
        held = self._held_topics.setdefault(job.key, set())

        def told(one: TopicLoad) -> None:
            if one.error is not None:
                if how_ended(one.error) is Ended.WILL_STAY:
                    held.add(one.topic)
                self._failed(run, one.error, one.topic)
            elif one.result is not None:
                self._landed(job, one.result, one.topic)

        without = frozenset(held)
        stop = self._stopping.is_set
        load_each(lambda _: self._engine, job.each(), job.at_once, told, without, stop)

    def _landed(self, job: Job, result: LoadResult, topic: str | None = None) -> None:
        self.figures.landed(job.key, result, time.time())
        if result.commit_id is not None:
            records = counted(result.records, "record")
            text = f"{_what(job, topic)}: {records} in commit {result.commit_id}."
            self._tell(Said(text, job, topic, result))

    def _failed(self, run: _Run, error: Exception, topic: str | None = None) -> None:
        if self._stopping.is_set() and run.how is Ended.WELL:
            run.how = Ended.STOPPED
        # What stays of one topic keeps no other one of its load from being tried again.
        elif topic is None:
            run.how = how_ended(error)
        elif how_ended(error) is Ended.MAY_PASS:
            run.how = Ended.MAY_PASS
        if not isinstance(error, KafkalogError | OSError):
            _log.warning("%s", _what(run.job, topic), exc_info=error)
        run.errors += 1
        self._tell(
            Said(f"{_what(run.job, topic)}: {sentence(error)}", run.job, topic, is_error=True)
        )

    def _ended(self, run: _Run) -> None:
        key, now = run.job.key, _now()
        wait_s = self._agenda.end(key, run.how, now)
        is_held = key in self._agenda.held()
        seconds = time.monotonic() - run.began_s
        holds = is_held or bool(self._held_topics.get(key))
        self.figures.ended(key, seconds, bool(run.errors), holds, time.time())
        if is_held:
            text = f"{_what(run.job)} is held until the loads are read anew (SIGHUP)."
            self._tell(Said(text, run.job, is_error=True))
        elif wait_s is not None and not self._stopping.is_set():
            text = f"{_what(run.job)} is tried again in {wait_s:.1f} s."
            self._tell(Said(text, run.job, is_error=True))

    def _end(self) -> None:
        """At once: loads at work fail, drop what they have staged, and have a moment for that."""
        self._stopping.set()
        self._engine.kill()
        until_s = time.monotonic() + _END_S
        for thread in list(self._threads):
            thread.join(max(0.0, until_s - time.monotonic()))


def _now() -> Moment:
    return Moment(time.monotonic(), datetime.now(timezone.utc))


def _what(job: Job, topic: str | None = None) -> str:
    return f"load {job.name} into {job.place}" + (f", topic {topic}" if topic else "")
