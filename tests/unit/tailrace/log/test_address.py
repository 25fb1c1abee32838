from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from tailrace.log import address, clients
from tests.support import cases

SECURE = "sasl+ssl://tailrace-push@a:9093,b:9093?password_file=/p&ca_file=/c"


def certificate(tmp_path: Path) -> Path:
    """Any certificate will do as an authority: the one that this Python trusts first."""
    context = ssl.create_default_context()
    file = tmp_path / "ca.crt"
    der = context.get_ca_certs(binary_form=True)[0]
    file.write_text(ssl.DER_cert_to_PEM_cert(der))
    return file


@pytest.mark.parametrize("text", ["127.0.0.1:9092", "a:9092,b:9092"])
def test_a_plain_address_stays_as_it_is(text: str) -> None:
    assert address.options(text) == {"bootstrap_servers": text}


def test_a_secure_address_is_read() -> None:
    assert address.parse(SECURE) == address.Bootstrap("a:9093,b:9093", "tailrace-push", "/p", "/c")


@cases.each(
    "text",
    [
        "",
        "user@host:9092",
        "host:9092?ca_file=/c",
        "kafka://u@h:1?password_file=/p&ca_file=/c",
        "sasl+ssl://h:1?password_file=/p&ca_file=/c",
        "sasl+ssl://u@h:1",
        "sasl+ssl://u@h:1?password_file=/p",
        "sasl+ssl://u@h:1?password_file=/p&ca_file=/c&insecure=1",
        "sasl+ssl://u@?password_file=/p&ca_file=/c",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(address.InvalidBootstrap):
        address.parse(text)


def test_a_password_in_the_text_is_refused_and_not_repeated() -> None:
    with pytest.raises(address.InvalidBootstrap) as refused:
        address.parse("sasl+ssl://u:hunter2@h:1?password_file=/p&ca_file=/c")
    assert "hunter2" not in str(refused.value)


def test_the_files_are_read_anew_for_each_client(tmp_path: Path) -> None:
    ca, password = certificate(tmp_path), tmp_path / "password"
    text = f"sasl+ssl://push@h:9093?password_file={password}&ca_file={ca}"
    password.write_text("first\n")
    first = address.options(text)
    password.write_text("second")
    assert (first["sasl_plain_password"], address.options(text)["sasl_plain_password"]) == (
        "first",
        "second",
    )
    assert first["security_protocol"] == "SASL_SSL"
    assert first["sasl_mechanism"] == "SCRAM-SHA-512"
    assert first["ssl_context"].verify_mode is ssl.CERT_REQUIRED
    assert first["ssl_context"].check_hostname


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(address.UnreadableFile, match="nowhere") as refused:
        address.options(f"sasl+ssl://push@h:9093?password_file={tmp_path / 'nowhere'}&ca_file=/c")
    # A Secret that is replaced may lack its file for a moment: clients try again.
    assert isinstance(refused.value, clients.CONNECTION_ERRORS)
