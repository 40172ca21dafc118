"""A disk that refuses: the limit on the size of a file (RLIMIT_FSIZE) is set on a running broker
from outside, so that real writes of a real process fail, and lifted again."""

import resource

from tests.support.broker_child import BrokerChild


def limit_files_to(broker: BrokerChild, size_bytes: int) -> None:
    _, hard = resource.prlimit(broker.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(broker.process.pid, resource.RLIMIT_FSIZE, (size_bytes, hard))


def lift_limit(broker: BrokerChild) -> None:
    limit_files_to(broker, resource.RLIM_INFINITY)
