"""What the nodes of the tree are called and what stands in them: Apache Kafka's own layout.

    /cluster/id                           {"version": "1", "id": cluster id}
    /controller                           {"brokerid": the controller, ...} (ephemeral)
    /controller_epoch                     how many controllers there were, as text
    /brokers/ids/N                        a live broker: host, port, endpoints (ephemeral)
    /brokers/topics/T                     {"topic_id": ..., "partitions": {"0": [replicas]}, ...}
    /brokers/topics/T/partitions/P/state  {"leader", "leader_epoch", "isr", "controller_epoch", ...}
    /config/topics/T                      {"version": 1, "config": {name: value}}
    /config/brokers/N                     the same, for one broker; <default>: for all of them
    /config/groups/G, /config/users/U     the same, for a group and a user: names are URL-encoded
    /config/changes/config_change_N       {"version": 2, "entity_path": "topics/T"}: has been set
    /admin/delete_topics/T                a topic on its way out
    /admin/reassign_partitions            {"version": 1, "partitions": [{"topic", "partition",
                                          "replicas"}]}: what an old tool asks for
    /admin/preferred_replica_election     the same without replicas
    /log_dir_event_notification/log_dir_event_N
                                          {"version": 1, "broker", "event": 1}: has failed logs
    /latest_producer_id_block             {"broker", "block_start", "block_end"}
    /feature                              {"features": {}, "version": 2, "status": 1}: none is set

As Kafka 3.9 writes them in ZooKeeper mode, so that tools and old clients that read ZooKeeper can.
Pure functions between bytes and values: any thread. Never touches a store.
"""

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote

from kafka.structs import TopicPartition

from broker.cluster.metadata import PartitionMetadata, TopicMetadata
from pyspark_kafkalog.protocol.uuid_text import encode_uuid

CLUSTER_ID = "/cluster/id"
BROKERS = "/brokers/ids"
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
TOPICS = "/brokers/topics"
BROKER_DEFAULT = "<default>"
BROKER_ENTITIES = "brokers"
TOPIC_ENTITIES = "topics"
GROUPS = "groups"
USERS = "users"
CONFIG_CHANGES = "/config/changes"
DELETED_TOPICS = "/admin/delete_topics"
REASSIGNMENTS = "/admin/reassign_partitions"
PREFERRED_ELECTIONS = "/admin/preferred_replica_election"
LOG_DIR_EVENTS = "/log_dir_event_notification"
PRODUCER_ID_BLOCK = "/latest_producer_id_block"
FEATURES = "/feature"
FOLDERS = (
    BROKERS,
    TOPICS,
    "/brokers/seqid",
    "/config/topics",
    "/config/brokers",
    "/config/clients",
    "/config/groups",
    "/config/ips",
    "/config/users",
    CONFIG_CHANGES,
    DELETED_TOPICS,
    "/isr_change_notification",
    LOG_DIR_EVENTS,
    PRODUCER_ID_BLOCK,
    "/consumers",
)
"""There in every cluster. All but /config/groups are Kafka's: its brokers, tools and clients expect
them, those too that only they write to."""


def broker(node_id: int) -> str:
    return f"{BROKERS}/{node_id}"


def topic(name: str) -> str:
    return f"{TOPICS}/{name}"


def partitions(name: str) -> str:
    return f"{TOPICS}/{name}/partitions"


def partition(name: str, index: int) -> str:
    return f"{TOPICS}/{name}/partitions/{index}"


def partition_state(name: str, index: int) -> str:
    return f"{TOPICS}/{name}/partitions/{index}/state"


def topic_config(name: str) -> str:
    return f"{entity_configs(TOPIC_ENTITIES)}/{name}"


def entity_configs(kind: str) -> str:
    return f"/config/{kind}"


def entity_config(kind: str, name: str) -> str:
    return f"{entity_configs(kind)}/{entity_node(kind, name)}"


def entity_node(kind: str, name: str) -> str:
    """The name of an entity's node: groups' and users' may have any letters."""
    node = name if kind == BROKER_ENTITIES else quote(name, safe="")
    # ZooKeeper takes no path with these, and so Kafka no such names.
    return node.replace(".", "%2E") if node in (".", "..") else node


def entity_name(node: str) -> str:
    """The entity's, of its node's name."""
    return unquote(node)


def config_change() -> str:
    """To which a number is added."""
    return f"{CONFIG_CHANGES}/config_change_"


