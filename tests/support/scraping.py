"""What a broker's metrics endpoint says."""

import contextlib
import http.client
import re
from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

from tests.support.broker_child import BrokerChild
from tests.support.patience import EVENT_S

Sample = tuple[str | tuple[str, str], ...]


def address_of(child: BrokerChild) -> tuple[str, int]:
    found = re.search(r"event=metrics.listening address=(\S+):(\d+)", child.stderr())
    assert found is not None
    return found[1], int(found[2])


def get(
    address: tuple[str, int],
    path: str,
    method: str = "GET",
    headers: Mapping[str, str | bytes] | None = None,
) -> tuple[int, str]:
    """(status, body)."""
    connection = http.client.HTTPConnection(*address, timeout=EVENT_S)
    with contextlib.closing(connection):
        connection.request(method, path, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def scrape(address: tuple[str, int]) -> dict[Sample, float]:
    """Sample name and labels to value."""
    status, text = get(address, "/metrics")
    assert status == 200
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
