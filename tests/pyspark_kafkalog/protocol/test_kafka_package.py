"""Our processes take of kafka-python what they use; whoever wants the rest there gets it."""

import subprocess
import sys

STARTED = """
import sys
import broker.__main__
import kafka.errors

assert "kafka.consumer" not in sys.modules
"""


def run(program: str) -> None:
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_a_broker_imports_no_clients() -> None:
    run(STARTED)


def test_the_clients_are_there_for_who_asks() -> None:
    run(
        STARTED
        + """
import kafka
from kafka import KafkaConsumer

assert KafkaConsumer is kafka.consumer.KafkaConsumer
assert kafka.__version__
assert kafka.errors is sys.modules["kafka.errors"]
"""
    )


def test_a_package_that_was_imported_before_stays() -> None:
    run(
        """
import kafka
before = vars(kafka).copy()
import broker.__main__

assert before.items() <= vars(kafka).items()
"""
    )
