"""A Kafka broker: `python -m broker`."""

from broker.kafka_package import leave_unopened

leave_unopened()
