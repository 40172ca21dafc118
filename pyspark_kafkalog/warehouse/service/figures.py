"""What has become of the loads of a service: numbers, kept for as long as it runs. Thread-safe."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pyspark_kafkalog.warehouse.load import LoadResult
from pyspark_kafkalog.warehouse.service.jobs import Job, Key


@dataclass(frozen=True, slots=True)
class LoadFigures:
    """One load. Counts are since the service began; times are seconds since the epoch, None before
    the first. `failed` says whether the last run did, `held` that it, or a topic of it, is tried no
    more. `lag` is in offsets, of the topics whose end is known."""

    name: str
    place: str
    runs: int = 0
    failures: int = 0
    commits: int = 0
    records: int = 0
    bytes: int = 0
    bad_records: int = 0
    offsets_gone: int = 0
    seconds: float = 0.0
    last_seconds: float | None = None
    last_success: float | None = None
    last_commit: float | None = None
    at_work: bool = False
    failed: bool = False
    held: bool = False
    lag: Mapping[str, int] = field(default_factory=dict)


class Figures:
    """Those of all loads that there are."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loads: dict[Key, LoadFigures] = {}
        self._commits: dict[tuple[str, str], int] = {}

    def take(self, jobs: Mapping[Key, Job]) -> None:
        """These are the loads from now on."""
        with self._lock:
            self._loads = {
                key: replace(self._loads.get(key, LoadFigures(job.name, job.place)), held=False)
                for key, job in jobs.items()
            }

    def all(self) -> list[LoadFigures]:
        with self._lock:
            return list(self._loads.values())

    def commits_into(self, place: str, name: str) -> int:
        """How many runs have committed under this name into the target that is shown so."""
        with self._lock:
            return self._commits.get((place, name), 0)

    def began(self, key: Key) -> None:
        self._change(key, at_work=True)

    def landed(self, key: Key, result: LoadResult, at: float) -> None:
        """What a run, or one of its topics, has committed."""
        with self._lock:
            into = (result.target, result.name)
            self._commits[into] = self._commits.get(into, 0) + (result.commit_id is not None)
            one = self._loads.get(key)
            if one is None or result.commit_id is None:
                return
            self._loads[key] = replace(
                one,
                commits=one.commits + result.commits,
                records=one.records + result.records,
                bytes=one.bytes + result.bytes,
                bad_records=one.bad_records + result.bad_records,
                offsets_gone=one.offsets_gone + sum(gap.offset_count for gap in result.gaps),
                last_commit=at,
            )

    def ended(self, key: Key, seconds: float, failed: bool, is_held: bool, at: float) -> None:
        """A run has ended; `is_held` says whether something of the load is tried no more."""
        with self._lock:
            one = self._loads.get(key)
            if one is None:
                return
            self._loads[key] = replace(
                one,
                runs=one.runs + 1,
                failures=one.failures + failed,
                seconds=one.seconds + seconds,
                last_seconds=seconds,
                last_success=one.last_success if failed else at,
                at_work=False,
                failed=failed,
                held=is_held,
            )

    def knows_commit(self, key: Key, at: float) -> None:
        """The target says when its last commit was, which may have been before the service."""
        with self._lock:
            one = self._loads.get(key)
            if one is not None and one.last_commit is None:
                self._loads[key] = replace(one, last_commit=at)

    def lags(self, key: Key, lag: Mapping[str, int]) -> None:
        self._change(key, lag=dict(lag))

    def _change(self, key: Key, **values: object) -> None:
        with self._lock:
            if key in self._loads:
                self._loads[key] = replace(self._loads[key], **values)  # type: ignore[arg-type]
