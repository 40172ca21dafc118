"""A place in an object store by its URL: which settings it has, who may open it, what goes wrong.

`s3://bucket/prefix?NAME=VALUE&...` (also gs://, abfs:// and what else obstore knows): the query's
names are those of obstore's configuration, such as `endpoint` and `region`; credentials are better
left to the environment (AWS_ACCESS_KEY_ID and so on, instance roles), and a secret in the query has
to be a reference such as ${env:NAME}, looked up by each process that opens the store. So the URL
may travel to executors and be shown.

Any thread or process; a store is opened by first use, so a process may fork before.
"""

import errno
import functools
import os
import re
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.error import HTTPError
from urllib.parse import parse_qsl, urlencode, urlsplit

from obstore.exceptions import AlreadyExistsError, BaseError, UnknownConfigurationKeyError
from obstore.store import AzureStore, GCSStore, S3Store, from_url

from pyspark_kafkalog.client.config import Secret
from pyspark_kafkalog.errors import InvalidOptionError, TargetError

if TYPE_CHECKING:
    from obstore.store import ObjectStore

# A request that gets no answer is given up after so long, to be repeated for a while.
REQUEST_TIMEOUT_S = 60
RETRIES = 6

# Settings that are of obstore's connections, whatever the store; it panics where a store gets them.
_OF_CONNECTIONS = {
    "allow_http", "allow_invalid_certificates", "connect_timeout", "http1_only", "http2_only",
    "pool_idle_timeout", "pool_max_idle_per_host", "proxy_ca_certificate", "proxy_excludes",
    "proxy_url", "randomize_addresses", "read_timeout", "root_certificate", "timeout", "user_agent",
}  # fmt: skip


class _Credentials(NamedTuple):
    """Where obstore looks for those of a kind of store; without any of these it asks the machine,
    and waits for minutes where nobody answers."""

    settings: str
    """Names by spaces; with `prefix` and in capitals in the environment, too."""
    prefix: str
    variables: str
    """What else there may be in the environment."""
    file: str
    """A file that is read where it is there."""
    advice: str

    def are_in(self, config: Mapping[str, Any]) -> bool:
        settings = self.settings.split()
        variables = [f"{self.prefix}{name.upper()}" for name in settings] + self.variables.split()
        is_set = bool(config.keys() & set(settings) or os.environ.keys() & set(variables))
        return is_set or (self.file != "" and Path(self.file).expanduser().exists())


_CREDENTIALS: Mapping[type, _Credentials] = {
    S3Store: _Credentials(
        "access_key_id skip_signature web_identity_token_file "
        "container_credentials_relative_uri container_credentials_full_uri",
        "AWS_",
        "",
        "",
        "set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION for the driver and all "
        "executors, or give the target "
        "access_key_id=${env:NAME}&secret_access_key=${env:NAME}&region=REGION. "
        "Files in ~/.aws are not read, and this machine has no instance role.",
    ),
    AzureStore: _Credentials(
        "account_key client_id sas_key token federated_token_file use_azure_cli use_emulator "
        "skip_signature msi_endpoint",
        "AZURE_",
        "AZURE_STORAGE_ACCOUNT_KEY AZURE_STORAGE_ACCESS_KEY AZURE_STORAGE_MASTER_KEY "
        "AZURE_STORAGE_CLIENT_ID AZURE_STORAGE_SAS_KEY AZURE_STORAGE_SAS_TOKEN AZURE_STORAGE_TOKEN "
        "AZURE_STORAGE_USE_EMULATOR IDENTITY_ENDPOINT MSI_ENDPOINT",
        "",
        "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY for the driver and all "
        "executors, or give the target account_name=NAME&account_key=${env:NAME}. This machine has "
        "no managed identity.",
    ),
    GCSStore: _Credentials(
        "service_account service_account_key bearer_token application_credentials skip_signature",
        "GOOGLE_",
        "GOOGLE_SERVICE_ACCOUNT_PATH SERVICE_ACCOUNT",
        "~/.config/gcloud/application_default_credentials.json",
        "set GOOGLE_APPLICATION_CREDENTIALS or GOOGLE_SERVICE_ACCOUNT for the driver and all "
        "executors. This machine has no service account.",
    ),
}

_METADATA_ENDPOINT = "http://169.254.169.254"
_METADATA_TIMEOUT_S = 3

