"""The record keys of this process: its writer signs with them, its readers check by them."""

from __future__ import annotations

import time
from typing import Any

from tailrace import telemetry
from tailrace.protocol import log_words, record_tags

# A line of the log per second at most: the forger chooses how many forged records there are.
TELL_EVERY_S = 1.0


class _Signer:
    """Signs for one role.

    Attributes:
        _key_id: signs until `_until`, by the clock.
    """

    def __init__(self, keyring: record_tags.Keyring, role: record_tags.Role) -> None:
        self._keyring, self._role = keyring, role
        self._key_id, self._until = "", float("-inf")

    @property
    def key_id(self) -> str:
        now = time.time()
        if now >= self._until:
            self._key_id, self._until = self._keyring.signing_key(self._role, now)
        return self._key_id

    def header(self, topic: str, partition: int, key: bytes, value: bytes) -> tuple[str, bytes]:
        tag = self._keyring.tag(self.key_id, topic, partition, key, value)
        return record_tags.HEADER, tag


_keyring: record_tags.Keyring | None = None
_signer: _Signer | None = None
_told = float("-inf")  # when a forged record was told last


def use_record_keys(keyring: record_tags.Keyring | None, role: record_tags.Role | None) -> None:
    """Say once, at the start of the process, which keys it has and what it writes as. Without keys
    nothing is signed or checked. A process without a role only reads."""
    global _keyring, _signer, _told
    _told = float("-inf")
    _keyring = keyring
    _signer = _Signer(keyring, role) if keyring is not None and role is not None else None


def signed(
    topic: str, partition: int, key: bytes, value: bytes, headers: log_words.Headers
) -> list[tuple[str, bytes | None]] | None:
    """The headers of a record that is appended; None for none."""
    if _signer is None:
        return list(headers) or None
    return [*headers, _signer.header(topic, partition, key, value)]


def in_use() -> bool:
    """Whether readers of this process check tags."""
    return _keyring is not None


def signed_by_newest(headers: log_words.Headers) -> bool:
    """Whether a record carries a tag of the key that signs now; also where nothing is signed."""
    if _signer is None:
        return True
    named = f"{_signer.key_id}:".encode()
    return any(name == record_tags.HEADER and v and v.startswith(named) for name, v in headers)


def record(r: Any) -> log_words.Record:
    """A record from a consumer record of aiokafka. A forged one comes without its value."""
    if _keyring is not None:
        forged = _keyring.forged(r.topic, r.partition, r.key, r.value, r.headers)
        if forged is not None:
            _tell(r, forged)
            return log_words.Record(
                r.topic, r.partition, r.offset, r.timestamp, r.key, None, r.headers, forged
            )
    return log_words.Record(r.topic, r.partition, r.offset, r.timestamp, r.key, r.value, r.headers)


def _tell(r: Any, forged: record_tags.Reason) -> None:
    global _told
    telemetry.FORGED_RECORDS.labels(reason=forged).inc()
    now = time.monotonic()
    if now - _told > TELL_EVERY_S:
        _told = now
        telemetry.log(
            telemetry.Action.FORGED_RECORD,
            topic=r.topic,
            partition=r.partition,
            offset=r.offset,
            reason=forged,
        )
