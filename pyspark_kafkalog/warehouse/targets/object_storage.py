"""A Parquet target in an object store: S3 and what speaks like it, Google's, Azure's.

`s3://bucket/prefix?NAME=VALUE&...` (also gs://, abfs:// and what else obstore knows): the query's
names are those of obstore's configuration, such as `endpoint` and `region`; credentials are better
left to the environment (AWS_ACCESS_KEY_ID and so on, instance roles), and a secret in the query has
to be a reference such as ${env:NAME}, looked up by each process that opens the store. So the URL
may travel to executors and be shown.

What a directory does by link and rename, an object store does so:
- a commit gets its name by a conditional put (If-None-Match: *), which one loader wins. Where the
  store says "taken" or nothing, the content tells whether it was this one: requests are repeated
  when an answer is lost. A store that ignores the condition is found out when a load begins.
- a file goes into place by a copy within the store; doing so again changes nothing. One copy may
  have 5 GB (S3), ten times what tasks put into a file.
- a stage exists as long as its object `stage` does: made first and deleted first, in one step each.

Tasks upload as they write, PART_BYTES at a time: 15 MiB of memory measured for an open file,
whatever its size (a task has one, with partition columns up to MOST_OPEN_FILES of staged_files.py).
What a killed task had uploaded of a file is no object: the store keeps it until its lifecycle rule
for incomplete multipart uploads removes it. Any thread or process; a store is opened by first use,
so a process may fork before.
"""

import errno
import functools
import os
import re
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.client import HTTPException
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.parse import parse_qsl, urlencode, urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, UnknownConfigurationKeyError
from obstore.store import S3Store, from_url

from pyspark_kafkalog.client.config import Secret
from pyspark_kafkalog.errors import InvalidOptionError, TargetError
from pyspark_kafkalog.warehouse.targets.storage import (
    COMMIT_FILE,
    COMMITS,
    NEWEST,
    STAGED_SUFFIX,
    STAGING,
    is_of_others,
    sequence_of,
    staged_name,
)

if TYPE_CHECKING:
    from obstore.store import ObjectStore

PART_BYTES = 5 * 1024 * 1024
PARTS_AT_ONCE = 3
COPIES_AT_ONCE = 8
# A request that gets no answer is given up after so long, to be repeated for a while.
REQUEST_TIMEOUT_S = 60
RETRIES = 6

# Where obstore looks for S3's credentials, as settings and, with AWS_ before it, in the
# environment; else it asks the machine, and waits for minutes where nobody answers.
_S3_CREDENTIALS = (
    "access_key_id",
    "skip_signature",
    "web_identity_token_file",
    "container_credentials_relative_uri",
    "container_credentials_full_uri",
)
_METADATA_ENDPOINT = "http://169.254.169.254"
_METADATA_TIMEOUT_S = 3

_MARKER = "stage"
_SECRET = re.compile(r"secret|token|password|credential|sas|key$", re.IGNORECASE)
_REFERENCES = re.compile(r"(\$\{[^}]+\})+")
_URL_QUERY = re.compile(r"(\w+://[^\s?\"']+)\?[^\s\"']+")


