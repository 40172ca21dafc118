"""ACLs, credentials and quotas, on a broker without an authorizer, in Apache Kafka's words."""

import base64
import hashlib
import hmac
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.admin import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)

from tests.broker.api.conftest import Eventually
from tests.support.broker_child import BrokerChild, RawClient

SECURITY_DISABLED, NOT_FOUND, DUPLICATE, UNACCEPTABLE, UNSUPPORTED = 54, 91, 92, 93, 33
SHA_256, SHA_512 = 1, 2


@pytest.mark.parametrize("version", [1, 2, 3])
def test_there_is_no_authorizer(client: RawClient, version: int) -> None:
    anything = DescribeAclsRequest(
        resource_type_filter=1,
        resource_name_filter=None,
        pattern_type_filter=1,
        principal_filter=None,
        host_filter=None,
        operation=1,
        permission_type=1,
    )
    described = client.call(anything, DescribeAclsResponse, version)
    assert (described.error_code, described.error_message, described.resources) == (
        SECURITY_DISABLED,
        "No Authorizer is configured on the broker",
        [],
    )
    acl = CreateAclsRequest.AclCreation(
        resource_type=2,
        resource_name="topic",
        resource_pattern_type=3,
        principal="User:alice",
        host="*",
        operation=3,
        permission_type=3,
    )
    created = client.call(CreateAclsRequest(creations=[acl, acl]), CreateAclsResponse, version)
    found = [(result.error_code, result.error_message) for result in created.results]
    assert found == [(SECURITY_DISABLED, "No Authorizer is configured.")] * 2
    those = DeleteAclsRequest.DeleteAclsFilter(
        resource_type_filter=2,
        resource_name_filter="topic",
        pattern_type_filter=3,
        principal_filter=None,
        host_filter=None,
        operation=1,
        permission_type=1,
    )
    deleted = client.call(DeleteAclsRequest(filters=[those]), DeleteAclsResponse, version)
    (result,) = deleted.filter_results
    assert (result.error_code, result.error_message, result.matching_acls) == (
        SECURITY_DISABLED,
        "No Authorizer is configured.",
        [],
    )


class Users:
    def __init__(self, client: RawClient) -> None:
        self._client = client

    def alter(
        self, delete: Sequence[tuple[str, int]] = (), upsert: Sequence[tuple[str, int, int]] = ()
    ) -> dict[Any, Any]:
        """`delete`: (user, mechanism), `upsert`: those and the iterations; user to error."""
        request = AlterUserScramCredentialsRequest(
            deletions=[
                AlterUserScramCredentialsRequest.ScramCredentialDeletion(
                    name=name, mechanism=mechanism
                )
                for name, mechanism in delete
            ],
            upsertions=[
                AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
                    name=name,
                    mechanism=mechanism,
                    iterations=iterations,
                    salt=b"salt",
                    salted_password=b"x" * 32,
                )
                for name, mechanism, iterations in upsert
            ],
        )
        response = self._client.call(request, AlterUserScramCredentialsResponse, 0)
        return {r.user: (r.error_code, r.error_message) for r in response.results}

    def describe(self, *names: str) -> dict[Any, Any]:
        """User to (error, message, {mechanism: iterations})."""
        users = [DescribeUserScramCredentialsRequest.UserName(name=name) for name in names]
        request = DescribeUserScramCredentialsRequest(users=users or None)
        response = self._client.call(request, DescribeUserScramCredentialsResponse, 0)
        assert (response.error_code, response.error_message) == (0, "")
        return {
            result.user: (
                result.error_code,
                result.error_message,
                {info.mechanism: info.iterations for info in result.credential_infos},
            )
            for result in response.results
        }


@pytest.fixture
def users(client: RawClient) -> Users:
    return Users(client)


def test_credentials_come_and_go(
    users: Users,
    topic_name: str,
    eventually: Eventually,
) -> None:
    name = f"user of {topic_name}/\u00e9"
    assert users.alter(upsert=[(name, SHA_256, 4096)]) == {name: (0, None)}
    assert users.alter(upsert=[(name, SHA_512, 8192)]) == {name: (0, None)}
    eventually(lambda: users.describe(name), {name: (0, "", {SHA_256: 4096, SHA_512: 8192})})
    assert users.alter(upsert=[(name, SHA_256, 5000)]) == {name: (0, None)}
    assert users.alter(delete=[(name, SHA_512)]) == {name: (0, None)}
    eventually(lambda: users.describe().get(name), (0, "", {SHA_256: 5000}))
    assert users.alter(delete=[(name, SHA_256)]) == {name: (0, None)}
    missing = f"Attempt to describe a user credential that does not exist: {name}"
    eventually(lambda: users.describe(name), {name: (NOT_FOUND, missing, {})})
    assert name not in users.describe()


