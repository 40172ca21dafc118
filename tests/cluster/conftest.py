"""What real clients leave behind is cleared away after each test."""

from tests.support.left_by_clients import collect_what_clients_left

__all__ = ["collect_what_clients_left"]
