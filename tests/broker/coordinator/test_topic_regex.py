"""Which topics an expression means."""

from broker.coordinator.topic_regex import resolve


def test_an_expression_means_whole_names() -> None:
    names = ["t", "tick", "attic", "at"]
    assert resolve(["t", "t.*", ".*t", "none"], names) == {
        "t": {"t"},
        "t.*": {"t", "tick"},
        ".*t": {"t", "at"},
        "none": frozenset(),
    }