@pytest.mark.parametrize(
    ("delete", "upsert", "error"),
    [
        ([("", 1)], [], (UNACCEPTABLE, "Username must not be empty")),
        ([], [("", 1, 4096)], (UNACCEPTABLE, "Username must not be empty")),
        (
            [("nobody", 1)],
            [],
            (NOT_FOUND, "Attempt to delete a user credential that does not exist"),
        ),
        ([("nobody", 0)], [], (UNSUPPORTED, "Unknown SCRAM mechanism")),
        ([], [("nobody", 3, 4096)], (UNSUPPORTED, "Unknown SCRAM mechanism")),
        ([], [("nobody", 1, 4095)], (UNACCEPTABLE, "Too few iterations")),
        ([], [("nobody", 1, 16385)], (UNACCEPTABLE, "Too many iterations")),
        (
            [],
            [("nobody", 1, 4096), ("nobody", 1, 8192)],
            (DUPLICATE, "A user credential cannot be altered twice in the same request"),
        ),
        (
            [("nobody", 1)],
            [("nobody", 2, 8192)],
            (NOT_FOUND, "Attempt to delete a user credential that does not exist"),
        ),
        (
            [],
            [("nobody", 2, 8192), ("nobody", 1, 8192)],
            (DUPLICATE, "A user credential cannot be altered twice in the same request"),
        ),
    ],
)
def test_credentials_that_are_refused_change_nothing(
    users: Users,
    delete: list[tuple[str, int]],
    upsert: list[tuple[str, int, int]],
    error: tuple[int, str],
) -> None:
    (name,) = {each[0] for each in (*delete, *upsert)}
    assert users.alter(delete, upsert) == {name: error}
    assert name not in users.describe()


def test_a_user_that_is_named_twice(users: Users) -> None:
    twice = users.describe("nobody", "somebody", "nobody")
    assert twice["nobody"] == (
        DUPLICATE,
        "Cannot describe SCRAM credentials for the same user twice in a single request: nobody",
        {},
    )
    assert twice["somebody"][0] == NOT_FOUND


def test_credentials_outlive_a_restart_and_tell_no_password(tmp_path: Path) -> None:
    with BrokerChild(tmp_path) as child, RawClient(child.host, child.port) as client:
        assert Users(client).alter(upsert=[("alice", SHA_256, 4096)]) == {"alice": (0, None)}
        child.kill()
    kept = b"".join(each.read_bytes() for each in tmp_path.glob("metadata.db*"))
    client_key = hmac.digest(b"x" * 32, b"Client Key", "sha256")
    assert base64.b64encode(hashlib.sha256(client_key).digest()) in kept
    assert b"x" * 32 not in kept
    assert base64.b64encode(b"x" * 32) not in kept
    with BrokerChild(tmp_path) as child, RawClient(child.host, child.port) as client:
        assert Users(client).describe() == {"alice": (0, "", {SHA_256: 4096})}


EXACT, DEFAULT, ANY = 0, 1, 2


@pytest.mark.parametrize(
    ("parts", "code", "message"),
    [
        ([], 0, ""),
        ([("user", EXACT, "alice"), ("client-id", ANY, None)], 0, ""),
        ([("ip", DEFAULT, None)], 0, ""),
        ([("foo", EXACT, "a")], 35, "Unsupported entity type foo"),
        ([("", EXACT, "a")], 42, "Invalid empty entity type."),
        ([("user", 7, "a")], 42, "Unknown match type 7"),
        (
            [("user", EXACT, None)],
            42,
            "Request specified MATCH_TYPE_EXACT, but set match string to null.",
        ),
        (
            [("user", DEFAULT, "a")],
            42,
            "Request specified MATCH_TYPE_DEFAULT, but also specified a match string.",
        ),
        (
            [("user", ANY, "a")],
            42,
            "Request specified MATCH_TYPE_SPECIFIED, but also specified a match string.",
        ),
        (
            [("user", EXACT, "a"), ("user", EXACT, "b")],
            42,
            "Entity type user cannot appear more than once in the filter.",
        ),
        (
            [("user", EXACT, "a"), ("ip", EXACT, "1.1.1.1")],
            42,
            "Invalid entity filter component combination. IP filter component should not be used "
            "with user or clientId filter component.",
        ),
    ],
)
@pytest.mark.parametrize("version", [0, 1])
def test_there_are_no_quotas(
    client: RawClient,
    parts: list[tuple[str, int, str | None]],
    code: int,
    message: str,
    version: int,
) -> None:
    request = DescribeClientQuotasRequest(
        components=[
            DescribeClientQuotasRequest.ComponentData(
                entity_type=kind, match_type=match_type, match=match
            )
            for kind, match_type, match in parts
        ],
        strict=False,
    )
    response = client.call(request, DescribeClientQuotasResponse, version)
    assert (response.error_code, response.error_message) == (code, message)
    assert response.entries == (None if code else [])
