"""Seals: encrypted text that a client stores, and that only its owner can send back (pure).

The `encrypted_content` of an item is

    <key id>.<item id>.<base64url of AES-SIV ciphertext>

The key of a seal follows from a deployment's key, the owner, and the part of the item's id that all
items of one response share. A gateway writes a response's key into its echo, as member `MEMBER`
(`Seal.echo_member`). So every reader of the log makes the same bytes at any time, without the
deployment's keys; only a gateway can open them. AES-SIV needs no nonce: equal text is sealed to
equal bytes.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable
from typing import Final

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from tailrace.protocol import records

MEMBER: Final = "_seal"  # of an echo; clients are not shown it
MIN_KEY_BYTES: Final = 32
MAX_TEXT_BYTES: Final = 180_000  # a longer text could not be sent back (gateway.parsing)
_SHAPE: Final = re.compile(
    r"(?P<key>[0-9a-f]{8})\."
    r"(?P<item>[a-z]+_(?P<scope>[A-Za-z0-9_-]{32})(?:_[0-9]+)?)\."
    r"(?P<sealed>[A-Za-z0-9_-]+)\Z"
)
# Before the text, because AES-SIV seals no empty text.
_FORMAT: Final = b"1"


class InvalidSeal(ValueError):
    """Not sealed here, changed, or another owner's. The message does not say which."""


class Seal:
    """Seals the items of one response, or one compaction."""

    def __init__(self, key_id: str, key: bytes) -> None:
        """`key`: 32 bytes."""
        self._key_id = key_id
        self._key = key

    @classmethod
    def from_echo(cls, member: object) -> Seal | None:
        """The seal in an echo; None if there is none that can be used."""
        if not isinstance(member, str):
            return None
        key_id, _, key = member.partition(":")
        try:
            raw = bytes.fromhex(key)
        except ValueError:
            return None
        return cls(key_id, raw) if len(raw) == 32 else None

    @property
    def echo_member(self) -> str:
        """The member of an echo."""
        return f"{self._key_id}:{self._key.hex()}"

    def close(self, item_id: str, text: str) -> str | None:
        """The text, sealed; None for one that is longer than `MAX_TEXT_BYTES`."""
        raw = text.encode()
        if len(raw) > MAX_TEXT_BYTES:
            return None
        ciphertext = AESSIV(self._key).encrypt(_FORMAT + raw, [item_id.encode()])
        return f"{self._key_id}.{item_id}.{_text(ciphertext)}"

    def open(self, item_id: str, ciphertext: bytes) -> str:
        """The text.

        Raises:
            InvalidSeal
        """
        try:
            raw = AESSIV(self._key).decrypt(ciphertext, [item_id.encode()])
        except (InvalidTag, ValueError) as error:
            raise InvalidSeal("not sealed here") from error
        if not raw.startswith(_FORMAT):
            raise InvalidSeal("of another version")
        return raw.removeprefix(_FORMAT).decode()


class Keys:
    """A deployment's keys: the first one seals, all of them open."""

    def __init__(self, keys: Iterable[bytes]) -> None:
        """`keys`: each at least MIN_KEY_BYTES random bytes; at least one."""
        self._keys = {_key_id(key): key for key in keys}
        self._first = next(iter(self._keys))

    def for_response(self, rid: str, owner: records.Owner) -> Seal:
        """The seal for the items of a new response."""
        return self._seal(self._first, rid.partition("_")[2], owner)

    def close(self, item_id: str, text: str, owner: records.Owner) -> str | None:
        """Text of an item that belongs to no response, sealed (`Seal.close`). `item_id`: a prefix
        and 32 characters of base64url."""
        return self._seal(self._first, item_id.partition("_")[2], owner).close(item_id, text)

    def open(self, sealed: str, kind: str, owner: records.Owner) -> str:
        """The text that was sealed for this owner.

        Args:
            kind: prefix of the item's id, as `rs_`.

        Raises:
            InvalidSeal
        """
        match = _SHAPE.match(sealed)
        if match is None or match["key"] not in self._keys or not match["item"].startswith(kind):
            raise InvalidSeal("not sealed here")
        try:
            raw = base64.urlsafe_b64decode(match["sealed"] + "=" * (-len(match["sealed"]) % 4))
        except binascii.Error as error:
            raise InvalidSeal("not sealed here") from error
        if _text(raw) != match["sealed"]:  # one spelling only
            raise InvalidSeal("not sealed here")
        return self._seal(match["key"], match["scope"], owner).open(match["item"], raw)

    def _seal(self, key_id: str, scope: str, owner: records.Owner) -> Seal:
        context = msgspec.json.encode([scope, owner.issuer, owner.tenant, owner.subject])
        master = hashlib.blake2b(self._keys[key_id], digest_size=32, person=b"item seal").digest()
        return Seal(key_id, hashlib.blake2b(context, key=master, digest_size=32).digest())


def _key_id(key: bytes) -> str:
    return hashlib.blake2b(key, digest_size=4, person=b"seal id").hexdigest()


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")
