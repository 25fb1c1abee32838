"""A database server over HTTP: its address, credentials and errors."""

from __future__ import annotations

import ssl
from collections.abc import Collection
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

import httpx

ANSWER_S: Final = 60.0
CONNECT_S: Final = 5.0


class _ServerError(Exception):
    """`code`: the server's own for the error; 0 without one."""

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


class Unavailable(_ServerError):
    """The server does not answer now. The text has a code and no content of a row."""


class Refused(_ServerError):
    """The server refuses: the credential, a right, the database or a table is wrong."""


class Address(NamedTuple):
    """Where the server is. `name`: of the database or the index. `user`, `password_file` and
    `ca_file` may be empty."""

    url: str
    name: str
    user: str
    password_file: str
    ca_file: str

    def password(self) -> str:
        """The password, read for each request: the file may be renewed."""
        return Path(self.password_file).read_text().strip() if self.password_file else ""

    def client(self, answer_s: float = ANSWER_S) -> httpx.Client:
        """A client that trusts the address's CA. `answer_s`: time limit of a response."""
        trust = ssl.create_default_context(cafile=self.ca_file) if self.ca_file else True
        timeout = httpx.Timeout(answer_s, connect=CONNECT_S)
        return httpx.Client(timeout=timeout, verify=trust, trust_env=False)


def parse(text: str, *, schemes: Collection[str] = ("http", "https")) -> Address:
    """Read `SCHEME://[user@]host:port/name[?password_file=PATH&ca_file=PATH]`. Of a scheme such as
    `opensearch+https` the part after the `+` is that of the requests.

    Raises:
        ValueError: it is invalid. The message contains no part of it.
    """
    parts = urlsplit(text)
    user, _, host = parts.netloc.rpartition("@")
    options = parse_qs(parts.query, strict_parsing=bool(parts.query))
    name = unquote(parts.path.removeprefix("/"))
    if parts.scheme not in schemes or not parts.hostname:
        raise ValueError(f"expected {' or '.join(schemes)}://user@host:port/name")
    if ":" in user:
        raise ValueError("the password is in the file that password_file names, not in the URL")
    if not name or "/" in name or '"' in name or "\\" in name:
        raise ValueError("expected the name of a database or an index behind the host")
    if options.keys() - {"password_file", "ca_file"}:
        raise ValueError("expected no other options than password_file and ca_file")
    return Address(
        f"{parts.scheme.rpartition('+')[2]}://{host}/",
        name,
        unquote(user),
        options.get("password_file", [""])[-1],
        options.get("ca_file", [""])[-1],
    )
