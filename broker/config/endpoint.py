"""Addresses as properties hold them: a listener's, and limits by address.

Pure functions on text: any thread.
"""

from dataclasses import dataclass

from broker.config.definition import ConfigError, legal

__all__ = ["ADDRESS", "IP_OVERRIDES", "LISTENERS", "Endpoint", "parse_ip_overrides"]


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
        if not (name and slashes and colon and port.isdigit() and int(port) < 65536):
            raise ConfigError(f"invalid listener {text!r}: expected NAME://HOST:PORT")
        return cls(name.upper(), host.strip("[]"), int(port))

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


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
        if not (host and most.isascii() and most.isdigit()):
            raise ConfigError(f"invalid override {entry!r}: expected HOST:CONNECTIONS")
        overrides[host.strip("[]")] = int(most)
    return overrides


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
ADDRESS = legal("expected HOST:PORT", _parses_as_address)
LISTENERS = legal(
    "expected PLAINTEXT://HOST:PORT, comma-separated, and no listener of another name (such as "
    "CONTROLLER)",
    _is_plaintext,
)
