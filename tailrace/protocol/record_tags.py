"""Authentication tags of records: who may have written a record, and whether it did (pure).

With a key file, every record carries a Kafka header `tag`: the id of a key, a colon, and 16 bytes
of HMAC-SHA256 over topic, partition, key and value. A key belongs to one role, and a role may write
what `topics.table` says. A record without a good tag is *forged*: no reader sees its value, so it
is garbage to every fold (log rule §15).

Several keys of one role: the newest whose time has come signs, all of them are accepted.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Literal, get_args

import msgspec

from tailrace.protocol import topics
from tailrace.protocol.log_words import Headers

HEADER: Final = "tag"
MAC_BYTES: Final = 16
SECRET_BYTES: Final = 32

Role = Literal["gateway", "worker", "operator"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)

# Why a record is forged. Also the label of its metric.
Reason = Literal["no tag", "unknown key", "not its writer", "wrong tag"]

# The one record of `llm.tokens` that a gateway writes. It begins with its type: our encoder puts
# the type first, and the decoder refuses a second one.
_CANCEL: Final = b'{"t":"CANCEL",'
_METADATA: Final = b'{"t":"METADATA",'  # the same of `llm.history`


class InvalidKeys(ValueError):
    """The text is not a key file. The message says why and repeats no secret."""


class Key(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One key of the file. `secret` is base64 of at least 32 random bytes. It signs from
    `signs_from` on, in seconds since the epoch."""

    id: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9-]{1,32}\Z")]
    role: Role
    secret: str
    signs_from: int = 0

    def __repr__(self) -> str:
        return f"Key({self.id!r}, {self.role!r})"


class KeyFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of the file. `untagged` says how a record without a tag is treated: `accepted`
    while the log still has records that were written before there were keys."""

    keys: list[Key]
    untagged: Literal["refused", "accepted"] = "refused"


class Keyring:
    """Signs records of a role and recognises forged records.

    Attributes:
        accepts_untagged: a record without a tag is not a forgery.
        _secrets: id -> (role, secret).
        _newest_first: the keys of each role, that which signs last first.
        _writers: topic -> roles that may write it; topics of pools under the empty name.
    """

    def __init__(self, file: KeyFile) -> None:
        self.accepts_untagged = file.untagged == "accepted"
        self._secrets: dict[bytes, tuple[Role, bytes]] = {}
        for key in file.keys:
            if key.id.encode() in self._secrets:
                raise InvalidKeys(f"the id {key.id} is there twice")
            self._secrets[key.id.encode()] = key.role, _secret(key)
        self._newest_first: Mapping[Role, Sequence[Key]] = {
            role: sorted(
                (key for key in file.keys if key.role == role), key=lambda key: -key.signs_from
            )
            for role in ROLES
        }
        for role, keys in self._newest_first.items():
            if not keys:
                raise InvalidKeys(f"there is no key for {role}")
        self._writers = {row.name: row.writers for row in topics.table(())}

    def __repr__(self) -> str:
        return f"Keyring({', '.join(key.decode() for key in self._secrets)})"

    def signing_key(self, role: Role, now: float) -> tuple[str, float]:
        """The id of the key that signs for a role at `now`, and when another one will (infinity:
        never). Without one whose time has come, the oldest signs."""
        changes = float("inf")
        for key in self._newest_first[role]:
            if key.signs_from <= now:
                return key.id, changes
            changes = key.signs_from
        return self._newest_first[role][-1].id, changes

    def tag(self, key_id: str, topic: str, partition: int, key: bytes, value: bytes) -> bytes:
        """The value of the header `tag`."""
        key_name = key_id.encode()
        return key_name + b":" + _mac(self._secrets[key_name][1], topic, partition, key, value)

    def forgery(
        self,
        topic: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
    ) -> Reason | None:
        """Why a record is forged, or None for a genuine one. One without a value has no effect on
        any reader, whoever wrote it, and is not checked."""
        if value is None:
            return None
        tag = next((v for name, v in headers if name == HEADER), None)
        if tag is None:
            return None if self.accepts_untagged else "no tag"
        key_name, _, mac = tag.partition(b":")
        entry = self._secrets.get(key_name)
        if entry is None:
            return "unknown key"
        role, secret = entry
        if not self._may_write(role, topic, value):
            return "not its writer"
        right = _mac(secret, topic, partition, key or b"", value)
        return None if hmac.compare_digest(right, mac) else "wrong tag"

    def _may_write(self, role: Role, topic: str, value: bytes) -> bool:
        if topic == topics.TOKENS and role == "gateway":
            return value.startswith(_CANCEL)
        if topic == topics.HISTORY and role == "gateway":
            return value.startswith(_METADATA)  # its tombstones have no value
        writers = self._writers.get(topic)
        return role == "gateway" if writers is None else role in writers


def parse(text: bytes) -> Keyring:
    """Read a key file.

    Raises:
        InvalidKeys
    """
    try:
        return Keyring(msgspec.json.decode(text, type=KeyFile))
    except msgspec.MsgspecError as error:
        raise InvalidKeys(str(error)) from None
    except UnicodeError:
        raise InvalidKeys("it is not UTF-8") from None


def _secret(key: Key) -> bytes:
    try:
        secret = base64.b64decode(key.secret, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidKeys(f"the secret of {key.id} is not base64") from None
    if len(secret) < SECRET_BYTES:
        raise InvalidKeys(f"the secret of {key.id} has {len(secret)} bytes, not {SECRET_BYTES}")
    return secret


def _mac(secret: bytes, topic: str, partition: int, key: bytes, value: bytes) -> bytes:
    # Lengths first, so that no two records give one text.
    head = f"{topic} {partition} {len(key)} ".encode()
    return hmac.digest(secret, head + key + value, "sha256")[:MAC_BYTES]