class ObjectStorage:
    """A target in an object store: the driver's Storage, by puts, conditional puts and copies.

    Raises InvalidOptionError for a URL that names no location in a store.
    """

    advice = (
        "A target in an object store needs a store with conditional puts (If-None-Match), "
        "and credentials that may list, read, write and delete, for the driver and all executors."
    )

    def __init__(self, url: str) -> None:
        self._location = _Location(url)
        self._known_commits: list[str] = []

    def __str__(self) -> str:
        return self._location.shown

    def path_of(self, name: str) -> str:
        return f"{self._location.shown}/{name}"

    def visible_name(self) -> str | None:
        with _as_os_errors():
            for found in self._location.store.list(chunk_size=100):
                for one in found:
                    # The mark of the folder itself has no name below it.
                    if one["path"] and is_of_others(one["path"]):
                        return str(one["path"])
        return None

    def commit_names(self) -> list[str]:
        # Commits are never deleted, so those that are known need not be listed again.
        after = f"{COMMITS}/{self._known_commits[-1]}" if self._known_commits else None
        with _as_os_errors():
            listed = [
                _name(one["path"])
                for found in self._location.store.list(COMMITS, offset=after)
                for one in found
            ]
        # What is not a commit, such as the mark of a folder, may lie behind those to come.
        self._known_commits += sorted(filter(COMMIT_FILE.fullmatch, listed))
        return list(self._known_commits)

    def read_commit(self, name: str) -> bytes:
        with _as_os_errors():
            return bytes(self._location.store.get(f"{COMMITS}/{name}").bytes())

    def create_commit(self, name: str, content: bytes, load_id: str) -> bool:
        try:
            with _as_os_errors():
                self._location.store.put(f"{COMMITS}/{name}", content, mode="create")
        except OSError:
            # It may be there all the same.
            try:
                return self.read_commit(name) == content
            except FileNotFoundError:
                pass
            raise
        return True

    def sync_commits(self) -> None:
        """An object that can be seen is kept."""

    def note_newest(self, sequence: int, load_id: str) -> None:
        with _as_os_errors():
            self._location.store.put(NEWEST, b"%d" % sequence)

    def noted_newest(self) -> int:
        try:
            with _as_os_errors():
                return sequence_of(bytes(self._location.store.get(NEWEST).bytes()))
        except FileNotFoundError:
            return 0

    def make_stage(self, load_id: str) -> str:
        marker = f"{STAGING}/{load_id}/{_MARKER}"
        with _as_os_errors():
            with suppress(AlreadyExistsError):
                self._location.store.put(marker, b"", mode="create")
            try:
                self._location.store.put(marker, b"", mode="create")
            except AlreadyExistsError:
                return self._location.below(f"{STAGING}/{load_id}")
            self._location.store.delete(marker)
        raise OSError(errno.ENOTSUP, "it lets an object be created twice", self._location.shown)

    def sync_stage(self, load_id: str) -> None:
        """An object that can be seen is kept."""

    def has_stage(self, load_id: str) -> bool:
        return self._has(f"{STAGING}/{load_id}/{_MARKER}")

    def stages(self) -> dict[str, float]:
        alive, changed = self._stages()
        return {load_id: changed[load_id] for load_id in sorted(alive)}

    def sweep(self) -> None:
        alive, changed = self._stages()
        with _as_os_errors():
            for load_id in changed.keys() - alive:
                self._delete_below(load_id)

    def stage_path(self, load_id: str) -> str:
        return f"{self._location.shown}/{STAGING}/{load_id}"

    def _stages(self) -> tuple[set[str], dict[str, float]]:
        """The load ids of stages, and when each prefix of one, also of a discarded one, changed."""
        alive: set[str] = set()
        changed: dict[str, float] = {}
        with _as_os_errors():
            for found in self._location.store.list(STAGING):
                for one in found:
                    load_id, _, name = one["path"].removeprefix(f"{STAGING}/").partition("/")
                    when = one["last_modified"].timestamp()
                    changed[load_id] = max(when, changed.get(load_id, when))
                    if name == _MARKER:
                        alive.add(load_id)
        return alive, changed

    def staged_path(self, load_id: str, name: str) -> str:
        return f"{self.stage_path(load_id)}/{staged_name(name)}{STAGED_SUFFIX}"

    def staged_sizes(self, load_id: str, names: Sequence[str]) -> dict[str, int]:
        with _as_os_errors():
            sizes = {
                _name(one["path"]).removesuffix(STAGED_SUFFIX): one["size"]
                for found in self._location.store.list(f"{STAGING}/{load_id}")
                for one in found
            }
        return {name: sizes[staged_name(name)] for name in names if staged_name(name) in sizes}

    def put_in_place(self, load_id: str, names: Sequence[str]) -> list[str]:
        def is_missing(name: str) -> bool:
            staged = f"{STAGING}/{load_id}/{staged_name(name)}{STAGED_SUFFIX}"
            try:
                with _as_os_errors():
                    self._location.store.copy(staged, name)
            except FileNotFoundError:
                return not self._has(name)
            return False

        with ThreadPoolExecutor(COPIES_AT_ONCE) as threads:
            missing = list(threads.map(is_missing, names))
        return [name for name, gone in zip(names, missing, strict=True) if gone]

    def discard_stage(self, load_id: str) -> None:
        with _as_os_errors():
            with suppress(FileNotFoundError):
                self._location.store.delete(f"{STAGING}/{load_id}/{_MARKER}")
            self._delete_below(load_id)

    def _has(self, path: str) -> bool:
        try:
            with _as_os_errors():
                self._location.store.head(path)
        except FileNotFoundError:
            return False
        return True

    def _delete_below(self, load_id: str) -> None:
        """Deletes what is left of a stage. What stays because of an error is found by `stages`."""
        paths = [
            one["path"]
            for found in self._location.store.list(f"{STAGING}/{load_id}")
            for one in found
        ]
        if paths:
            with suppress(FileNotFoundError, BaseError):
                self._location.store.delete(paths)


class ObjectStageFiles:
    """The files of a load's stage in an object store, for its tasks."""

    def __init__(self, url: str) -> None:
        self._location = _Location(url)

    def create(self, name: str) -> "ObjectSink":
        return ObjectSink(self._location, name)

    def write(self, name: str, content: bytes) -> None:
        with _as_os_errors():
            self._location.store.put(name, content)

    def read(self, suffix: str) -> list[bytes]:
        found = []
        with _as_os_errors():
            for some in self._location.store.list():
                for one in some:
                    if one["path"].endswith(suffix):
                        with suppress(FileNotFoundError):
                            found.append(bytes(self._location.store.get(one["path"]).bytes()))
        return found


