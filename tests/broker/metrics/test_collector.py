"""What the collector makes of plain numbers."""

from broker.histogram import BOUNDS_MS, Histogram
from broker.log.cleaner_manager import CleanerFigures
from broker.metrics.collector import _cleaner_metrics


def test_the_cleaners_progress() -> None:
    figures = CleanerFigures(
        bytes_read=1000,
        bytes_written=400,
        records_read=10,
        records_kept=4,
        cleanings=2,
        failures=1,
        last_duration_ms=30,
        max_dirty_ratio=0.75,
        uncleanable_logs=1,
    )
    values = {s.name: s.value for family in _cleaner_metrics(figures) for s in family.samples}
    assert values["kafka_log_log_cleaner_bytes_read_total"] == 1000
    assert values["kafka_log_log_cleaner_cleanings_total"] == 2
    assert values["kafka_log_log_cleaner_manager_max_dirty_percent"] == 75
    assert values["kafka_log_log_cleaner_manager_uncleanable_partitions_count"] == 1


def test_a_duration_falls_into_the_first_bucket_that_holds_it() -> None:
    histogram = Histogram()
    for duration_ms in (0, BOUNDS_MS[0], BOUNDS_MS[0] + 0.01, BOUNDS_MS[-1] + 1):
        histogram.observe(duration_ms)
    assert histogram.counts[:2] == [2, 1]
    assert histogram.counts[-1] == 1
    both = Histogram()
    both.add(histogram)
    both.add(histogram)
    assert sum(both.counts) == 8
    assert both.sum_ms == 2 * histogram.sum_ms
