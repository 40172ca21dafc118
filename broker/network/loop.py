"""The one place that chooses the event loop the broker runs on."""

import asyncio


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A new loop with add_reader and add_writer (the default loop of Linux and macOS)."""
    return asyncio.SelectorEventLoop()
