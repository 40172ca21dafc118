"""`kafkalog ui`, and the page beside `kafkalog broker`: how they begin and end."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.pyspark_kafkalog.cli.conftest import Done, command_line, environment
from tests.support.patience import BUSY_S, EVENT_S, wait_until
from tests.support.present import present


@contextmanager
def running(*arguments: str, servers: str = "") -> Iterator[tuple[subprocess.Popen[str], Any]]:
    """A command, and what it says first, as JSON; it is killed where the test did not end it."""
    with subprocess.Popen(
        command_line(*arguments, "--format=json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(servers),
        text=True,
    ) as process:
        try:
            yield (
                process,
                json.loads(present(process.stdout).readline() or present(process.stderr).read()),
            )
        finally:
            process.kill()


def read(page: str) -> Any:
    with urllib.request.urlopen(page, timeout=EVENT_S) as answer:
        return answer.read().decode()


def is_gone(page: str) -> bool:
    try:
        read(page)
    except urllib.error.HTTPError:  # the broker is gone, the page says so
        return False
    except OSError:
        return True
    return False


SLOW = pytest.mark.slow


@pytest.mark.parametrize("how", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=SLOW)])
def test_the_page_says_its_address_and_ends(servers: str, how: signal.Signals) -> None:
    with running("ui", "--port=0", servers=servers) as (process, said):
        assert said["page"].startswith("http://127.0.0.1:")
        assert servers in read(said["page"])
        os.kill(process.pid, how)
        assert process.wait(EVENT_S) == 0
        assert (present(process.stdout).read(), present(process.stderr).read()) == ("", "")


def test_a_page_that_waits_for_brokers_ends_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        servers = "{}:{}".format(*mute.getsockname())
        with running("ui", "--port=0", "-X", "request.timeout.ms=60000", servers=servers) as (
            process,
            said,
        ):
            asking = threading.Thread(target=is_gone, args=[said["page"]])
            asking.start()
            with mute.accept()[0]:  # it asks, and waits
                os.kill(process.pid, signal.SIGTERM)
                assert process.wait(BUSY_S + 5) == 0
            assert present(process.stderr).read() == ""
            asking.join()


@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=SLOW)])
def test_the_page_beside_a_broker_ends_with_it(how: signal.Signals) -> None:
    with running("broker", "--ui") as (process, said):
        assert said["bootstrap_servers"] in read(said["page"])
        os.kill(process.pid, how)
        wait_until(lambda: is_gone(said["page"]), "the page's end")


def test_a_page_that_cannot_be_is_a_sentence(kafkalog: Callable[..., Done], servers: str) -> None:
    host, port = servers.split(":")
    taken = kafkalog("ui", "--host", host, "--port", port)
    assert taken[:2] == (1, "")
    assert taken.err == (
        f"kafkalog: The page cannot listen at {servers}: Address already in use.\n"
    )
    assert kafkalog("ui", "--host", "nobody.invalid").code == 1
    assert kafkalog("ui", "--registry", "nowhere").code == 1
    assert kafkalog("ui", "--to", "nowhere").code == 1
    assert kafkalog("broker", "--ui", "127.0.0.1:65536").code == 2
    assert kafkalog("broker", "--ui", "nonsense").code == 2


def test_a_page_of_no_cluster_is_wrong_usage(
    kafkalog: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KAFKALOG_BOOTSTRAP_SERVERS")
    assert kafkalog("ui").code == 2


def test_without_its_extra_the_page_says_what_to_install(
    kafkalog: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark_kafkalog.web.server", None)
    monkeypatch.delitem(sys.modules, "pyspark_kafkalog.web.app", raising=False)
    monkeypatch.setitem(sys.modules, "starlette.applications", None)
    done = kafkalog("ui")
    assert done.code == 1
    assert "pip install 'pyspark-kafkalog[ui]'" in done.err
