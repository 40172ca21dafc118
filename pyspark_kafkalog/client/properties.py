"""The names of Kafka's client properties: with an effect here, without, and neither: typos.

A misspelt property would otherwise be passed over in silence. Names as of Apache Kafka 4.3, without
the prefix `kafka.`. Pure functions: any thread.
"""

from collections.abc import Iterable
from dataclasses import fields
from difflib import get_close_matches

from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.errors import InvalidOptionError

_SIMILARITY = 0.75
"""Of difflib's ratio: two neighbours that changed places in a word of four letters."""

WITH_EFFECT = frozenset(field.name.replace("_", ".") for field in fields(ClientConfig))
"""What `ClientConfig.from_options` reads."""

WITHOUT_EFFECT = frozenset(
    """
    allow.auto.create.topics auto.commit.interval.ms auto.offset.reset bootstrap.controllers
    check.crcs client.dns.lookup client.rack compression.gzip.level compression.lz4.level
    compression.zstd.level connections.max.idle.ms default.api.timeout.ms enable.auto.commit
    enable.metrics.push exclude.internal.topics group.id group.instance.id group.protocol
    group.remote.assignor heartbeat.interval.ms interceptor.classes key.deserializer
    key.serializer linger.ms max.block.ms max.poll.interval.ms max.poll.records
    metadata.max.idle.ms metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy
    metric.reporters metrics.num.samples metrics.recording.level metrics.sample.window.ms
    partition.assignment.strategy partitioner.adaptive.partitioning.enable
    partitioner.availability.timeout.ms
    rebalance.timeout.ms reconnect.backoff.max.ms reconnect.backoff.ms
    sasl.client.callback.handler.class sasl.kerberos.kinit.cmd
    sasl.kerberos.min.time.before.relogin sasl.kerberos.ticket.renew.jitter
    sasl.kerberos.ticket.renew.window.factor sasl.login.callback.handler.class
    sasl.login.class sasl.login.connect.timeout.ms sasl.login.read.timeout.ms
    sasl.login.refresh.buffer.seconds sasl.login.refresh.min.period.seconds
    sasl.login.refresh.window.factor sasl.login.refresh.window.jitter
    sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms
    sasl.oauthbearer.assertion.algorithm sasl.oauthbearer.assertion.claim.aud
    sasl.oauthbearer.assertion.claim.exp.seconds sasl.oauthbearer.assertion.claim.iss
    sasl.oauthbearer.assertion.claim.jti.include
    sasl.oauthbearer.assertion.claim.nbf.seconds sasl.oauthbearer.assertion.claim.sub
    sasl.oauthbearer.assertion.file sasl.oauthbearer.assertion.private.key.file
    sasl.oauthbearer.assertion.private.key.passphrase
    sasl.oauthbearer.assertion.template.file sasl.oauthbearer.clock.skew.seconds
    sasl.oauthbearer.expected.audience sasl.oauthbearer.expected.issuer
    sasl.oauthbearer.header.urlencode sasl.oauthbearer.jwks.endpoint.refresh.ms
    sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms
    sasl.oauthbearer.jwks.endpoint.retry.backoff.ms sasl.oauthbearer.jwks.endpoint.url
    sasl.oauthbearer.jwt.retriever.class sasl.oauthbearer.jwt.validator.class
    sasl.oauthbearer.scope.claim.name sasl.oauthbearer.sub.claim.name security.providers
    session.timeout.ms share.acknowledgement.mode share.acquire.mode
    socket.connection.setup.timeout.max.ms ssl.cipher.suites
    ssl.engine.factory.class ssl.keymanager.algorithm ssl.keystore.password ssl.protocol
    ssl.provider ssl.secure.random.implementation ssl.trustmanager.algorithm
    ssl.truststore.password transaction.two.phase.commit.enable
    transactional.id value.deserializer value.serializer
    """.split()  # noqa: SIM905
)
"""Kafka's other client properties: they mean nothing to a client without group, threads or JVM."""


SECURITY_WITHOUT_EFFECT = frozenset(
    {
        "sasl.client.callback.handler.class",
        "sasl.login.callback.handler.class",
        "sasl.login.class",
        "security.providers",
        "ssl.cipher.suites",
        "ssl.engine.factory.class",
        "ssl.provider",
    }
)
"""Of those, the ones by which somebody may have asked for more than is done here."""


def refuse_unknown(names: Iterable[str]) -> None:
    """Raises InvalidOptionError for the first of `names` that no Kafka client knows."""
    for name, nearest in unknown(names).items():
        hint = f" Did you mean {nearest}?" if nearest else ""
        raise InvalidOptionError(f"{name} is no property of a Kafka client.{hint}")


def unknown(names: Iterable[str]) -> dict[str, str | None]:
    """Those of `names` that no Kafka client knows, each with the nearest that has an effect."""
    return {
        name: next(iter(get_close_matches(name.lower(), WITH_EFFECT, 1, _SIMILARITY)), None)
        for name in names
        if name.lower() not in WITH_EFFECT and name.lower() not in WITHOUT_EFFECT
    }
