"""What is set on topics, brokers, groups and users, as it stands in a MetadataStore.

Owns: the nodes below /config, in Kafka's layout. Any broker of a cluster writes them, each where
nobody has written since it read, and in the same commit the notice by which the others hear of it
(`config_notices`). What somebody else has written there may be nonsense. Every method blocks.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kafka.errors import UnknownTopicOrPartitionError

from broker.cluster import znodes
from broker.cluster.store import (
    ANY_VERSION,
    BadVersionError,
    Check,
    Create,
    Delete,
    MetadataStore,
    NodeExistsError,
    NoNodeError,
    Operation,
    Set,
)

_log = logging.getLogger(__name__)

Configs = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class StoredConfigs:
    """What is set on an entity; `version`: of its node, None where there is none."""

    values: Configs
    version: int | None


class ConfigRecords:
    """The entities of each kind (znodes' names for them) that something is set on."""

    def __init__(self, store: MetadataStore, *, tells_others: bool) -> None:
        """`tells_others`: there are other brokers, who follow the notices."""
        self._store = store
        self._tells_others = tells_others

    def names(self, kind: str) -> list[str]:
        """Of all whose nodes are called as Kafka calls them."""
        nodes = self._store.children(znodes.entity_configs(kind))
        names = {node: znodes.entity_name(node) for node in nodes}
        return [name for node, name in names.items() if znodes.entity_node(kind, name) == node]

    def read(self, kind: str, name: str) -> StoredConfigs:
        """Raises ValueError for what is no config."""
        try:
            node = self._store.get(znodes.entity_config(kind, name))
        except NoNodeError:
            return StoredConfigs({}, None)
        # Kafka's folders, of users with quotas for their clients, have no value.
        values = znodes.load_config(node.value) if node.value else {}
        return StoredConfigs(values, node.version)

    def read_or_nothing(self, kind: str, name: str) -> StoredConfigs:
        """As `read`; nothing is set where that is nonsense."""
        try:
            return self.read(kind, name)
        except ValueError as error:
            _log.error("%s.config_ignored name=%r reason=%r", kind, name, str(error))
            return StoredConfigs({}, self._store.get(znodes.entity_config(kind, name)).version)

    def change(self, kind: str, name: str, changed: Callable[[Configs], Configs]) -> Configs:
        """Sets what `changed` makes of what is set on the entity: what is set by that.

        Raises what `changed` raises, and UnknownTopicOrPartitionError where there is no such topic.
        """
        while True:
            before = self.read_or_nothing(kind, name)
            configs = dict(changed(before.values))
            if configs == before.values:
                return configs
            try:
                self._write(kind, name, before, configs)
            except (BadVersionError, NodeExistsError, NoNodeError):
                continue  # somebody has set it meanwhile
            return configs

    def _write(self, kind: str, name: str, before: StoredConfigs, configs: Configs) -> None:
        """Where it is still as `before`."""
        path, value = znodes.entity_config(kind, name), znodes.dump_config(configs)
        is_topic = kind == znodes.TOPIC_ENTITIES
        if is_topic and not self._store.exists(znodes.topic(name)):
            raise UnknownTopicOrPartitionError(f"topic {name!r} is not there, or just going")
        operations: list[Operation] = []
        if is_topic:
            operations.append(Check(znodes.topic(name), ANY_VERSION))
        if before.version is None:
            operations.append(Create(path, value))
        elif kind == znodes.GROUPS and not configs:
            operations.append(Delete(path, before.version))
        else:
            operations.append(Set(path, value, before.version))
        if self._tells_others:
            notice = znodes.dump_config_change(kind, name)
            operations.append(Create(znodes.config_change(), notice, sequence=True))
        self._store.commit(operations)
