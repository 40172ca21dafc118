"""Makes the archives of classes that tests' JVMs share.

python -m tests.support.class_archives [spark] [kafka]

One JVM of each kind is run for what most tests do with it, and leaves what it has loaded. A minute
of a processor's time; each JVM that finds its archive takes a third to half of its start.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from tests.support.jvm import ROOT, SHORT_LIVED, archive_of
from tests.support.kafka_member import KafkaMember
from tests.support.kafka_server import KafkaServer
from tests.support.zookeeper import ZooKeeperServer

SPARK_TESTS = (
    "tests/spark/test_batch_write.py::test_all_columns_of_a_row_arrive",
    "tests/spark/test_stream_read.py::test_available_now_reads_what_is_new_each_time_and_every_offset_once",
    "tests/spark/test_load.py::test_each_load_takes_what_is_new",
)


@contextmanager
def left_by(name: str) -> Iterator[tuple[str, ...]]:
    """Java's options for the one that leaves the archive of `name` when it ends."""
    archive = archive_of(name)
    archive.parent.mkdir(exist_ok=True)
    made = archive.with_suffix(".new")
    made.unlink(missing_ok=True)
    yield (*SHORT_LIVED, f"-XX:ArchiveClassesAtExit={made}", "-Xlog:cds=off,cds+dynamic=off")
    made.rename(archive)


def spark() -> None:
    with left_by(f"spark-{version('pyspark')}") as options:
        environment = {**os.environ, "SPARK_SUBMIT_OPTS": " ".join(options)}
        command = [sys.executable, "-m", "pytest", "-q", "-s", "-m", "spark", *SPARK_TESTS]
        # Its output ends with the JVM, which outlives the command.
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stdout + done.stderr)


def kafka() -> None:
    with tempfile.TemporaryDirectory() as folder, left_by("kafka") as options:
        server = KafkaServer(Path(folder), java_options=options)
        server.start()
        server.stop()


def kafka_with_zookeeper() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        left_by("zookeeper") as of_zookeeper,
        ZooKeeperServer(java_options=of_zookeeper) as zookeeper,
    ):
        properties = {"broker.id": "1", "zookeeper.connect": zookeeper.address}
        with left_by("kafka-zk") as options:
            member = KafkaMember(Path(folder, "data"), properties, java_options=options)
            member.wait()
            member.stop()
        zookeeper.stop()


def main(names: Sequence[str]) -> None:
    kinds = {"spark": [spark], "kafka": [kafka, kafka_with_zookeeper]}
    with ThreadPoolExecutor(2) as pool:
        for made in [pool.submit(kind) for name in names for kind in kinds[name]]:
            made.result()


if __name__ == "__main__":
    main(sys.argv[1:])
