"""What real clients leave behind is cleared away after each test.

Some leave a socket to the garbage collector when their broker was killed. Its warning is none of
ours, and would come up as an error in whatever test runs when it is collected.
"""

import gc
import warnings
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def collect_what_clients_left(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    # What they logged holds their errors, and these hold the sockets that could not be connected.
    caplog.get_records("call").clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
