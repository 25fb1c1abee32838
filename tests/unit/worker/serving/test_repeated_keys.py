"""Which of the requests that a worker reads repeat an idempotency key."""

from __future__ import annotations

import pytest

from tailrace.protocol import records
from tests.support import cases
from tests.support.memory_log import MemoryLog
from tests.support.memory_worker import OWNER, REQUESTS, new_request
from worker.serving import repeated_keys
from worker.serving.repeated_keys import Place, RepeatedKeys

BOB = records.Owner("https://tests", "bob")
MEMORY = MemoryLog(partitions=1)


def asked(key: str | None, owner: records.Owner = OWNER) -> records.Request:
    return new_request(MEMORY, idempotency_key=key, owner=owner)


def at(offset: int, partition: int = 0) -> Place:
    return Place(REQUESTS, partition, offset)


def test_the_first_request_of_a_key_is_ahead_of_the_later_ones() -> None:
    keys = RepeatedKeys()
    first, second, third = asked("k"), asked("k"), asked("k")
    for offset, request in enumerate((first, second, third)):
        keys.note(at(offset), request)
    assert keys.earlier(at(0), first) == ""
    assert keys.earlier(at(1), second) == first.rid
    assert keys.earlier(at(2), third) == first.rid


@cases.each(
    "other", [asked("other"), asked("k", BOB), asked(None)], ids=["key", "owner", "without"]
)
def test_another_key_or_owner_is_no_repetition(other: records.Request) -> None:
    keys = RepeatedKeys()
    keys.note(at(0), asked("k"))
    keys.note(at(1), other)
    assert keys.earlier(at(1), other) == ""


def test_partitions_are_apart() -> None:
    keys = RepeatedKeys()
    keys.note(at(0), asked("k"))
    assert keys.earlier(at(5, partition=1), asked("k")) == ""


def test_an_append_that_was_repeated_and_a_second_reading_are_the_same_request() -> None:
    keys = RepeatedKeys()
    first, second = asked("k"), asked("k")
    for offset, request in ((4, first), (5, first), (6, second)):
        keys.note(at(offset), request)
    assert keys.earlier(at(5), first) == ""
    # After a rebalance, from an earlier place than before.
    for offset, request in ((3, second), (4, first)):
        keys.note(at(offset), request)
    assert keys.earlier(at(3), second) == ""
    assert keys.earlier(at(4), first) == second.rid


def test_a_key_that_lies_far_back_is_forgotten() -> None:
    keys = RepeatedKeys()
    old, late, again = asked("k"), asked("k"), asked("k")
    keys.note(at(0), old)
    keys.note(at(repeated_keys.RECENT + 1), late)
    assert keys.earlier(at(repeated_keys.RECENT + 1), late) == ""
    assert keys.earlier(at(0), old) == ""  # it was set aside, and is read again
    keys.note(at(repeated_keys.RECENT + 2), again)
    assert keys.earlier(at(repeated_keys.RECENT + 2), again) == late.rid


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated_keys, "RECENT", 3)
    keys = RepeatedKeys()
    requests = [asked(str(n)) for n in range(4)]
    for offset, request in enumerate(requests):
        keys.note(at(offset), request)
    repeated = [asked(str(n)) for n in range(4)]
    assert [keys.earlier(at(3 + n), each) for n, each in enumerate(repeated)] == [
        "",
        *(each.rid for each in requests[1:]),
    ]
