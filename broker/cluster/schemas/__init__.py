"""Messages between brokers that kafka.protocol has no schema of, in Kafka's notation.

Field names are Kafka's, but for `Type`, which is `RequestType` here: kafka.protocol's classes have
a `type` of their own. Each in the version that brokers speak at inter.broker.protocol.version 3.9.
"""
