"""What one task of a worker leaves for the next."""

import socket

from pyspark_kafkalog.source.python_worker import kept_producer
from tests.pyspark_kafkalog.client.scripted import INIT_PRODUCER_ID
from tests.pyspark_kafkalog.client.test_producer import T0, LogBroker, one_batch


def test_a_producers_id_is_kept_as_long_as_its_connections_are() -> None:
    """After a lost one the broker may be another, which has given the id to somebody else."""
    with LogBroker() as broker:
        config = broker.config()

        def write(text: str) -> None:
            with kept_producer(config) as producer:
                producer.send(T0, one_batch(text))

        write("a")
        write("b")
        assert len(broker.asked(INIT_PRODUCER_ID)) == 1
        for each in broker._sockets:
            each.shutdown(socket.SHUT_RDWR)
        write("c")
        assert len(broker.asked(INIT_PRODUCER_ID)) == 2
