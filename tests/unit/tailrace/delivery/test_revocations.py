"""Revocations as the log tells them: all before ready, later ones when they are read, no garbage,
and none forgotten while the broker is away."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from tailrace.auth.principal import Principal
from tailrace.delivery import revocations
from tailrace.protocol import records, topics
from tests.support import cases, log_contract, memory_log

ALICE = Principal("https://i", "alice", None, frozenset(), 2_000_000_000, 1_000)
BOB = Principal("https://i", "bob", None, frozenset(), 2_000_000_000, 1_000)
FAR = 2**52


def record(subject: str, number: int = 0) -> records.Revoked:
    return records.Revoked(f"{number:016x}", "https://i", FAR, subject=subject)


def put(broker: memory_log.MemoryLog, revoked: records.Revoked) -> None:
    broker.put_record(topics.REVOCATIONS, 0, revoked, revoked.id)


@contextlib.asynccontextmanager
async def running(broker: memory_log.MemoryLog) -> AsyncIterator[revocations.Revocations]:
    made = revocations.Revocations(broker.reader(topics.REVOCATIONS, wait_ms=5), broker.offsets())
    task = asyncio.create_task(made.run())
    try:
        yield made
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_it_is_ready_only_when_it_knows_what_was_revoked_before() -> None:
    broker = memory_log.MemoryLog()
    put(broker, record("alice"))
    broker.lag(topics.REVOCATIONS, 0, 0)
    async with running(broker) as known:
        await asyncio.sleep(0.05)
        assert not known.ready
        broker.catch_up(topics.REVOCATIONS, 0)
        await log_contract.until(lambda: known.ready, 5)
        assert known.refuses(ALICE)
        assert not known.refuses(BOB)


async def test_each_later_one_is_told_once_and_holds_while_the_broker_is_away() -> None:
    broker = memory_log.MemoryLog()
    async with running(broker) as known:
        told = []
        known.on_revoked = lambda: told.append(known.refuses(ALICE))
        await log_contract.until(lambda: known.ready, 5)
        put(broker, record("alice"))
        await known.caught_up()
        assert told == [True]
        broker.go_away()
        await asyncio.sleep(0.05)
        assert known.refuses(ALICE)
        broker.come_back()
        lifted = records.Revoked("0" * 16, "https://i", FAR, subject="alice", lifted=True)
        put(broker, lifted)
        await known.caught_up()
        assert (told, known.refuses(ALICE)) == ([True], False)


@cases.each(
    ("key", "value"),
    [
        (b"0" * 16, b"\xff"),
        (b"0" * 16, None),
        (None, records.encode(record("alice"))),
        (b"1" * 16, records.encode(record("alice"))),
        (b"0" * 16, records.encode(records.Revoked("0" * 16, "https://i", FAR))),
        (b"0" * 16, records.encode(records.Revoked("0" * 16, "https://i", FAR, subject=""))),
        (b"0" * 16, records.encode(records.Revoked("0" * 16, "https://i", 2**53, subject="a"))),
        (b"x", records.encode(records.Revoked("x", "https://i", FAR, subject="alice"))),
        (b"0" * 16, records.encode(records.Deleted("resp_1", records.Owner("https://i", "alice")))),
        (b"0" * 16, b'{"t":"REVOKED","v":2,"id":"' + b"0" * 16 + b'"}'),
        (b"0" * 16, b"[" * 100_000),
    ],
)
async def test_garbage_refuses_nobody_and_holds_up_nothing(
    key: bytes | None, value: bytes | None
) -> None:
    broker = memory_log.MemoryLog()
    broker.put(topics.REVOCATIONS, 0, key, value)
    put(broker, record("bob", 7))
    async with running(broker) as known:
        await known.caught_up()
        assert len(known.known) == 1
        assert (known.refuses(ALICE), known.refuses(BOB)) == (False, True)
