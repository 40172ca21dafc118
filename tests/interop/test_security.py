"""Security options as users have them, by name, against Apache Kafka; and where secrets show."""

import base64
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.errors import AuthenticationError, InvalidOptionError
from tests.pyspark_kafkalog.client.test_security import TokenEndpoint
from tests.support.kafka_server import CERTIFICATES, PASSWORD, KafkaServer, require_kafka

pytestmark = [pytest.mark.interop, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
TRUSTED = (CERTIFICATES / "trusted.pem").read_text()
STORE_PASSWORD = "pa55word-of-stores"
KEY_PASSWORD = "pa55word-of-key"
LOGIN = "org.apache.kafka.common.security"


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    require_kafka()
    with KafkaServer(tmp_path_factory.mktemp("kafka")) as running:
        yield running


def topics(port: int, **properties: str) -> object:
    """The topics that a client sees: it got in."""
    given = {"bootstrap.servers": f"127.0.0.1:{port}", "request.timeout.ms": "10000"}
    given |= {name.replace("_", "."): value for name, value in properties.items()}
    with Cluster(ClientConfig.from_options(given)) as cluster:
        return cluster.topics()


@pytest.fixture
def certificate(tmp_path: Path) -> dict[str, str]:
    """The client's chain and its key under KEY_PASSWORD, as PEM texts."""
    source = str(CERTIFICATES / "localhost.pem")
    chain = run("openssl", "x509", "-in", source)
    key = run("openssl", "pkcs8", "-topk8", "-in", source, "-passout", f"pass:{KEY_PASSWORD}")
    return {"chain": chain, "key": key}


def run(*command: str, **more: object) -> str:
    done = subprocess.run(command, capture_output=True, text=True, **more)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def test_certificates_and_an_encrypted_key_as_texts(
    kafka: KafkaServer, certificate: dict[str, str]
) -> None:
    given = {
        "security_protocol": "SSL",
        "ssl_truststore_type": "PEM",
        "ssl_truststore_certificates": TRUSTED,
        "ssl_keystore_type": "PEM",
        "ssl_keystore_certificate_chain": certificate["chain"],
        "ssl_keystore_key": certificate["key"],
    }
    assert topics(kafka.tls_port, **given, ssl_key_password=KEY_PASSWORD) is not None
    with pytest.raises(InvalidOptionError, match=r"kafka\.ssl\.key\.password") as raised:
        topics(kafka.tls_port, **given, ssl_key_password="hunter2")
    assert "hunter2" not in str(raised.value)


def test_a_key_in_a_file_of_a_secrets_directory(
    kafka: KafkaServer, certificate: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "client.key").write_text(certificate["key"])
    (tmp_path / "secrets.properties").write_text(f"key = {KEY_PASSWORD}\n")
    assert (
        topics(
            kafka.tls_port,
            security_protocol="SSL",
            ssl_truststore_location=str(CERTIFICATES / "trusted.pem"),
            ssl_keystore_certificate_chain=certificate["chain"],
            ssl_keystore_key=f"${{dir:{tmp_path}:client.key}}",
            ssl_key_password=f"${{file:{tmp_path}/secrets.properties:key}}",
        )
        is not None
    )


def test_a_host_that_the_certificate_does_not_name(kafka: KafkaServer) -> None:
    given = {
        "security_protocol": "SSL",
        "bootstrap_servers": f"0.0.0.0:{kafka.tls_port}",
        "ssl_truststore_certificates": TRUSTED,
        "ssl_keystore_location": str(CERTIFICATES / "localhost.pem"),
        "request_timeout_ms": "3000",
    }
    with pytest.raises(AuthenticationError, match=r"0\.0\.0\.0"):
        topics(0, **given)
    assert topics(0, **given, ssl_endpoint_identification_algorithm="") is not None


def test_oauthbearer_with_client_credentials(kafka: KafkaServer) -> None:
    claims = {"sub": "alice", "iat": time.time(), "exp": time.time() + 600}
    header, payload = (
        base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
        for part in ({"alg": "none"}, claims)
    )
    given = {"security_protocol": "SASL_SSL", "ssl_truststore_certificates": TRUSTED}
    with TokenEndpoint({"access_token": f"{header}.{payload}."}) as endpoint:
        assert topics(kafka.sasl_port, **given, **endpoint.options) is not None
        # As the Java client has it: id and secret in the login module line.
        options = {
            name: value for name, value in endpoint.options.items() if "credentials" not in name
        }
        line = (
            f"{LOGIN}.oauthbearer.OAuthBearerLoginModule required "
            f'clientId="me" clientSecret="{PASSWORD}" scope="logs";'
        )
        assert topics(kafka.sasl_port, **given, **options, sasl_jaas_config=line) is not None
        assert endpoint.asked[-1]["client_secret"] == [PASSWORD]
    with (
        TokenEndpoint({"access_token": f"{header}.e30."}) as endpoint,
        pytest.raises(AuthenticationError, match="refused the credentials") as raised,
    ):
        topics(kafka.sasl_port, **given, **endpoint.options)
    assert header not in str(raised.value)


@pytest.mark.parametrize("kind", ["JKS", "PKCS12"])
def test_java_stores_are_refused_with_the_command_that_converts_them(
    kafka: KafkaServer, tmp_path: Path, kind: str
) -> None:
    trust, key = make_stores(tmp_path, kind)
    for given in (
        {"ssl_truststore_location": str(trust), "ssl_truststore_type": kind},
        {"ssl_keystore_location": str(key)},
    ):
        with pytest.raises(InvalidOptionError) as raised:
            topics(kafka.tls_port, security_protocol="SSL", **given)
        command = str(raised.value).partition("Convert it: ")[2].partition(" and set ")[0]
        # The tools ask for passwords: keytool for the source's, a new one twice; openssl for that.
        answers = f"{STORE_PASSWORD}\n" * 4
        if "importkeystore" in command:
            command = command.replace("keytool", f"keytool -deststorepass {STORE_PASSWORD}")
            command = command.replace("-nodes", f"-nodes -passin pass:{STORE_PASSWORD}")
        run("bash", "-c", command, input=answers)
    assert (
        topics(
            kafka.tls_port,
            security_protocol="SSL",
            ssl_truststore_location=str(trust.with_suffix(".pem")),
            ssl_keystore_location=str(key.with_suffix(".pem")),
        )
        is not None
    )


def make_stores(directory: Path, kind: str) -> tuple[Path, Path]:
    """A truststore and a keystore as Java has them, with the test's certificates."""
    suffix = ".jks" if kind == "JKS" else ".p12"
    trust, key, bundle = directory / f"trust{suffix}", directory / f"key{suffix}", directory / "b"
    password = ["-storepass", STORE_PASSWORD]
    run(
        *("keytool", "-importcert", "-noprompt", "-alias", "ca", "-storetype", kind, *password),
        *("-file", str(CERTIFICATES / "trusted.pem"), "-keystore", str(trust)),
    )
    run(
        *("openssl", "pkcs12", "-export", "-in", str(CERTIFICATES / "localhost.pem")),
        *("-out", str(bundle), "-passout", f"pass:{STORE_PASSWORD}"),
    )
    run(
        *("keytool", "-importkeystore", "-noprompt", "-srcstoretype", "PKCS12"),
        *("-srckeystore", str(bundle), "-srcstorepass", STORE_PASSWORD),
        *("-destkeystore", str(key), "-deststoretype", kind, "-deststorepass", STORE_PASSWORD),
    )
    return trust, key


# Where a secret might show: everything that a Spark program of every kind of job leaves behind


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.parametrize("kept", ["as a reference", "as text"])
def test_no_secret_shows_anywhere(kafka: KafkaServer, tmp_path: Path, kept: str) -> None:
    password = "${env:KAFKALOG_TEST_PASSWORD}" if kept == "as a reference" else PASSWORD
    options = {
        "kafka.bootstrap.servers": f"localhost:{kafka.sasl_port}",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.ssl.truststore.location": str(CERTIFICATES / "trusted.pem"),
        "kafka.request.timeout.ms": "10000",
        "kafka.sasl.jaas.config": (
            f'{LOGIN}.scram.ScramLoginModule required username="alice" password="{password}";'
        ),
    }
    (tmp_path / "options.json").write_text(json.dumps(options))
    log = tmp_path / "log.txt"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {
        **os.environ,
        "PATH": path,
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "KAFKALOG_TEST_PASSWORD": PASSWORD,
    }
    program = ROOT / "tests" / "interop" / "secured_jobs.py"
    with log.open("wb") as output:
        done = subprocess.run(
            [sys.executable, str(program), str(tmp_path)],
            cwd=tmp_path,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=300,
        )
    shown = log.read_text(errors="replace")
    assert done.returncode == 0, shown[-4000:]
    assert "subscribe" in shown
    leaks = [
        (path.relative_to(tmp_path), line[:300])
        for path in tmp_path.rglob("*")
        if path.is_file() and path.name != "options.json"
        for line in path.read_text(errors="replace").splitlines()
        if PASSWORD in line or "hunter2" in line
    ]
    assert not leaks
