"""The kinds of values that a variable may have, and how each is read from text.

A kind turns text into a value or raises ValueError. `read` turns that error into one line that
names the variable, the value and what is expected. No kind has side effects; those that name files
look whether the file is there.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from tailrace import engines
from tailrace.log import address
from tailrace.protocol import record_tags, topics

SHOWN_CHARACTERS: Final = 60


class Misconfigured(Exception):
    """A variable is missing or wrong. The text is one line: variable, value, what is expected.

    A process that meets it prints the line and exits with code 2.
    """


class Kind(Protocol):
    """How one kind of value is read.

    Attributes:
        expected: what the text must be; completes "… is not".
        absent: the value of a variable that is not set and has no default.
    """

    @property
    def expected(self) -> str: ...

    @property
    def absent(self) -> Any: ...

    def parse(self, text: str) -> Any:
        """The value of a text that is not empty.

        Raises:
            ValueError: the text is not what is expected; its message may say why.
        """


@dataclass(frozen=True, slots=True)
class Text:
    """Any text."""

    expected: str = "a text"
    absent: str = ""

    def parse(self, text: str) -> str:
        return text


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of some words."""

    words: tuple[str, ...]
    absent: str = ""

    @property
    def expected(self) -> str:
        return f"{', '.join(self.words[:-1])} or {self.words[-1]}"

    def parse(self, text: str) -> str:
        if text not in self.words:
            raise ValueError
        return text


@dataclass(frozen=True, slots=True)
class Integer:
    """A whole number from `low` to `high`, in decimal digits."""

    low: int
    high: int
    absent: int = 0

    @property
    def expected(self) -> str:
        return f"a whole number from {self.low} to {self.high}"

    def parse(self, text: str) -> int:
        # `int` takes signs, underscores and other digits, and refuses very long texts differently.
        if not re.fullmatch(r"[0-9]{1,18}", text):
            raise ValueError
        number = int(text)
        if not self.low <= number <= self.high:
            raise ValueError
        return number


@dataclass(frozen=True, slots=True)
class Duration:
    """A whole number of units, read as seconds. `per_second` is how many units a second has."""

    low: int
    high: int
    per_second: int = 1
    absent: float = 0.0

    @property
    def expected(self) -> str:
        return Integer(self.low, self.high).expected

    def parse(self, text: str) -> float:
        return Integer(self.low, self.high).parse(text) / self.per_second


@dataclass(frozen=True, slots=True)
class Percent:
    """A whole number of hundredths, read as a share from 0 to 1."""

    low: int
    high: int = 100
    absent: float = 0.0

    @property
    def expected(self) -> str:
        return Integer(self.low, self.high).expected

    def parse(self, text: str) -> float:
        return Integer(self.low, self.high).parse(text) / 100


@dataclass(frozen=True, slots=True)
class Host:
    """A host name or an IP address to listen on."""

    expected: str = "a host name or an IP address"
    absent: str = ""

    def parse(self, text: str) -> str:
        if not re.fullmatch(r"[0-9A-Za-z.:_%-]{1,253}", text) or ".." in text:
            raise ValueError
        return text


@dataclass(frozen=True, slots=True)
class Kafka:
    """How to reach Kafka, as `tailrace.log.address` reads it. Its files must be readable."""

    expected: str = "an address of Kafka"
    absent: str = ""

    def parse(self, text: str) -> str:
        address.options(text)
        return text


@dataclass(frozen=True, slots=True)
class Redis:
    """A URL of Redis."""

    expected: str = "redis://host:port/0, or rediss:// for TLS"
    absent: str = ""

    def parse(self, text: str) -> str:
        parts = urlsplit(text)
        if parts.scheme == "unix" and parts.path:
            return text
        if parts.scheme not in ("redis", "rediss") or not parts.hostname:
            raise ValueError
        _ = parts.port  # raises ValueError
        return text


@dataclass(frozen=True, slots=True)
class Archive:
    """A URL of the archive's database, which `tailrace.archive.database` reads."""

    expected: str = "sqlite:///PATH or postgresql://user:password@host:port/name"
    absent: str = ""

    def parse(self, text: str) -> str:
        parts = urlsplit(text)
        _ = parts.port  # raises ValueError
        if parts.scheme == "sqlite" and not parts.netloc and len(parts.path) > 1:
            return text
        if parts.scheme == "postgresql" and parts.hostname and len(parts.path) > 1:
            return text
        raise ValueError


