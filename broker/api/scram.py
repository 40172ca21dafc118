"""SCRAM credentials as they are kept (RFC 5802, KIP-554): text of Kafka's own form, by mechanism.

    SCRAM-SHA-256 -> salt=BASE64,stored_key=BASE64,server_key=BASE64,iterations=N

A client sends the salted password; what is kept of it proves who knows the password and cannot be
used to log in. Pure functions: any thread. Called by: the APIs of users' credentials.
"""

import base64
import hashlib
import hmac
from typing import Final

MECHANISMS: Final = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
"""By their numbers in the protocol."""
LEAST_ITERATIONS: Final = 4096
MOST_ITERATIONS: Final = 16384
_DIGESTS = {1: "sha256", 2: "sha512"}


def dump_credential(mechanism: int, salt: bytes, salted_password: bytes, iterations: int) -> str:
    digest = _DIGESTS[mechanism]
    client_key = hmac.digest(salted_password, b"Client Key", digest)
    fields = {
        "salt": salt,
        "stored_key": hashlib.new(digest, client_key).digest(),
        "server_key": hmac.digest(salted_password, b"Server Key", digest),
    }
    parts = [f"{name}={base64.b64encode(value).decode()}" for name, value in fields.items()]
    return ",".join([*parts, f"iterations={iterations}"])


def iterations_of(credential: str) -> int:
    return int(credential.rpartition("iterations=")[2])
