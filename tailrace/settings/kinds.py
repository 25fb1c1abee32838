"""The kinds of values that a variable may have, and how each is read from text.

A kind turns text into a value or raises ValueError. `services.parse` turns that error into one
line that names the variable, the value and what is expected. No kind has side effects; those that
name files check that the file exists.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from tailrace import engines
from tailrace.log import address
from tailrace.protocol import record_tags, topics

MAX_QUOTED_CHARACTERS: Final = 60

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Misconfigured(Exception):
    """A variable is missing or wrong. The text is one line: variable, value, what is expected.

    A process that meets it prints the line and exits with code 2.
    """


@dataclass(frozen=True, slots=True)
class Kind:
    """How one kind of value is read.

    Attributes:
        expected: what the text must be; completes "… is not".
        parse: the value of a text that is not empty. Raises ValueError: the text is not what is
            expected; its message may say why.
        absent: the value of a variable that is not set and has no default.
    """

    expected: str
    parse: Callable[[str], Any]
    absent: Any = ""


def one_of(*words: str) -> Kind:
    """One of some words."""

    def parse(text: str) -> str:
        if text not in words:
            raise ValueError
        return text

    return Kind(f"{', '.join(words[:-1])} or {words[-1]}", parse)


def integer(low: int, high: int) -> Kind:
    """A whole number from `low` to `high`, in decimal digits."""

    def parse(text: str) -> int:
        # `int` takes signs, underscores and other digits, and refuses very long texts differently.
        if not re.fullmatch(r"[0-9]{1,18}", text):
            raise ValueError
        number = int(text)
        if not low <= number <= high:
            raise ValueError
        return number

    return Kind(f"a whole number from {low} to {high}", parse, 0)


def duration(low: int, high: int, per_second: int = 1) -> Kind:
    """A whole number of units, read as seconds. `per_second` is how many units a second has."""
    whole = integer(low, high)
    return Kind(whole.expected, lambda text: whole.parse(text) / per_second, 0.0)


def percent(low: int, high: int = 100) -> Kind:
    """A whole number of hundredths, read as a share from 0 to 1."""
    return duration(low, high, 100)


def file(*, must_exist: bool = True) -> Kind:
    """A path. `must_exist`: of a file that can be read."""

    def parse(text: str) -> Path:
        path = Path(text)
        if must_exist:
            try:
                path.open("rb").close()
            except OSError as error:
                raise ValueError(error.strerror) from error
        return path

    return Kind("a file that can be read" if must_exist else "the path of a file", parse, None)


def folder(*, must_exist: bool = True) -> Kind:
    """A path. `must_exist`: of a folder."""

    def parse(text: str) -> Path:
        if must_exist and not Path(text).is_dir():
            raise ValueError("no such folder")
        return Path(text)

    return Kind("a folder", parse, None)


def secret_lines(least: int) -> Kind:
    """The lines of a file, each a secret of at least `least` bytes. White space around them and
    empty lines are skipped."""

    def parse(text: str) -> tuple[bytes, ...]:
        try:
            content = Path(text).read_bytes()
        except OSError as error:
            raise ValueError(error.strerror) from error
        secrets = tuple(secret for line in content.splitlines() if (secret := line.strip()))
        if not secrets:
            raise ValueError("it is empty")
        for i, line in enumerate(secrets, start=1):
            if len(line) < least:
                raise ValueError(f"{len(line)} bytes on line {i}")
        return secrets

    return Kind(f"a file with at least {least} random bytes on each line", parse, None)


def shorten(text: str) -> str:
    """The text in quotes, in one line, cut when it is long."""
    return repr(
        text if len(text) <= MAX_QUOTED_CHARACTERS else text[: MAX_QUOTED_CHARACTERS - 1] + "…"
    )


def _items(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _split(text: str) -> SplitResult:
    parts = urlsplit(text)
    _ = parts.port  # raises ValueError
    return parts


def _base_url(text: str) -> str:
    """Without a slash at its end. Quotes and separators are refused, because the URL becomes part
    of a response header."""
    url = text.rstrip("/")
    parts = urlsplit(url)
    if (
        parts.scheme not in ("http", "https")
        or not parts.hostname
        or parts.query
        or parts.fragment
        or re.search(r"[^\x21-\x7e]|[;,'\"]", url)
    ):
        raise ValueError(f"{shorten(text)} is none")
    _ = parts.port  # raises ValueError
    return url


def _endpoint(text: str) -> str:
    _base_url(text)
    return text


def _host(text: str) -> str:
    if not re.fullmatch(r"[0-9A-Za-z.:_%-]{1,253}", text) or ".." in text:
        raise ValueError
    return text


def _kafka(text: str) -> str:
    address.options(text)
    return text


def _redis(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme == "unix" and parts.path:
        return text
    if parts.scheme not in ("redis", "rediss") or not parts.hostname:
        raise ValueError
    _ = parts.port  # raises ValueError
    return text


def _archive(text: str) -> str:
    parts = _split(text)
    sqlite = parts.scheme == "sqlite" and not parts.netloc
    if not (sqlite or (parts.scheme == "postgresql" and parts.hostname)) or len(parts.path) < 2:
        raise ValueError
    return text


def _vectors(text: str) -> str:
    parts = _split(text)
    server = parts.scheme in ("http", "https") and parts.hostname and parts.path in ("", "/")
    if not server and (parts.scheme or parts.netloc or not text.startswith("/")):
        raise ValueError
    return text


def _origins(text: str) -> frozenset[str]:
    origins = frozenset(each.rstrip("/") for each in _items(text))
    for origin in origins:
        if not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^\s/?#@]+", origin):
            raise ValueError(f"{shorten(origin)} is none")
    return origins


def _steps(text: str) -> tuple[tuple[int, float], ...]:
    """Pairs of a number and seconds, by number."""
    pairs = [each.split(":") for each in _items(text)]
    return tuple(sorted((int(most), float(ms) / 1000) for most, ms in pairs))


def _networks(text: str) -> tuple[Network, ...]:
    return tuple(ipaddress.ip_network(each) for each in _items(text))


def _record_keys(text: str) -> record_tags.Keyring:
    try:
        return record_tags.parse(Path(text).read_bytes())
    except OSError as error:
        raise ValueError(error.strerror) from error


def _pool(text: str) -> str:
    topics.requests(text, topics.CLASSES[0])
    return text


TEXT: Final = Kind("a text", str)
HOST: Final = Kind("a host name or an IP address", _host)
# As `tailrace.log.address` reads it. Its files must be readable.
KAFKA: Final = Kind("an address of Kafka", _kafka)
REDIS: Final = Kind("redis://host:port/0, or rediss:// for TLS", _redis)
# Read by `tailrace.archive.database` and `tailrace.vectors.milvus`.
ARCHIVE: Final = Kind("sqlite:///PATH or postgresql://user:password@host:port/name", _archive)
VECTORS: Final = Kind(
    "the absolute path of a folder, or http(s)://[user:password@]host:port", _vectors
)
# A base URL: a host, perhaps a path; no query and no fragment. An endpoint keeps its last slash.
URL: Final = Kind("an http(s) URL", _base_url)
ENDPOINT: Final = Kind("an http(s) URL", _endpoint)
URLS: Final = Kind(
    "a list of http(s) URLs, separated by commas",
    lambda text: tuple(_base_url(each) for each in _items(text)),
    (),
)
ORIGINS: Final = Kind(
    "a list of origins (scheme://host[:port]), separated by commas", _origins, frozenset()
)
# A single address is a network, too.
NAMES: Final = Kind(
    "a list of names, separated by commas", lambda text: frozenset(_items(text)), frozenset()
)
STEPS: Final = Kind("pairs of a number and milliseconds (1:6.1), separated by commas", _steps, ())
NETWORKS: Final = Kind("a list of networks (10.0.0.0/8), separated by commas", _networks, ())
RECORD_KEYS: Final = Kind("a file of record keys", _record_keys, None)
POOL: Final = Kind("the name of a pool (a-z, 0-9 and hyphens)", _pool)
ENGINE: Final = Kind(
    f"{', '.join(engines.NAMES)} or an http(s) URL",
    lambda text: text if text in engines.NAMES else _base_url(text),
)
