"""Whether the log is still the one a process started on."""

from __future__ import annotations

import asyncio

import pytest

from tailrace import log
from tailrace.log import identity
from tailrace.log.identity import LogIdentity
from tests.support.memory_log import MemoryLog


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def unavailable() -> log.Layout:
    raise log.LogUnavailable("no answer")


class TestCheck:
    async def test_it_passes_while_the_broker_holds_the_same_log(self) -> None:
        memory = MemoryLog("one", 1)
        found = LogIdentity(memory.layout, memory.read_layout)
        await found.check()
        assert found.tag == memory.layout.tag

    async def test_another_log_is_an_error_that_names_both(self) -> None:
        memory = MemoryLog("one", 1)
        found = LogIdentity(memory.layout, memory.read_layout)
        memory.replace("two")
        with pytest.raises(log.LogChanged, match="from one to two"):
            await found.check()

    async def test_no_answer_is_not_taken_for_another_log(self) -> None:
        memory = MemoryLog("one", 1)
        with pytest.raises(log.LogUnavailable):
            await LogIdentity(memory.layout, unavailable).check()

    async def test_every_call_asks(self) -> None:
        memory = MemoryLog("one", 1)
        found = LogIdentity(memory.layout, memory.read_layout)
        await found.require_same()
        await found.check()
        await found.check()
        assert memory.layout_reads == 3


class TestRequireSame:
    async def test_an_answer_counts_for_some_time_and_then_the_broker_is_asked_again(self) -> None:
        memory, clock = MemoryLog("one", 1), Clock()
        found = LogIdentity(memory.layout, memory.read_layout, clock)
        await found.require_same()
        clock.now += identity.TRUST_S - 0.1
        await found.require_same()
        assert memory.layout_reads == 1
        clock.now += 0.1
        await found.require_same()
        assert memory.layout_reads == 2

    async def test_callers_at_the_same_time_share_one_answer(self) -> None:
        memory = MemoryLog("one", 1)

        async def slowly() -> log.Layout:
            await asyncio.sleep(0)
            return await memory.read_layout()

        found = LogIdentity(memory.layout, slowly, Clock())
        await asyncio.gather(*(found.require_same() for _ in range(5)))
        assert memory.layout_reads == 1

    async def test_no_answer_is_not_trusted(self) -> None:
        memory = MemoryLog("one", 1)
        found = LogIdentity(memory.layout, unavailable, Clock())
        for _ in range(2):
            with pytest.raises(log.LogUnavailable, match="no answer"):
                await found.require_same()

    async def test_another_log_is_unavailable_to_the_caller_and_ends_the_run(self) -> None:
        memory = MemoryLog("one", 1)
        found = LogIdentity(memory.layout, memory.read_layout, Clock())
        memory.replace("two")
        with pytest.raises(log.LogUnavailable, match="another one"):
            await found.require_same()
        with pytest.raises(log.LogChanged):
            await asyncio.wait_for(found.run(), 5)
