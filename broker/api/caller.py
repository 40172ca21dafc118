"""Who asks something of this broker. Any thread."""

from dataclasses import dataclass

ANONYMOUS = "User:ANONYMOUS"
"""Whoever has not logged in, as Apache Kafka calls them."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request."""

    listener: str
    """The name of that by which the connection came."""
    principal: str
    client_id: str
    """As the request says; "" where it says none."""
    address: str

    @property
    def host(self) -> str:
        """As members of groups are listed with it, and Java prints addresses without a name."""
        return f"/{self.address}"
