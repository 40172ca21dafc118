"""What of an error's traceback is left for Spark to show."""

import os
import traceback

import pytest

from pyspark_kafkalog.errors import DataLossError
from pyspark_kafkalog.source.plain_errors import PlainErrors


@PlainErrors()
def call(error: Exception) -> None:
    deep_inside(error)


def deep_inside(error: Exception) -> None:
    raise error from OSError("the cause")


def shown_for(error: Exception) -> str:
    with pytest.raises(type(error)) as caught:
        call(error)
    return "".join(traceback.format_exception(caught.value))


def test_our_own_errors_show_their_sentence_and_the_log_the_rest(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG", "pyspark_kafkalog")
    shown = shown_for(DataLossError("Offsets are gone."))
    assert shown.endswith("pyspark_kafkalog.errors.DataLossError: Offsets are gone.\n")
    assert "deep_inside" not in shown
    assert "the cause" not in shown
    assert "deep_inside" in caplog.text
    # Whoever is not Spark's worker goes on, and may launch a Spark.
    assert "SPARK_HIDE_TRACEBACK" not in os.environ


def test_other_errors_keep_their_traceback() -> None:
    assert "deep_inside" in shown_for(ZeroDivisionError())
