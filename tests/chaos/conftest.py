"""As in tests/cluster."""

from tests.support.left_by_clients import collect_what_clients_left

__all__ = ["collect_what_clients_left"]