# They are the URL's to say: obstore goes by these, and deltalake by the URL.
_BUCKET = re.compile(r"(.*_)?(bucket|bucket_name|container_name)", re.IGNORECASE)
_ACCOUNT = re.compile(r"(.*_)?account_name", re.IGNORECASE)
_SECRET = re.compile(r"secret|token|password|credential|sas|key$", re.IGNORECASE)
_REFERENCES = re.compile(r"(\$\{[^}]+\})+")
_URL_QUERY = re.compile(r"(\w+://[^\s?\"']+)\?[^\s\"']+")
_ESCAPES = re.compile("\x1b\\[[0-9;]*m|\u21b3")
_ANSWER = re.compile(r"<(\?xml|Error\b|html|!DOCTYPE).*", re.DOTALL | re.IGNORECASE)
_LONGEST_ERROR = 1000


class Location:
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
            if self._is_elsewhere(name, value):
                raise InvalidOptionError(
                    f"the setting {name} of the target {self.shown} names another place than its "
                    "URL: leave it out, or change the URL"
                )

    def below(self, path: str) -> str:
        """The URL of a location below this one, settings included."""
        query = urlencode(self._settings)
        return f"{self.shown}/{path}{'?' if query else ''}{query}"

    def settings(self) -> dict[str, str]:
        """With secrets looked up."""
        return {name: Secret(value).reveal() for name, value in self._settings.items()}

    def _is_elsewhere(self, name: str, value: str) -> bool:
        bucket, _, host = self._bucket.partition("@")
        if _BUCKET.fullmatch(name):
            return value != bucket
        return bool(host and _ACCOUNT.fullmatch(name)) and value != host.partition(".")[0]

    @staticmethod
    def is_plain(settings: Mapping[str, str]) -> bool:
        """Whether the store is asked without TLS."""
        address = settings.get("endpoint") or settings.get("base_url") or ""
        return address.startswith("http://")

    @functools.cached_property
    def store(self) -> "ObjectStore":
        # Which settings there are depends on the store; obstore checks them.
        settings: Any = self.settings()
        of_connections = {name: settings.pop(name) for name in _OF_CONNECTIONS & settings.keys()}
        client_options: Any = {
            "allow_http": self.is_plain(settings),
            "timeout": f"{REQUEST_TIMEOUT_S}s",
            **of_connections,
        }
        try:
            store: ObjectStore = from_url(
                self.shown,
                config=settings,
                client_options=client_options,
                retry_config={"max_retries": RETRIES},
            )
        except (UnknownConfigurationKeyError, BaseError, ValueError) as error:
            raise InvalidOptionError(
                f"the object store {self.shown} cannot be opened: {in_words(error)}"
            ) from None
        if isinstance(store, S3Store | AzureStore | GCSStore):
            self._check_credentials(store)
        return store

    def read(self, path: str) -> bytes:
        with as_os_errors():
            return bytes(self.store.get(path).bytes())

    def has(self, path: str) -> bool:
        try:
            with as_os_errors():
                self.store.head(path)
        except FileNotFoundError:
            return False
        return True

    def create(self, path: str, content: bytes) -> bool:
        """By a conditional put; False when the name was taken before by others."""
        try:
            with as_os_errors():
                self.store.put(path, content, mode="create")
        except OSError as error:
            # It may be there all the same.
            try:
                return self.read(path) == content
            except FileNotFoundError:
                raise error from None
        return True

    def _check_credentials(self, store: S3Store | AzureStore | GCSStore) -> None:
        """Raises TargetError where nothing is there to sign requests with, and nobody to ask."""
        credentials, config = _CREDENTIALS[type(store)], dict[str, Any](store.config)
        if credentials.are_in(config):
            return
        endpoint = config.get("metadata_endpoint") or os.environ.get("AWS_METADATA_ENDPOINT")
        if not _answers(endpoint or _METADATA_ENDPOINT):
            raise TargetError(
                f"there are no credentials for the object store {self.shown}: {credentials.advice}"
            )


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


def in_words(error: BaseException) -> str:
    """What happened: without what a library tells of its own types and the rest of a server's
    answer, which may hold a token, and without the queries of URLs, which may be signed."""
    text = _ESCAPES.sub("", str(error).partition("\n\nDebug source")[0])
    answer = _ANSWER.search(text)
    if answer:
        said = (re.search(f"<{tag}>([^<]*)</{tag}>", answer[0]) for tag in ("Code", "Message"))
        text = text[: answer.start()] + ": ".join(one[1] for one in said if one)
    line = " ".join(_URL_QUERY.sub(r"\1", text).split())[:_LONGEST_ERROR]
    if "configured region" in line:
        line += ". Set AWS_REGION, or give the target region=REGION"
    return line


@contextmanager
def as_os_errors() -> Iterator[None]:
    """obstore's errors as those of the operating system."""
    try:
        yield
    except AlreadyExistsError as error:
        raise FileExistsError(errno.EEXIST, in_words(error)) from None
    except FileNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, in_words(error)) from None
    except BaseError as error:
        raise OSError(errno.EIO, in_words(error)) from None
