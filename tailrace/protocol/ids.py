"""Response ids: an id is its own address in the log (pure; docs/design.md, Identity and place).

`resp_` + 32 characters of base64url over 24 bytes, big endian:

    1 byte   format version
    4 bytes  tag of the log's incarnation
    2 bytes  partition p of `llm.tokens`
    6 bytes  lower-bound offset: an end offset of p already seen when the id was minted
    11 bytes random (88 bits)

24 bytes are a multiple of three, so there is exactly one spelling of an id and no padding.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from dataclasses import dataclass

FORMAT = 1
RANDOM_BYTES = 11
PREFIX = "resp_"
FILE_PREFIX = "file-"  # of an uploaded file: the same bytes, with its partition of `llm.uploads`
_SHAPE = re.compile(r"[A-Za-z0-9_-]{32}\Z")
# Ids of input items and of output items.
_ITEM = re.compile(r"[a-z]+_(?:[0-9]+_)?(?P<scope>[A-Za-z0-9_-]{32})(?:_[0-9]+)?\Z")
MAX_PARTITION = 2**16 - 1
_MAX_OFFSET = 2**48 - 1


class InvalidId(ValueError):
    """This format cannot have minted the id. A client gets the same 404 as for an unknown response
    (log rule P8)."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a response is in the log: all that any instance needs to find it."""

    incarnation: bytes
    partition: int
    offset: int


def incarnation_tag(incarnation: str) -> bytes:
    """The four bytes of a log's incarnation that are part of every id minted on it."""
    return hashlib.blake2b(incarnation.encode(), digest_size=4).digest()


def mint(address: Address, entropy: bytes, prefix: str = PREFIX) -> str:
    """An id. `entropy` is 11 fresh random bytes.

    Raises:
        ValueError: an argument is out of range.
    """
    if len(entropy) != RANDOM_BYTES or len(address.incarnation) != 4:
        raise ValueError("an id takes 11 random bytes and a 4-byte incarnation tag")
    if not (0 <= address.partition <= MAX_PARTITION and 0 <= address.offset <= _MAX_OFFSET):
        raise ValueError(f"address out of range: {address}")
    raw = b"".join(
        (
            bytes((FORMAT,)),
            address.incarnation,
            address.partition.to_bytes(2, "big"),
            address.offset.to_bytes(6, "big"),
            entropy,
        )
    )
    return prefix + base64.urlsafe_b64encode(raw).decode()


def parse(rid: str, partitions: int | None = None, prefix: str = PREFIX) -> Address:
    """The address in an id. `partitions` is the number of partitions, if known (log rule P8).

    Raises:
        InvalidId: wrong shape, unknown format version, or a partition this log does not have.
    """
    if not isinstance(rid, str) or not rid.startswith(prefix):
        raise InvalidId("not an id of this kind")
    text = rid[len(prefix) :]
    if not _SHAPE.match(text):
        raise InvalidId("not an id of this kind")
    try:
        raw = base64.urlsafe_b64decode(text)
    except (binascii.Error, ValueError) as error:
        # Cannot happen, because the shape admits only the alphabet; kept so that no text
        # raises another error.
        raise InvalidId("not an id of this kind") from error
    if raw[0] != FORMAT:
        raise InvalidId(f"unknown id format {raw[0]}")
    partition = int.from_bytes(raw[5:7], "big")
    if partitions is not None and partition >= partitions:
        raise InvalidId("no such partition")
    return Address(raw[1:5], partition, int.from_bytes(raw[7:13], "big"))


def item_id(rid: str, prefix: str = "msg_", index: int = 0) -> str:
    """The id of a response's output item number `index`. It is derived, so that every reader uses
    the same one."""
    return prefix + rid[len(PREFIX) :] + (f"_{index}" if index else "")


def response_of_item(item: str) -> str | None:
    """The response whose input or output item may have this id; None for another id."""
    match = _ITEM.match(item)
    return PREFIX + match["scope"] if match is not None else None


def call_id(rid: str, ordinal: int) -> str:
    """The `call_id` of a response's call number `ordinal`, from 0. It is derived, so that every
    worker that continues the response gives it the same one (log rule §16)."""
    return "call_" + hashlib.blake2b(f"{rid} {ordinal}".encode(), digest_size=12).hexdigest()
