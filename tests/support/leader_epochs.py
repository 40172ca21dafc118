"""The leader epochs of a broker alone, which go by its clock (broker/controller/elections.py)."""

import time

from tests.support.patience import wait_until

_LATER_S = 1.5
"""Six epochs: starts one after the other may be four ahead of the clock."""


def await_later_epochs() -> None:
    """Returns when a copy of a broker's data would begin later epochs than the broker has had, as
    it does where somebody restores it."""
    until_s = time.monotonic() + _LATER_S
    wait_until(lambda: time.monotonic() > until_s, "later epochs")