class ObjectSink:
    """An object that is uploaded in parts; it has its name once all are there."""

    def __init__(self, location: "_Location", name: str) -> None:
        self._location = location
        self._name = name
        self._size_bytes = 0
        with _as_os_errors():
            self._writer = obstore.open_writer(
                location.store, name, buffer_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE
            )
        self.closed = False

    def write(self, content: bytes) -> int:
        with _as_os_errors():
            written = self._writer.write(content)
        self._size_bytes += written
        return written

    def tell(self) -> int:
        return self._size_bytes

    def flush(self) -> None:
        """What fills a part is sent by itself."""

    def complete(self) -> None:
        self.closed = True
        with _as_os_errors():
            self._writer.close()

    def drop(self) -> None:
        if not self.closed:
            # An upload that was begun can be ended only by completing it.
            with suppress(OSError):
                self.complete()
            with suppress(OSError, BaseError):
                self._location.store.delete(self._name)


class _Location:
    """A place in a store by its URL, opened by first use."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._scheme, self._bucket, self._path = parts.scheme, parts.netloc, parts.path.strip("/")
        self.shown = f"{self._scheme}://{self._bucket}/{self._path}".rstrip("/")
        if not self._bucket or ":" in self._bucket.partition("@")[0] or parts.fragment:
            # Without what may be a password.
            raise InvalidOptionError(
                f"a target in an object store is a URL such as s3://BUCKET/PREFIX?region=...; this "
                f"one with the scheme {self._scheme} is not"
            )
        settings = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        self._settings = dict(settings)
        for name, value in settings:
            if _SECRET.search(name) and not _REFERENCES.fullmatch(value):
                raise InvalidOptionError(
                    f"the setting {name} of the target {self.shown} is a secret: write a reference "
                    f"to it, such as {name}=${{env:VARIABLE}}, or leave it to the environment"
                )

    def below(self, path: str) -> str:
        """The URL of a location below this one, settings included."""
        query = urlencode(self._settings)
        return f"{self.shown}/{path}{'?' if query else ''}{query}"

    @functools.cached_property
    def store(self) -> "ObjectStore":
        # Which settings there are depends on the store; obstore checks them.
        settings: Any = {name: Secret(value).reveal() for name, value in self._settings.items()}
        plain = settings.get("endpoint", "").startswith("http://")
        try:
            store: ObjectStore = from_url(
                self.shown,
                config=settings,
                client_options={"allow_http": plain, "timeout": f"{REQUEST_TIMEOUT_S}s"},
                retry_config={"max_retries": RETRIES},
            )
        except (UnknownConfigurationKeyError, BaseError, ValueError) as error:
            raise InvalidOptionError(
                f"the object store {self.shown} cannot be opened: {_first_line(error)}"
            ) from None
        if isinstance(store, S3Store):
            self._check_credentials(store.config)
        return store

    def _check_credentials(self, config: Mapping[str, Any]) -> None:
        """Raises TargetError where nothing is there to sign requests with, and nobody to ask."""
        environment = (f"AWS_{name.upper()}" for name in _S3_CREDENTIALS)
        if config.keys() & set(_S3_CREDENTIALS) or os.environ.keys() & set(environment):
            return
        endpoint = config.get("metadata_endpoint") or os.environ.get("AWS_METADATA_ENDPOINT")
        if not _answers(endpoint or _METADATA_ENDPOINT):
            raise TargetError(
                f"there are no credentials for the object store {self.shown}: set "
                "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION for the driver and all "
                "executors, or give the target "
                "access_key_id=${env:NAME}&secret_access_key=${env:NAME}&region=REGION. "
                "Files in ~/.aws are not read, and this machine has no instance role."
            )


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _answers(endpoint: str) -> bool:
    """Whether the machine knows of credentials: a refusal is an answer, too."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        opener.open(f"{endpoint}/latest/meta-data/", timeout=_METADATA_TIMEOUT_S).close()
    except HTTPError as error:
        error.close()
    except (OSError, HTTPException):
        return False
    return True


def _first_line(error: BaseException) -> str:
    """What happened, without obstore's account of its own types, and without the queries of URLs,
    which may be signed."""
    line = _URL_QUERY.sub(r"\1", str(error).partition("\n")[0])
    if "configured region" in line:
        line += ". Set AWS_REGION, or give the target region=REGION"
    return line


@contextmanager
def _as_os_errors() -> Iterator[None]:
    """obstore's errors as those of the operating system."""
    try:
        yield
    except AlreadyExistsError as error:
        raise FileExistsError(errno.EEXIST, _first_line(error)) from None
    except FileNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, _first_line(error)) from None
    except BaseError as error:
        raise OSError(errno.EIO, _first_line(error)) from None
