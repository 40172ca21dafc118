"""How many connections there may be, in all and from one address, and how fast they may come.

Owns: the count of connections by address. The rules are those of Apache Kafka (KIP-308, KIP-402,
KIP-612) for limits of all listeners together: a connection above an address's limit is closed at
once; at `max.connections`, and above `max.connection.creation.rate`, no connection is accepted
until there is room: clients wait in a listener's backlog, those that are served stay undisturbed.
(Kafka closes the least recently used connection only for another listener's sake.)

Called by: the event loop's thread only. Never: touches a socket.
"""

import ipaddress
import socket
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

NO_LIMIT = 2**31 - 1
_RATE_WINDOW_S = 1.0


@dataclass(frozen=True, slots=True)
class ConnectionLimitOptions:
    """Kafka's max.connection* properties; `per_ip_overrides` by canonical address."""

    max_connections: int = NO_LIMIT
    per_ip: int = NO_LIMIT
    per_ip_overrides: Mapping[str, int] = field(default_factory=dict)
    creation_rate: int = NO_LIMIT


class ConnectionQuotas:
    """Asked before a connection is accepted, and when one is, told when one is closed."""

    def __init__(self, options: ConnectionLimitOptions) -> None:
        self.options = options
        self._by_address: Counter[str] = Counter()
        self._total = 0
        self._window_end_s = 0.0
        self._accepted_in_window = 0

    @property
    def is_full(self) -> bool:
        return self._total >= self.options.max_connections

    def pause_s(self, now_s: float) -> float:
        """How long the creation rate asks to wait before the next connection; 0 = not at all."""
        if self._accepted_in_window < self.options.creation_rate or now_s >= self._window_end_s:
            return 0.0
        return self._window_end_s - now_s

    def take(self, address: str, now_s: float) -> bool:
        """Counts a connection in, unless its address has as many as it may have."""
        if now_s >= self._window_end_s:
            self._window_end_s = now_s + _RATE_WINDOW_S
            self._accepted_in_window = 0
        self._accepted_in_window += 1
        most = self.options.per_ip_overrides.get(address, self.options.per_ip)
        if self._by_address[address] >= most:
            return False
        self._by_address[address] += 1
        self._total += 1
        return True

    def give_back(self, address: str) -> None:
        """A connection that `take` counted is closed."""
        self._total -= 1
        left = self._by_address[address] - 1
        if left:
            self._by_address[address] = left
        else:
            del self._by_address[address]


def canonical_address(address: str) -> str:
    """An IPv4 peer of an IPv6 listener (`::ffff:192.0.2.1`) counts as what it is."""
    if "." not in address or ":" not in address:
        return address
    mapped = ipaddress.IPv6Address(address.partition("%")[0]).ipv4_mapped
    return address if mapped is None else str(mapped)


def resolve_overrides(overrides: Mapping[str, int]) -> dict[str, int]:
    """`max.connections.per.ip.overrides` by address: each host's every address. Blocks (DNS).

    Raises OSError for a host that has no address.
    """
    resolved = {}
    for host, most in overrides.items():
        for *_, (address, *_) in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM):
            resolved[canonical_address(str(address))] = most
    return resolved
