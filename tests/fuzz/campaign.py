"""A long run of the fuzzers, guided by coverage (atheris, libFuzzer): `make fuzz`.

`python -m tests.fuzz.campaign` runs every target for its share of KAFKALOG_FUZZ_SECONDS (default:
600), each in a process of its own, from the seeds of the tree and what earlier runs found
(build/fuzz). A finding ends the run with exit code 1; its input lies in build/fuzz, and
`python -m tests.fuzz.campaign TARGET FILE` replays it. Needs the extra `fuzz`.
"""

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["broker", "pyspark_kafkalog", "kafka.protocol"]):
    from tests.fuzz import corpus, target

_WORK = Path("build/fuzz")
# Each share of the time.
_TARGETS = {"frames": 0.5, "batches": 0.3, "directories": 0.2}
_FRAMES_PER_BROKER = 5_000
_MOST_MEMORY_MB = 1024
_SLOWEST_S = 20


class Frames:
    """Requests to a broker that is stopped and opened again now and then."""

    def __init__(self) -> None:
        self._broker = target.BrokerTarget()
        self._count = 0

    def __call__(self, data: bytes) -> None:
        self._broker.feed(data)
        self._count += 1
        if self._count % _FRAMES_PER_BROKER == 0:
            self._broker.check_kept()
            self._broker.restart()


class Batches:
    """Everything that looks at record batches; now and then the log itself."""

    def __init__(self) -> None:
        self._broker = target.BrokerTarget()
        self._count = 0

    def __call__(self, data: bytes) -> None:
        target.feed_batches(data)
        if data:
            target.feed_decompressors(data[0] % 8, data[1:])
            target.feed_answers(data[0] % 13, data[1:])
        self._broker.feed_records(data)
        self._count += 1
        if self._count % _FRAMES_PER_BROKER == 0:
            self._broker.restart()


def _feed_directory(data: bytes) -> None:
    target.feed_directory(corpus.unpack(data))


def _run(kind: str, arguments: list[str]) -> None:
    logging.disable(logging.CRITICAL)
    makers: dict[str, Callable[[], Callable[[bytes], None]]] = {
        "frames": Frames,
        "batches": Batches,
        "directories": lambda: _feed_directory,
    }
    atheris.Setup([sys.argv[0], *arguments], makers[kind]())
    atheris.Fuzz()


def _campaign(seconds: int) -> int:
    for kind, share in _TARGETS.items():
        found = _WORK / kind
        found.mkdir(parents=True, exist_ok=True)
        arguments = [
            f"-max_total_time={max(1, int(seconds * share))}",
            f"-rss_limit_mb={_MOST_MEMORY_MB}",
            f"-timeout={_SLOWEST_S}",
            "-max_len=4096",
            "-print_final_stats=1",
            f"-artifact_prefix={_WORK}/{kind}-",
            *(str(found), str(corpus.SEEDS / kind)),
        ]
        print(f"fuzzing {kind}", flush=True)
        ended = subprocess.run(
            [sys.executable, "-m", "tests.fuzz.campaign", kind, *arguments], check=False
        )
        if ended.returncode:
            print(f"a finding in {kind}: see {_WORK}/{kind}-*")
            return 1
    return 0


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _run(sys.argv[1], sys.argv[2:])
    else:
        sys.exit(_campaign(int(os.environ.get("KAFKALOG_FUZZ_SECONDS", "600"))))
