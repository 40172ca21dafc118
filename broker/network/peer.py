"""Who is at the other end of a connection, as far as the network knows. Any thread."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Peer:
    """Printed as HOST:PORT."""

    listener: str
    """The name of that by which it came."""
    address: str
    """An IPv4 address as such, whatever the listener's family."""
    port: int

    def __str__(self) -> str:
        return f"{self.address}:{self.port}"