def log_dir_event(node: str = "log_dir_event_") -> str:
    """To which a number is added, unless it is the name of one."""
    return f"{LOG_DIR_EVENTS}/{node}"


def dump_log_dir_event(node_id: int) -> bytes:
    return dump({"version": 1, "broker": node_id, "event": 1})


def load_log_dir_event(value: bytes) -> int:
    """The broker that has failed logs. Raises ValueError."""
    try:
        return int(load(value)["broker"])
    except (KeyError, TypeError) as error:
        raise ValueError("no event of a log directory") from error


def deleted_topic(name: str) -> str:
    return f"{DELETED_TOPICS}/{name}"


def dump(value: Mapping[str, object]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def load(value: bytes) -> dict[str, Any]:
    """Raises ValueError."""
    try:
        loaded = json.loads(value)
    except RecursionError as error:
        raise ValueError("a node's value is nested too deeply") from error
    if not isinstance(loaded, dict):
        raise ValueError("a node's value is a JSON object")
    return loaded


def dump_topic(topic: TopicMetadata) -> bytes:
    """Who keeps its partitions."""
    partitions = {str(index): state for index, state in enumerate(topic.partitions)}
    return dump(
        {
            "version": 3,
            "topic_id": encode_uuid(topic.topic_id),
            "partitions": {index: state.replicas for index, state in partitions.items()},
            "adding_replicas": {
                index: state.adding for index, state in partitions.items() if state.adding
            },
            "removing_replicas": {
                index: state.removing for index, state in partitions.items() if state.removing
            },
        }
    )


def dump_partition_state(state: PartitionMetadata, controller_epoch: int) -> bytes:
    """Who leads it, and who is in sync."""
    value: dict[str, object] = {
        "controller_epoch": controller_epoch,
        "leader": state.leader,
        "version": 1,
        "leader_epoch": state.leader_epoch,
        "isr": state.isr,
    }
    if state.is_recovering:
        value["leader_recovery_state"] = 1
    return dump(value)


def load_request(value: bytes) -> dict[TopicPartition, list[int]]:
    """The partitions that an old tool names, and the replicas that they are to have, if any.
    Raises ValueError."""
    try:
        return {
            TopicPartition(str(asked["topic"]), int(asked["partition"])): [
                int(node_id) for node_id in asked.get("replicas", ())
            ]
            for asked in load(value)["partitions"]
        }
    except (AttributeError, LookupError, OverflowError, TypeError) as error:
        raise ValueError(f"a request names partitions: {error!r}") from error


def dump_controller(node_id: int, elected_ms: int) -> bytes:
    return dump(
        {
            "version": 2,
            "brokerid": node_id,
            "timestamp": str(elected_ms),
            "kraftControllerEpoch": -1,
        }
    )


def dump_no_features() -> bytes:
    """As a controller of Kafka 3.9 finds it, or makes it."""
    return dump({"features": {}, "version": 2, "status": 1})


def dump_config(config: Mapping[str, str]) -> bytes:
    return dump({"version": 1, "config": dict(config)})


def load_config(value: bytes) -> dict[str, str]:
    """Raises ValueError."""
    config = load(value).get("config")
    if not isinstance(config, dict) or not all(isinstance(text, str) for text in config.values()):
        raise ValueError("a config is an object of texts")
    return config


def dump_config_change(kind: str, name: str) -> bytes:
    return dump({"version": 2, "entity_path": f"{kind}/{entity_node(kind, name)}"})


def load_config_change(value: bytes) -> tuple[str, str]:
    """The kind of entity whose config was set, and its name. Raises ValueError."""
    change = load(value)
    if change.get("version") == 1:
        kind, node = change.get("entity_type"), change.get("entity_name")
    else:
        kind, _, node = str(change.get("entity_path")).partition("/")
    if not kind or not node or change.get("version") not in (1, 2):
        raise ValueError("a change of a config names an entity")
    return str(kind), entity_name(str(node))


def dump_broker(host: str, port: int, rack: str | None, started_ms: int) -> bytes:
    value: dict[str, object] = {
        "version": 5,
        "host": host,
        "port": port,
        "jmx_port": -1,
        "timestamp": str(started_ms),
        "endpoints": [f"PLAINTEXT://{host}:{port}"],
        "listener_security_protocol_map": {"PLAINTEXT": "PLAINTEXT"},
        "features": {},
    }
    if rack is not None:
        value["rack"] = rack
    return dump(value)
