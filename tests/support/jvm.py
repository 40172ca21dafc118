"""JVMs that live for a minute: compiled quickly, with the classes that others of their kind loaded.

Loading and verifying classes is half of what such a JVM does. Each kind has an archive of its own
in the peers' folder (class data sharing, JEP 350): `python -m tests.support.class_archives` makes
them. Without it, and where jars or Java are others than its own, a JVM loads its classes itself.
"""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PEERS = Path(os.environ.get("KAFKALOG_PEERS", ROOT / ".peers")).resolve()

SHORT_LIVED = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Compiling for speed and collecting garbage in parallel would take longer than that saves."""


def archive_of(kind: str) -> Path:
    """Where the classes are of the JVMs that run one of the peers, or spark-VERSION."""
    return PEERS / "classes" / f"{kind}.jsa"


def short_lived(kind: str) -> tuple[str, ...]:
    """Java's options for a JVM of this kind."""
    archive = archive_of(kind)
    if not archive.exists():
        return SHORT_LIVED
    # Without a word where jars or Java are others.
    return (*SHORT_LIVED, f"-XX:SharedArchiveFile={archive}", "-Xlog:cds=off,cds+dynamic=off")


def peer_java(peer: str, *options: str) -> list[str]:
    """The command for one of the peers, to be followed by a main class and its arguments."""
    return ["java", *short_lived(peer), *options, "-cp", f"{PEERS}/{peer}/*"]
