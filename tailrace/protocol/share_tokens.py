"""The token of a link to a conversation: what it names, sealed by a deployment's key (pure).

    base64url of: 4 bytes that name the key, and AES-SIV of the `Link` as a JSON array

Only a gateway can open it, so it does not reveal whose conversation it is. Equal links have equal
tokens: AES-SIV needs no nonce, and the owner can be shown a token again.
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

PATH: Final = "/s/"  # of the page that shows a link: its token follows
MAX_CHARS: Final = 6_000  # the longest names of an owner are 765 characters of four bytes
_KEY_ID_BYTES: Final = 4
_SHAPE: Final = re.compile(rf"[A-Za-z0-9_-]{{40,{MAX_CHARS}}}\Z")


class InvalidToken(ValueError):
    """Not sealed here, or changed. The message does not say which."""


class Link(msgspec.Struct, frozen=True, array_like=True):
    """What a token names. `expires_at` in seconds since the epoch."""

    owner: records.Owner
    conversation: str
    share: str
    head: str
    expires_at: records.Count


_decoder = msgspec.json.Decoder(Link)


class Tokens:
    """A deployment's keys: the first one seals, all of them open."""

    def __init__(self, keys: Iterable[bytes]) -> None:
        """`keys`: each at least `seals.MIN_KEY_BYTES` random bytes; at least one."""
        self._ciphers = {
            hashlib.blake2b(key, digest_size=_KEY_ID_BYTES, person=b"share id").digest(): AESSIV(
                hashlib.blake2b(key, digest_size=32, person=b"share link").digest()
            )
            for key in keys
        }
        self._first = next(iter(self._ciphers))

    def seal(self, link: Link) -> str:
        """The token."""
        ciphertext = self._ciphers[self._first].encrypt(msgspec.json.encode(link), None)
        return _text(self._first + ciphertext)

    def open(self, token: str) -> Link:
        """What the token names.

        Raises:
            InvalidToken
        """
        if _SHAPE.match(token) is None:
            raise InvalidToken("not sealed here")
        try:
            raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
            if _text(raw) != token:  # one spelling only
                raise InvalidToken("not sealed here")
            cipher = self._ciphers[raw[:_KEY_ID_BYTES]]
            return _decoder.decode(cipher.decrypt(raw[_KEY_ID_BYTES:], None))
        except (binascii.Error, KeyError, InvalidTag, msgspec.MsgspecError) as error:
            raise InvalidToken("not sealed here") from error


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")
