"""The page in headless Chromium, clicked through, with the sizes that could hang it.

KAFKALOG_SCREENSHOTS names a folder for pictures of each page: light, dark, and as on a phone.
"""

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from kafka.structs import TopicPartition
from selenium import webdriver
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.chrome.webdriver import WebDriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from pyspark_kafkalog.client import admin
from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.client.group import commit_offsets
from pyspark_kafkalog.web.app import PageSettings
from tests.pyspark_kafkalog.web.conftest import Page, config, serving
from tests.pyspark_kafkalog.web.large_cluster import HOSTILE_TOPIC, large_cluster
from tests.support.patience import BUSY_S, wait_until
from tests.support.present import present

pytestmark = pytest.mark.slow

HOSTILE = "<script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"
LARGE_BYTES = 100_000_000
SIZES = {"light": (1280, 860), "dark": (1280, 860), "phone": (390, 844)}


class Browser:
    """Chromium at the page."""

    def __init__(self, driver: WebDriver, base: str) -> None:
        self.driver, self.base = driver, base

    def open(self, path: str) -> None:
        self.driver.get(self.base + path)

    def click(self, words: str) -> None:
        """On the link of these words, as soon as it is there; it may be renewed meanwhile."""

        def is_clicked() -> bool:
            try:
                self.driver.find_element(By.LINK_TEXT, words).click()
            except (NoSuchElementException, StaleElementReferenceException):
                return False
            return True

        wait_until(is_clicked, words)

    def texts(self, selector: str) -> Any:
        """Of all such elements, as they are now, all at once: they may be renewed."""
        return self.driver.execute_script(
            "return [...document.querySelectorAll(arguments[0])].map((each) => each.innerText)",
            selector,
        )

    def wait_for(self, selector: str, expected: Sequence[str]) -> None:
        """Until these are the texts of all such elements."""
        wait_until(lambda: self.texts(selector) == expected, lambda: self.texts(selector))

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def press(self, keys: str) -> None:
        self.driver.switch_to.active_element.send_keys(keys)

    def cells(self, row: str) -> Any:
        """Of the row with such a head, as they are now, all at once: they may be renewed."""
        return self.driver.execute_script(
            "const row = [...document.querySelectorAll('tbody tr')].find("
            "  (each) => each.querySelector('th')?.innerText === arguments[0]);"
            "return row ? [...row.querySelectorAll('td')].map((cell) => cell.innerText) : []",
            row,
        )

    def look(self, mode: str) -> None:
        width, height = SIZES[mode]
        scheme = {"name": "prefers-color-scheme", "value": "dark" if mode == "dark" else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


@pytest.fixture(scope="module")
def driver() -> Iterator[WebDriver]:
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    running = webdriver.Chrome(options, Service("/usr/bin/chromedriver"))
    yield running
    running.quit()


@pytest.fixture
def browser(driver: WebDriver, page: Page) -> Browser:
    return Browser(driver, f"http://127.0.0.1:{page.port}")


@pytest.fixture(scope="module")
def shop(cluster: Cluster, write: Callable[..., None]) -> None:
    """Topics, records and groups of a small shop, and what hostile people wrote to it."""
    admin.create_topic(cluster, "orders", 3, 1)
    for partition in range(3):
        rows = [
            (f"c-{number:04}", json.dumps({"id": number, "items": [{"sku": f"A{number}"}]}))
            for number in range(120)
        ]
        write("orders", *rows, partition=partition, headers={"source": "web"})
    admin.create_topic(cluster, "reviews", 1, 1)
    write("reviews", (HOSTILE, HOSTILE), (None, b"\x00\xfe"), headers={HOSTILE: HOSTILE})
    commit_offsets(cluster, "billing", {TopicPartition("orders", n): 100 for n in range(3)})
    commit_offsets(cluster, HOSTILE, {TopicPartition("reviews", 0): 1})


def test_clicking_through(browser: Browser, shop: None) -> None:
    browser.open("/")
    browser.click("orders")
    browser.click("2")
    browser.wait_for("tbody th", [str(n) for n in range(70, 120)])
    browser.click("← older")
    browser.wait_for("tbody th", [str(n) for n in range(20, 70)])
    browser.all(".value summary")[0].click()
    assert browser.all(".value pre")[0].text.startswith('{\n  "id": 20,\n  "items": [')
    browser.one("input[name=find]").send_keys("C-0007", Keys.ENTER)
    browser.wait_for("tbody th", ["7"])
    browser.one("input[name=find]").clear()
    browser.one("input[name=at]").send_keys("-2", Keys.ENTER)
    browser.wait_for("tbody th", ["118", "119"])
    browser.click("kafkalog")
    browser.click("Records")
    wait_until(lambda: browser.texts("tbody th")[:1] == ["orders"], "the largest first")
    assert browser.texts("thead [aria-sort=descending]") == ["Records"]
    browser.one("input[name=q]").send_keys("e", Keys.ENTER)
    wait_until(
        lambda: (
            "sort=records" in browser.driver.current_url and "q=e" in browser.driver.current_url
        ),
        "both",
    )
    browser.click("Groups")
    wait_until(lambda: browser.cells("billing")[-1:] == ["60"], "its lag")
    browser.click("billing")
    wait_until(lambda: len(browser.texts("tbody tr")) == 3, "its partitions")
    browser.click("Brokers")
    wait_until(lambda: "controller" in "".join(browser.cells("1")[:1]), "the controller")
    console = browser.driver.get_log("browser")  # type: ignore[no-untyped-call]
    assert not [each for each in console if each["level"] == "SEVERE"]


def test_keys_are_enough(browser: Browser, shop: None) -> None:
    browser.open("/")
    browser.press("/")
    browser.press("orders" + Keys.ENTER)
    wait_until(lambda: len(browser.all("a.row")) == 1, "one topic")
    browser.press("j")
    browser.press(Keys.ENTER)
    wait_until(lambda: browser.driver.title.startswith("orders"), "the topic")
    browser.press("jj")
    browser.press(Keys.ENTER)
    wait_until(lambda: "partition 1" in browser.texts("h1")[0], "its second partition")
    browser.press("p")
    browser.wait_for("tbody th", [str(n) for n in range(20, 70)])
    browser.press("n")
    browser.wait_for("tbody th", [str(n) for n in range(70, 120)])
    browser.press(Keys.TAB)
    assert browser.driver.switch_to.active_element.text == "Skip to the content"


def test_figures_are_renewed_without_reloading(
    browser: Browser, shop: None, write: Callable[..., None], new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    browser.open(f"/?q={topic}")
    wait_until(lambda: browser.cells(topic), "the topic, by itself")
    browser.driver.execute_script("document.documentElement.dataset.mark = 'still the same page'")
    browser.press("j")
    write(topic, *[(None, b"x")] * 30)
    wait_until(lambda: browser.cells(topic)[2] == "30", lambda: browser.cells(topic))
    assert browser.driver.switch_to.active_element.text == topic
    assert browser.one("html").get_attribute("data-mark") == "still the same page"
    browser.press("l")
    assert browser.one("#live").text == "paused"


def test_a_script_in_a_record_does_nothing(browser: Browser, shop: None) -> None:
    for path in (
        "/records?topic=reviews",
        "/groups",
        "/group?name=" + HOSTILE.replace(" ", "%20"),
        "/?q=" + HOSTILE.replace(" ", "%20"),
        "/value?topic=reviews&part=value",
    ):
        browser.open(path)
        for each in browser.all("summary"):
            each.click()
        # The live part comes anew by script.
        browser.driver.execute_script("globalThis.renew && renew()")
        assert browser.driver.title != "taken"
        assert len(browser.all("script")) == 1
        assert browser.all("img") == []
    browser.open("/records?topic=reviews")
    assert HOSTILE in present(browser.one(".value pre").get_attribute("textContent"))


def test_a_record_of_100_mb(
    browser: Browser, shop: None, cluster: Cluster, write: Callable[..., None]
) -> None:
    admin.create_topic(cluster, "large", 1, 1, {"max.message.bytes": "120000000"})
    write("large", (b"k", b"x" * LARGE_BYTES), (b"k", b"after it"))
    began_s = time.monotonic()
    browser.open("/records?topic=large")
    assert time.monotonic() - began_s < 5 + BUSY_S
    assert browser.all("tbody tr")[1].text.endswith("after it")
    browser.one(".value summary").click()
    assert "95.4\u202fMiB, its beginning" in browser.one(".value").text


def test_10_000_partitions_and_a_hostile_topic(driver: WebDriver) -> None:
    with (
        large_cluster() as broker,
        serving(PageSettings(config(broker.bootstrap_servers, request_timeout_ms="30000"))) as page,
    ):
        browser = Browser(driver, f"http://127.0.0.1:{page.port}")
        began_s = time.monotonic()
        browser.open("/")
        browser.click("many")
        browser.click("next →")
        wait_until(lambda: browser.texts("tbody th")[:1] == ["100"], "its next partitions")
        assert time.monotonic() - began_s < 5 + BUSY_S
        browser.open("/")
        browser.click(HOSTILE_TOPIC)
        browser.wait_for("h1", [HOSTILE_TOPIC])
        assert len(browser.all("script")) == 1
        browser.click("0")
        wait_until(lambda: "partition 0" in browser.texts("h1")[0], "its records")
        assert browser.driver.title != "taken"


def test_pages_fit_their_windows(browser: Browser, shop: None) -> None:
    folder = os.environ.get("KAFKALOG_SCREENSHOTS")
    paths = {
        "topics": "/",
        "topic": "/topic?name=orders",
        "records": "/records?topic=orders&at=40",
        "hostile": "/records?topic=reviews",
        "groups": "/groups",
        "group": "/group?name=billing",
        "brokers": "/brokers",
        "trouble": "/topic?name=nothing",
    }
    for mode in SIZES:
        browser.look(mode)
        for name, path in paths.items():
            browser.open(path)
            for each in browser.all(".value summary")[:2]:
                each.click()
            width = browser.driver.execute_script("return document.documentElement.scrollWidth")
            assert width <= SIZES[mode][0], (name, mode)
            if folder:
                picture = Path(folder, f"{name}-{mode}.png")
                browser.driver.save_screenshot(str(picture))
    assert background(browser, "dark") != background(browser, "light")


def background(browser: Browser, mode: str) -> Any:
    browser.look(mode)
    return browser.driver.execute_script("return getComputedStyle(document.body).backgroundColor")
