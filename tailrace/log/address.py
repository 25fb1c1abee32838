"""Reads `TAILRACE_KAFKA`: where Kafka is, and how to log in.

    host:port,host:port
        plain, for the loopback and for tests
    sasl+ssl://USER@host:port,host:port?password_file=PATH&ca_file=PATH
        TLS, then SCRAM-SHA-512

The password is never in the text. `ps`, crash reports and pod descriptions show environments.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

SCHEME = "sasl+ssl"


class InvalidBootstrap(ValueError):
    """The text is not an address of Kafka. The message says why and repeats no secret."""


class UnreadableFile(InvalidBootstrap, OSError):
    """A file that the address names cannot be read now. Clients take it for a broker that is away:
    a Secret is missing for a moment while it is replaced."""


class Bootstrap(NamedTuple):
    """A parsed address. `user` and the files are empty for a plain connection."""

    servers: str
    user: str = ""
    password_file: str = ""
    ca_file: str = ""


def parse(text: str) -> Bootstrap:
    """Read the address.

    Raises:
        InvalidBootstrap
    """
    if "://" not in text:
        if not text or "@" in text or "?" in text:
            raise InvalidBootstrap(
                "expected host:port, or sasl+ssl://user@host:port?password_file=…&ca_file=…"
            )
        return Bootstrap(text)
    parts = urlsplit(text)
    user, _, servers = parts.netloc.rpartition("@")
    if parts.scheme != SCHEME or not servers or parts.path not in ("", "/"):
        raise InvalidBootstrap(f"expected {SCHEME}://user@host:port, not {parts.scheme}://…")
    if not user or ":" in user:
        raise InvalidBootstrap(
            "expected a user without a password: the password is in the file that "
            "password_file names"
        )
    options = parse_qs(parts.query, strict_parsing=bool(parts.query))
    if options.keys() != {"password_file", "ca_file"}:
        raise InvalidBootstrap(
            f"expected password_file and ca_file, not {', '.join(sorted(options)) or 'nothing'}"
        )
    return Bootstrap(servers, unquote(user), options["password_file"][-1], options["ca_file"][-1])


def options(text: str) -> dict[str, Any]:
    """Constructor arguments of every aiokafka client. The files are read again each time, so a
    rotated password or CA serves the next client. A client that exists keeps what it was made with
    for all its connections. Who holds one replaces it: a writer after an append that failed,
    readers and members of groups by `liveness`, `Offsets` after a question without an answer.

    Raises:
        UnreadableFile
        InvalidBootstrap: the address is wrong.
    """
    address = parse(text)
    if not address.user:
        return {"bootstrap_servers": address.servers}
    try:
        password = Path(address.password_file).read_text().strip()
        context = ssl.create_default_context(cafile=address.ca_file)
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableFile(
            f"{getattr(error, 'filename', None) or address.ca_file}: "
            f"{getattr(error, 'strerror', None) or error}"
        ) from error
    return {
        "bootstrap_servers": address.servers,
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": address.user,
        "sasl_plain_password": password,
        "ssl_context": context,
    }
