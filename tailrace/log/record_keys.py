"""The record keys of this process: its writer signs with them, its readers check by them."""

from __future__ import annotations

import time
from typing import Any

from tailrace import telemetry
from tailrace.protocol import log_words, record_tags

# At most one log line per second: the forger controls the number of forged records.
REPORT_INTERVAL_S = 1.0


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
_reported_at = float("-inf")  # when a forged record was last reported


def use_record_keys(keyring: record_tags.Keyring | None, role: record_tags.Role | None) -> None:
    """Set, at the start of the process, its keys and the role that it writes as. Without keys
    nothing is signed or checked. A process without a role only reads."""
    global _keyring, _signer, _reported_at
    _reported_at = float("-inf")
    _keyring = keyring
    _signer = _Signer(keyring, role) if keyring is not None and role is not None else None


def sign_headers(
    topic: str, partition: int, key: bytes, value: bytes, headers: log_words.Headers
) -> list[tuple[str, bytes | None]] | None:
    """The headers of a record that is appended; None for none."""
    if _signer is None:
        return list(headers) or None
    return [*headers, _signer.header(topic, partition, key, value)]


def in_use() -> bool:
    """Whether readers of this process check tags."""
    return _keyring is not None


def has_newest_tag(headers: log_words.Headers) -> bool:
    """Whether a record has a tag of the key that signs now; True if nothing is signed."""
    if _signer is None:
        return True
    key_prefix = f"{_signer.key_id}:".encode()
    return any(name == record_tags.HEADER and v and v.startswith(key_prefix) for name, v in headers)


def record(r: Any) -> log_words.Record:
    """A record from a consumer record of aiokafka. A forged one has no value."""
    if _keyring is not None:
        reason = _keyring.forgery(r.topic, r.partition, r.key, r.value, r.headers)
        if reason is not None:
            _report(r, reason)
            return log_words.Record(
                r.topic, r.partition, r.offset, r.timestamp, r.key, None, r.headers, reason
            )
    return log_words.Record(r.topic, r.partition, r.offset, r.timestamp, r.key, r.value, r.headers)


def _report(r: Any, reason: record_tags.Reason) -> None:
    global _reported_at
    telemetry.FORGED_RECORDS.labels(reason=reason).inc()
    now = time.monotonic()
    if now - _reported_at > REPORT_INTERVAL_S:
        _reported_at = now
        telemetry.log(
            telemetry.Action.FORGED_RECORD,
            topic=r.topic,
            partition=r.partition,
            offset=r.offset,
            reason=reason,
        )
