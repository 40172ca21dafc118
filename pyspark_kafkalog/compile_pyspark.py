"""Compiles the modules of PySpark and Py4J in the archives that Spark's Python processes import.

Spark puts `python/lib/pyspark.zip` of its home first on the path of every Python process that it
starts, and Py4J's archive from beside it. They have sources alone, and Python caches nothing that
it imports out of one: each process that plans a stream, and each session's first worker, compiles
PySpark anew, for most of the time that it takes to start.
Compiled modules go beside their sources, as the `.pyc` that zipimport looks for first. They are
not checked against the sources (PEP 552: an archive's times are of no time zone); a Python that did
not make them passes over them to the sources.

Standard library only.
"""

import compileall
import importlib.util
import os
import py_compile
import re
import shutil
import tempfile
import warnings
import zipfile
from pathlib import Path

from pyspark_kafkalog.errors import KafkalogError

_ARCHIVE = Path("python", "lib", "pyspark.zip")
# PySpark's own: two thirds of the modules, and nobody imports them.
_TESTS = re.compile(rf"{re.escape(os.sep)}tests{re.escape(os.sep)}")


class SparkNotFoundError(KafkalogError):
    """There is no Spark where one is looked for; the message says where that is."""


def pyspark_archive() -> Path:
    """That of SPARK_HOME, or of the PySpark that is installed here; raises SparkNotFoundError."""
    if given := os.environ.get("SPARK_HOME"):
        homes = [given]
    else:
        spec = importlib.util.find_spec("pyspark")
        homes = list(spec.submodule_search_locations or ()) if spec else []
    for home in homes:
        if (archive := Path(home, _ARCHIVE)).is_file():
            return archive
    raise SparkNotFoundError(
        f"There is no {_ARCHIVE} in {homes[0] if homes else 'this environment'}: "
        "set SPARK_HOME to where Spark is installed."
    )


def imported_archives() -> list[Path]:
    """PySpark's, and Py4J's beside it; raises SparkNotFoundError."""
    archive = pyspark_archive()
    return [archive, *archive.parent.glob("py4j-*.zip")]


def compile_archive(archive: Path) -> int:
    """Puts the compiled modules into `archive`, in one step; how many there are.

    Not for an archive that processes are importing from: they would find other bytes in it. Raises
    OSError, and zipfile.BadZipFile for what is no archive.
    """
    with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
        modules, made = Path(folder, "modules"), Path(folder, archive.name)
        with zipfile.ZipFile(archive) as source:
            source.extractall(modules)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compileall.compile_dir(
                modules,
                quiet=2,
                rx=_TESTS,
                force=True,
                legacy=True,
                invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
                stripdir=str(modules),
                prependdir=str(archive),
            )
        files = sorted(path for path in modules.rglob("*") if path.is_file())
        with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as target:
            for path in files:
                # What is imported is stored as it is: inflating it took a sixth of a start's time.
                how = zipfile.ZIP_STORED if path.suffix == ".pyc" else zipfile.ZIP_DEFLATED
                target.write(path, path.relative_to(modules), how)
        shutil.copymode(archive, made)
        made.replace(archive)
    return sum(path.suffix == ".pyc" for path in files)
