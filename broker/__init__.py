"""A Kafka broker: `python -m broker`."""

from pyspark_kafkalog.protocol.kafka_package import leave_unopened

leave_unopened()
