"""SIGTERM for words that have something to take back."""

import signal
import sys


def end_on_sigterm() -> None:
    """A scheduler's way to stop a command; what it has staged goes, as after Ctrl-C."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