@dataclass(frozen=True, slots=True)
class Vectors:
    """Where the vector database is, which `tailrace.vectors.milvus` reads."""

    expected: str = "the absolute path of a folder, or http(s)://[user:password@]host:port"
    absent: str = ""

    def parse(self, text: str) -> str:
        parts = urlsplit(text)
        _ = parts.port  # raises ValueError
        if parts.scheme in ("http", "https") and parts.hostname and parts.path in ("", "/"):
            return text
        if not parts.scheme and not parts.netloc and text.startswith("/"):
            return text
        raise ValueError


@dataclass(frozen=True, slots=True)
class Url:
    """A base URL: http or https, a host, perhaps a path; no query and no fragment."""

    expected: str = "an http(s) URL"
    absent: str = ""

    def parse(self, text: str) -> str:
        return _base_url(text)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An http(s) URL that is used as it is, with a slash at its end where it has one."""

    expected: str = "an http(s) URL"
    absent: str = ""

    def parse(self, text: str) -> str:
        _base_url(text)
        return text


@dataclass(frozen=True, slots=True)
class Urls:
    """Base URLs, separated by commas."""

    expected: str = "a list of http(s) URLs, separated by commas"
    absent: tuple[str, ...] = ()

    def parse(self, text: str) -> tuple[str, ...]:
        return tuple(_base_url(each) for each in _listed(text))


@dataclass(frozen=True, slots=True)
class Origins:
    """Origins of web pages, separated by commas."""

    expected: str = "a list of origins (scheme://host[:port]), separated by commas"
    absent: frozenset[str] = frozenset()

    def parse(self, text: str) -> frozenset[str]:
        found = frozenset(each.rstrip("/") for each in _listed(text))
        for origin in found:
            if not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^\s/?#@]+", origin):
                raise ValueError(f"{shortened(origin)} is none")
        return found


@dataclass(frozen=True, slots=True)
class Networks:
    """Networks, separated by commas; a single address is one too."""

    expected: str = "a list of networks (10.0.0.0/8), separated by commas"
    absent: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...] = ()

    def parse(self, text: str) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
        return tuple(ipaddress.ip_network(each) for each in _listed(text))


@dataclass(frozen=True, slots=True)
class File:
    """A path. `must_exist`: of a file that can be read."""

    must_exist: bool = True
    absent: None = None

    @property
    def expected(self) -> str:
        return "a file that can be read" if self.must_exist else "the path of a file"

    def parse(self, text: str) -> Path:
        path = Path(text)
        if self.must_exist:
            try:
                path.open("rb").close()
            except OSError as error:
                raise ValueError(error.strerror) from error
        return path


@dataclass(frozen=True, slots=True)
class SecretLines:
    """The lines of a file, each a secret of at least `least` bytes. White space around them and
    empty lines are no part of them."""

    least: int
    absent: None = None

    @property
    def expected(self) -> str:
        return f"a file with at least {self.least} random bytes on each line"

    def parse(self, text: str) -> tuple[bytes, ...]:
        try:
            content = Path(text).read_bytes()
        except OSError as error:
            raise ValueError(error.strerror) from error
        found = tuple(stripped for line in content.splitlines() if (stripped := line.strip()))
        if not found:
            raise ValueError("it is empty")
        for i, line in enumerate(found, start=1):
            if len(line) < self.least:
                raise ValueError(f"{len(line)} bytes on line {i}")
        return found


@dataclass(frozen=True, slots=True)
class RecordKeys:
    """A key file of `tailrace.protocol.record_tags`, read."""

    expected: str = "a file of record keys"
    absent: None = None

    def parse(self, text: str) -> record_tags.Keyring:
        try:
            return record_tags.parse(Path(text).read_bytes())
        except OSError as error:
            raise ValueError(error.strerror) from error


@dataclass(frozen=True, slots=True)
class Folder:
    """A path. `must_exist`: of a folder."""

    must_exist: bool = True
    expected: str = "a folder"
    absent: None = None

    def parse(self, text: str) -> Path:
        if self.must_exist and not Path(text).is_dir():
            raise ValueError("no such folder")
        return Path(text)


@dataclass(frozen=True, slots=True)
class Pool:
    """Name of a pool."""

    expected: str = "the name of a pool (a-z, 0-9 and hyphens)"
    absent: str = ""

    def parse(self, text: str) -> str:
        topics.requests(text, topics.CLASSES[0])
        return text


@dataclass(frozen=True, slots=True)
class Engine:
    """Which engine a worker has."""

    expected: str = f"{', '.join(engines.NAMES)} or an http(s) URL"
    absent: str = ""

    def parse(self, text: str) -> str:
        return text if text in engines.NAMES else _base_url(text)


def shortened(text: str) -> str:
    """The text in quotes, in one line, cut when it is long."""
    return repr(text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…")


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


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
        raise ValueError(f"{shortened(text)} is none")
    _ = parts.port  # raises ValueError
    return url
