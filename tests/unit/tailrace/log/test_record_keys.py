"""The keys of a process: who signs with which, and how forged records are told."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tailrace import telemetry
from tailrace.log import record_keys
from tailrace.protocol import record_tags, topics
from tests.support import metric

NOW = 1_000.0


def keyring() -> record_tags.Keyring:
    def key(name: str, role: record_tags.Role, signs_from: int) -> record_tags.Key:
        return record_tags.Key(
            name, role, base64.b64encode(name.encode() * 32).decode(), signs_from
        )

    keys = [key(f"{role}-{at}", role, at) for role in record_tags.ROLES for at in (0, 2_000)]
    return record_tags.Keyring(record_tags.KeyFile(keys))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    found = SimpleNamespace(now=NOW)
    monkeypatch.setattr(time, "time", lambda: found.now)
    yield found
    record_keys.use_record_keys(None, None)


def read(value: bytes | None, headers: Any) -> Any:
    return record_keys.record(
        SimpleNamespace(
            topic=topics.TOKENS,
            partition=0,
            offset=7,
            timestamp=1,
            key=b"k",
            value=value,
            headers=headers,
        )
    )


def signed() -> Any:
    return record_keys.sign_headers(topics.TOKENS, 0, b"k", b"v", [("a", b"b")])


def test_without_keys_nothing_is_signed_or_checked() -> None:
    assert record_keys.sign_headers(topics.TOKENS, 0, b"k", b"v", ()) is None
    assert signed() == [("a", b"b")]
    assert read(b"v", ()).value == b"v"
    assert not record_keys.in_use()


def test_a_process_without_a_role_checks_and_does_not_sign(clock: SimpleNamespace) -> None:
    record_keys.use_record_keys(keyring(), None)
    assert signed() == [("a", b"b")]
    assert (read(b"v", ()).value, read(b"v", ()).forgery) == (None, "no tag")


def test_a_key_takes_over_at_its_time(clock: SimpleNamespace) -> None:
    record_keys.use_record_keys(keyring(), "worker")
    first = signed()
    assert first[0] == ("a", b"b")
    assert first[1][1].startswith(b"worker-0:")
    assert record_keys.has_newest_tag(first)
    clock.now = 2_000.0
    second = signed()
    assert second[1][1].startswith(b"worker-2000:")
    assert not record_keys.has_newest_tag(first)
    assert [read(b"v", h).value for h in (first, second)] == [b"v", b"v"]


def test_a_forged_record_is_counted_and_told_without_what_it_says(
    clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[dict[str, Any]] = []
    monkeypatch.setattr(telemetry, "log", lambda _, **named: lines.append(named))
    record_keys.use_record_keys(keyring(), "worker")
    before = metric.value("tailrace_forged_records_total", reason="unknown key")
    for _ in range(5):
        assert read(b"secret text", [("tag", b"nobody:1234")]).value is None
    after = metric.value("tailrace_forged_records_total", reason="unknown key")
    assert after - before == 5
    assert lines == [
        {"topic": topics.TOKENS, "partition": 0, "offset": 7, "reason": "unknown key"}
    ], "one line a second"
