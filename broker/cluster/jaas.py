"""The user that a broker is to ZooKeeper, given as Apache Kafka's brokers are given it.

Owns: the reading of a JAAS file, which the environment names:
KAFKA_OPTS=-Djava.security.auth.login.config=FILE. Its section `Client`, or the one that
-Dzookeeper.sasl.clientconfig names, is for ZooKeeper; -Dzookeeper.sasl.client=false passes it over.
Of the login modules Java has, ZooKeeper's DigestLoginModule is known: SASL's DIGEST-MD5, a name and
a password. Called by: zookeeper_client, once for each client.
"""

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from broker.config.definition import ConfigError

_FILE = "java.security.auth.login.config"
_SECTION = "zookeeper.sasl.clientconfig"
_IS_ENABLED = "zookeeper.sasl.client"
_MODULE = "org.apache.zookeeper.server.auth.DigestLoginModule"
_TOKENS = re.compile(r'//[^\n]*|/\*.*?\*/|"((?:[^"\\]|\\.)*)"|([{};=]|[^\s{};="]+)', re.DOTALL)


@dataclass(frozen=True, slots=True)
class DigestUser:
    """A name and a password."""

    name: str
    password: str = field(repr=False)


def zookeeper_user(environment: Mapping[str, str]) -> DigestUser | None:
    """Who the broker is to ZooKeeper; None where it says nothing of it. Raises ConfigError where
    the file cannot be read, or asks for more than a name and a password."""
    options = _java_properties(environment.get("KAFKA_OPTS", ""))
    file = options.get(_FILE)
    if file is None or options.get(_IS_ENABLED, "true").lower() != "true":
        return None
    section = options.get(_SECTION, "Client")
    try:
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{_FILE}={file} of KAFKA_OPTS cannot be read: {error}") from None
    try:
        modules = _modules(_words(text))
    except (StopIteration, ValueError):
        raise ConfigError(
            f"{_FILE}={file} is no JAAS file: sections like "
            f'Client {{ {_MODULE} required username="..." password="..."; }}; are expected.'
        ) from None
    if section not in modules:
        return None
    module, given = modules[section]
    if module != _MODULE or not {"username", "password"} <= given.keys():
        raise ConfigError(
            f"Section {section} of {file} asks for the login module {module}: for ZooKeeper give "
            f'{_MODULE} required username="..." password="...";, which is SASL\'s DIGEST-MD5.'
        )
    return DigestUser(given["username"], given["password"])


def _java_properties(options: str) -> dict[str, str]:
    try:
        words = shlex.split(options)
    except ValueError as error:
        raise ConfigError(f"KAFKA_OPTS cannot be taken apart: {error}") from None
    given = (word.removeprefix("-D").partition("=") for word in words if word.startswith("-D"))
    return {name: value for name, _, value in given}


def _words(text: str) -> Iterator[str]:
    for found in _TOKENS.finditer(text):
        quoted, word = found.groups()
        if quoted is not None:
            yield re.sub(r"\\(.)", r"\1", quoted)
        elif word is not None:
            yield word


def _modules(words: Iterator[str]) -> dict[str, tuple[str, dict[str, str]]]:
    """Of each section its first login module, and what that is given. Raises ValueError, and
    StopIteration where the text ends within one."""
    modules: dict[str, tuple[str, dict[str, str]]] = {}
    for section in words:
        _expect("{", words)
        while (module := next(words)) != "}":
            given: dict[str, str] = {}
            next(words)  # required, sufficient and so on: there is one module
            while (name := next(words)) != ";":
                _expect("=", words)
                given[name] = next(words)
            modules.setdefault(section, (module, given))
        _expect(";", words)
    return modules


def _expect(wanted: str, words: Iterator[str]) -> None:
    if next(words) != wanted:
        raise ValueError(wanted)
