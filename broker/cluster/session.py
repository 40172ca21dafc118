"""A session with a store that others share: what its owner is told of it.

Values only: any thread. `zookeeper_session` keeps one; a broker alone has none to lose.
"""

from dataclasses import dataclass
from enum import Enum


class SessionState(Enum):
    """CONNECTED: the session is there. SUSPENDED: its server cannot be reached; the session, and
    its ephemeral nodes, are there for a while. EXPIRED: they are gone, or must be taken to be:
    the owner gives up what it had by them."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class SessionEvent:
    """`is_new`: of a session that was connected for the first time."""

    state: SessionState
    session_id: int
    is_new: bool = False
