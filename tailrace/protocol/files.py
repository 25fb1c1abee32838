"""Files that a request names and does not hold (pure).

A large file would fill the request's record, so it lies in `llm.files`: in chunks, each a record
whose key is `<sha256 of the file>:<number of the chunk>` and whose value is bytes of the file. The
request names the records by their place, and the file by its digest:

    {"p": partition, "at": offsets of the chunks in order, "bytes", "ms": broker's time in ms}

Many requests may name the same chunks. `llm.files` keeps a record for longer than the time in which
a request may name it and the retention of that request together, so a file exists as long as the
requests that name it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from tailrace.protocol import topics

APART_BYTES: Final = 65_536  # a smaller file stays in the request's record
CHUNK_BYTES: Final = 524_288
MAX_BYTES: Final = 6_291_456  # of one file
MAX_CHUNKS: Final = MAX_BYTES // CHUNK_BYTES


class NoPlace(ValueError):
    """The value is not a place."""


class Differs(Exception):
    """The records at a place are not the file."""


class Place(msgspec.Struct, frozen=True):
    """Where the chunks of a file are."""

    p: int
    at: tuple[int, ...]
    bytes: int
    ms: int

    @property
    def valid(self) -> bool:
        """Whether a file may lie there."""
        return (
            min(self.p, *self.at, self.ms) >= 0
            and 0 < len(self.at) <= MAX_CHUNKS
            and 0 < self.bytes <= MAX_BYTES
        )

    def reusable(self, now_ms: float) -> bool:
        """Whether a request that is written at `now_ms` may name it."""
        return now_ms < self.ms + topics.FILE_REUSE_MS

    def member(self) -> dict[str, Any]:
        """As a request's record holds it."""
        return {"p": self.p, "at": list(self.at), "bytes": self.bytes, "ms": self.ms}


def parse_place(value: Any) -> Place:
    """The place that a request's record names. Raises NoPlace."""
    try:
        record = msgspec.convert(value, Place)
    except msgspec.ValidationError as error:
        raise NoPlace(str(error)) from error
    if not record.valid:
        raise NoPlace("out of bounds")
    return record


# A call that decodes megabytes lets no other thread run for as long as it takes.
_STEP: Final = 262_144  # characters


def decode_base64(text: str) -> bytes:
    """The bytes of base64. Raises ValueError if `text` is not base64."""
    steps = range(0, len(text), _STEP)
    if "=" in text[:-2]:
        raise ValueError("padding before the end")
    return b"".join(binascii.a2b_base64(text[at : at + _STEP], strict_mode=True) for at in steps)


def encode_base64(data: bytes) -> str:
    """Bytes in base64."""
    step = _STEP // 4 * 3
    return "".join(
        base64.b64encode(data[at : at + step]).decode() for at in range(0, len(data), step)
    )


def digest(data: bytes) -> str:
    """The name of a file: its sha256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def partition(sha256: str, partitions: int) -> int:
    """Where the chunks of a file are written."""
    return int(sha256[:8], 16) % partitions


def chunks(data: bytes) -> Iterator[bytes]:
    """A file in pieces that fit into a record, made lazily."""
    return (data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES))


def key(sha256: str, number: int) -> str:
    """The key of a chunk's record."""
    return f"{sha256}:{number}"


def span(where: Place) -> tuple[int, int]:
    """The range of offsets, its end excluded, in which the chunks lie; others may lie between."""
    return min(where.at), max(where.at) + 1


def join(sha256: str, where: Place, values: Mapping[int, bytes]) -> bytes:
    """The file, from the values of records by offset.

    Raises:
        Differs: a chunk is missing, or together they are another file.
    """
    data = b"".join(values.get(offset, b"") for offset in where.at)
    if digest(data) != sha256:
        raise Differs(f"{sha256} is not at {where.p}:{where.at[0]}")
    return data
