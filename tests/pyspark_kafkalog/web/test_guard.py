"""Who may ask the page, and what it tells browsers about its answers."""

from collections.abc import Iterator

import pytest

from pyspark_kafkalog.web.app import PageSettings
from pyspark_kafkalog.web.brokers import Brokers
from tests.pyspark_kafkalog.web.conftest import Page, config, serving
from tests.support.patience import wait_until
from tests.support.ports import closed_port
from tests.support.present import present


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    """Of a cluster that is not there: no question gets so far."""
    servers = f"127.0.0.1:{closed_port()}"
    settings = PageSettings(config(servers, request_timeout_ms="100"), hosts=["kafka.example"])
    with serving(settings) as served:
        yield served


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_nothing_but_reading(page: Page, method: str) -> None:
    answer = page.ask(method, "/static/style.css")
    assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8090", 200),
        ("localhost:8090", 200),
        ("LOCALHOST", 200),
        ("[::1]:8090", 200),
        ("kafka.example", 200),
        ("evil.example:8090", 421),
        ("localhost.evil.example", 421),
        ("127.0.0.1.evil.example:8090", 421),
        ("", 421),
        ("[evil]:1", 421),
    ],
)
def test_other_names_are_refused(page: Page, host: str, status: int) -> None:
    assert page.ask("GET", "/static/style.css", Host=host).status == status


@pytest.mark.parametrize("path", ["/", "/static/page.js", "/nothing", "/topic"])
def test_browsers_run_and_load_nothing_else(page: Page, path: str) -> None:
    headers = page.get(path).headers
    policy = dict(
        each.strip().split(" ", 1) for each in headers["content-security-policy"].split(";")
    )
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
    assert headers["server"] is None


def test_the_page_is_whole_without_another_server(page: Page) -> None:
    text = page.get("/").text
    assert "http:" not in text
    assert "https:" not in text
    assert "style=" not in text
    assert "onclick" not in text
    for path in ("/static/page.js", "/static/style.css", "/static/icon.svg"):
        assert page.get(path).status == 200


def test_a_page_that_fails_is_logged_and_answered(
    page: Page, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Brokers) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("pyspark_kafkalog.web.brokers.Brokers.seen", fail)
    answer = page.get("/")
    assert answer.status == 500
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    # The answer comes first.
    (record,) = wait_until(lambda: caplog.records, "a line of the log")
    assert present(record.exc_info)[0] is ZeroDivisionError
