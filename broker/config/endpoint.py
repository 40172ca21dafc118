"""Addresses as properties hold them: a listener's, ZooKeeper's, and limits by address.

Pure functions on text: any thread.
"""

from dataclasses import dataclass

from broker.config.definition import ConfigError, legal

__all__ = [
    "ADDRESS",
    "IP_OVERRIDES",
    "LISTENERS",
    "ZOOKEEPER",
    "Endpoint",
    "parse_ip_overrides",
    "parse_zookeeper",
]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One listener: `name://host:port`. An empty host means every interface."""

    name: str
    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "Endpoint":
        """Raises ConfigError unless `text` has the form NAME://HOST:PORT."""
        name, slashes, address = text.partition("://")
        host, colon, port = address.rpartition(":")
        is_port = port.isascii() and port.isdigit() and int(port) < 65536
        if not (name and slashes and colon and is_port and _may_be_host(host)):
            raise ConfigError(f"invalid listener {text!r}: expected NAME://HOST:PORT")
        return cls(name.upper(), host.strip("[]"), int(port))

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


def _may_be_host(host: str) -> bool:
    """Whether it can be looked up at all: a name with an empty label, or a long one, cannot."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True


def _is_plaintext(listener: str) -> bool:
    try:
        return Endpoint.parse(listener).name == "PLAINTEXT"
    except ConfigError:
        return False


def parse_ip_overrides(text: str) -> dict[str, int]:
    """`HOST:MOST,...` of max.connections.per.ip.overrides. Raises ConfigError."""
    overrides = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        host, _, most = entry.rpartition(":")
        if not (host and most.isascii() and most.isdigit() and _may_be_host(host)):
            raise ConfigError(f"invalid override {entry!r}: expected HOST:CONNECTIONS")
        overrides[host.strip("[]")] = int(most)
    return overrides


def parse_zookeeper(text: str) -> tuple[str, str]:
    """The servers, and below which node everything is ("" for the root), of zookeeper.connect.
    Raises ConfigError."""
    servers, slash, chroot = text.partition("/")
    names = chroot.split("/") if slash else []
    if names == [""]:
        names = []
    for server in servers.split(","):
        host, colon, port = server.strip().rpartition(":")
        is_port = port.isascii() and port.isdigit() and 0 < int(port) < 65536
        if not (host if colon else port) or (colon and not is_port) or not all(names):
            raise ConfigError(f"invalid zookeeper.connect {text!r}: expected HOST:PORT,.../PATH")
    return servers, "".join(f"/{name}" for name in names)


def _parses_as_zookeeper(text: str) -> bool:
    try:
        parse_zookeeper(text)
    except ConfigError:
        return False
    return True


def _parses_as_ip_overrides(text: str) -> bool:
    try:
        parse_ip_overrides(text)
    except ConfigError:
        return False
    return True


def _parses_as_address(text: str) -> bool:
    try:
        Endpoint.parse(f"HTTP://{text}")
    except ConfigError:
        return False
    return True


IP_OVERRIDES = legal("expected HOST:CONNECTIONS, comma-separated", _parses_as_ip_overrides)
ZOOKEEPER = legal("expected HOST:PORT, comma-separated, then perhaps /PATH", _parses_as_zookeeper)
ADDRESS = legal("expected HOST:PORT", _parses_as_address)
LISTENERS = legal(
    "expected PLAINTEXT://HOST:PORT, comma-separated, and no listener of another name (such as "
    "CONTROLLER)",
    _is_plaintext,
)
