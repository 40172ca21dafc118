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
    number: int = 0
    """Of this connection, among all that the process has taken: later ones have greater ones."""

    def __str__(self) -> str:
        return f"{self.address}:{self.port}"
