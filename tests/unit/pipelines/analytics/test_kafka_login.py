"""The options with which the tables of Flink SQL log in to Kafka (`KafkaLogin.java`).

They were tried with the clients in Flink's connector, which take them, but not against a broker
with SASL.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from pipelines.analytics import programs

SHADED = "org.apache.flink.kafka.shaded.org.apache.kafka.common"
FILES = "password_file=/run/secrets/kafka/password&ca_file=/run/ca.crt"
LOGIN = f"sasl+ssl://tailrace-analytics@kafka:9093?{FILES}"
PLAIN = "127.0.0.1:1,127.0.0.1:2"
QUOTE = "sasl+ssl://a@b:1?password_file=/x/y&ca_file=/it%27s"
REFUSED = [
    "",
    "user@kafka:9093",
    f"ssl://a@b:1?{FILES}",
    f"sasl+ssl://b:1?{FILES}",
    f"sasl+ssl://user:hunter2@b:1?{FILES}",
    f"sasl+ssl://a%22@b:1?{FILES}",
    "sasl+ssl://a@b:1",
    "sasl+ssl://a@b:1?password_file=/x/y",
    "sasl+ssl://a@b:1?password_file=relative&ca_file=/c",
    "sasl+ssl://a@b:1?password_file=/x/y%7D&ca_file=/c",
    f"sasl+ssl://a@b:1?{FILES}&more=1",
]


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What it prints for each address. One process for all of them, as a start takes a second."""
    try:
        java, javac = programs.find_java(), programs.find_javac()
    except programs.Missing as missing:
        pytest.skip(f"needs {missing}")
    classes = tmp_path_factory.mktemp("classes")
    source = programs.HERE / "KafkaLogin.java"
    subprocess.run([javac, "-d", classes, source], check=True, timeout=60)
    addresses = [LOGIN, PLAIN, QUOTE, *REFUSED]
    command = [str(java), "-cp", str(classes), "KafkaLogin", *addresses]
    process = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return dict(zip(addresses, process.stdout.removesuffix("\n\n").split("\n\n"), strict=True))


def options(printed: str) -> dict[str, str]:
    """Of `'properties.NAME' = 'VALUE'` lines, as Flink reads them."""
    matches = re.findall(r"'properties\.(.+?)' = '((?:[^']|'')*)'(?:,\n|$)", printed)
    return {name: value.replace("''", "'") for name, value in matches}


def test_a_login_names_files_and_holds_no_password(printed: dict[str, str]) -> None:
    assert options(printed[LOGIN]) == {
        "bootstrap.servers": "kafka:9093",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "config.providers": "directory",
        "config.providers.directory.class": f"{SHADED}.config.provider.DirectoryConfigProvider",
        "sasl.jaas.config": (
            f'{SHADED}.security.scram.ScramLoginModule required username="tailrace-analytics" '
            'password="${directory:/run/secrets/kafka:password}";'
        ),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "/run/ca.crt",
    }


def test_a_plain_address_is_only_where_kafka_is(printed: dict[str, str]) -> None:
    assert options(printed[PLAIN]) == {"bootstrap.servers": PLAIN}


def test_a_quote_does_not_end_an_option(printed: dict[str, str]) -> None:
    assert options(printed[QUOTE])["ssl.truststore.location"] == "/it's"


@pytest.mark.parametrize("address", REFUSED)
def test_another_address_is_refused_and_no_secret_is_repeated(
    address: str, printed: dict[str, str]
) -> None:
    assert printed[address].startswith("refused: expected ")
    assert "hunter2" not in printed[address]


def test_every_table_says_where_kafka_is() -> None:
    """As a line of its own, because it may become several. A comment would end behind the first."""
    for file in Path(programs.HERE / "sql").glob("*.sql"):
        text = file.read_text()
        connectors = len(re.findall(r"'connector' = '(?:upsert-)?kafka'", text))
        assert len(re.findall(r"^  \$\{kafka\},$", text, re.MULTILINE)) == connectors
        assert text.count("${kafka}") == connectors > 0
