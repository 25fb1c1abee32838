"""What a principal and an address may have of one process."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from starlette.requests import HTTPConnection

from tailrace import settings
from tailrace.auth.principal import Principal
from tailrace.protocol import errors
from tailrace.web import shares
from tests.support import traced

ALICE = Principal("https://iss.test", "alice", None, frozenset(), 2**40)
BOB = Principal("https://iss.test", "bob", None, frozenset(), 2**40)


def test_a_principal_has_no_more_open_than_its_share_and_others_have_theirs() -> None:
    room = shares.OpenConnections(settings.Limits(sockets_per_principal=2, sockets=3))
    room.enter(ALICE)
    ended = room.counted(ALICE, lambda: None)
    with pytest.raises(errors.ApiError) as refused:
        room.check_room(ALICE)
    assert refused.value.status == 429
    room.check_room(BOB)
    room.enter(BOB)
    with pytest.raises(errors.ApiError):
        room.check_room(BOB)  # all together have what they may
    ended()
    room.check_room(ALICE)
    room.leave(ALICE)
    room.leave(BOB)
    assert len(room) == 0


def test_nothing_is_held_of_a_principal_without_anything_open() -> None:
    room = shares.OpenConnections(settings.Limits())
    with traced.held() as held:
        for n in range(1_000):
            each = dataclasses.replace(ALICE, subject=f"user-{n}")
            room.enter(each)
            room.leave(each)
    assert held.size < 20_000


def test_reads_and_tickets_have_rates_of_their_own() -> None:
    now = 100.0
    limits = settings.Limits(reads_rate=1, reads_burst=2, tickets_rate=1, tickets_burst=1)
    rates = shares.Rates(limits, lambda: now)
    rates.read(ALICE)
    rates.read(ALICE)
    rates.read(BOB)
    with pytest.raises(errors.ApiError) as refused:
        rates.read(ALICE)
    assert (refused.value.status, refused.value.headers["retry-after"]) == (429, "1")
    rates.ticket(ALICE)
    with pytest.raises(errors.ApiError):
        rates.ticket(ALICE)
    now += 1.0
    rates.read(ALICE)
    rates.ticket(ALICE)


def asked(address: str) -> HTTPConnection:
    return HTTPConnection({"type": "http", "client": (address, 1), "headers": []})


def test_after_too_many_refused_credentials_no_more_of_an_address_are_looked_at() -> None:
    now = 0.0
    rates = shares.Rates(settings.Limits(refusals_rate=1, refusals_burst=3), lambda: now)
    for _ in range(3):
        rates.check_refusals(asked("192.0.2.1"))
        rates.refused(asked("192.0.2.1"))
    with pytest.raises(errors.ApiError) as refused:
        rates.check_refusals(asked("192.0.2.1"))
    assert (refused.value.status, refused.value.code) == (429, "too_many_refused_credentials")
    rates.check_refusals(asked("192.0.2.2"))
    now += 1.0
    rates.check_refusals(asked("192.0.2.1"))


def test_looks_without_a_credential_are_counted_by_address() -> None:
    now = 0.0
    rates = shares.Rates(settings.Limits(reads_rate=1, reads_burst=2), lambda: now)
    for _ in range(2):
        rates.visit(asked("192.0.2.1"))
    with pytest.raises(errors.ApiError) as refused:
        rates.visit(asked("192.0.2.1"))
    assert (refused.value.status, refused.value.code) == (429, "rate_limit_exceeded")
    rates.visit(asked("192.0.2.2"))
    rates.read(ALICE)
    now += 1.0
    rates.visit(asked("192.0.2.1"))


async def test_messages_of_a_principal_wait_on_all_of_its_sockets_above_its_rate() -> None:
    rates = shares.Rates(settings.Limits(messages_rate=1))
    waiting = [asyncio.create_task(rates.message(ALICE)) for _ in range(3)]
    others = asyncio.create_task(rates.message(BOB))
    await others
    assert [task.done() for task in waiting] == [True, False, False]
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_messages_within_the_rate_do_not_wait() -> None:
    rates = shares.Rates(settings.Limits(messages_rate=100))
    for _ in range(100):
        await rates.message(ALICE)


def test_a_rate_of_zero_is_no_limit() -> None:
    limits = settings.Limits(reads_rate=0, tickets_rate=0, refusals_rate=0)
    rates = shares.Rates(limits)
    for _ in range(10_000):
        rates.read(ALICE)
        rates.ticket(ALICE)
        rates.visit(asked("192.0.2.1"))
        rates.refused(asked("192.0.2.1"))
        rates.check_refusals(asked("192.0.2.1"))
