"""A member of a group whose consumer does not say that the group has it no longer."""

from __future__ import annotations

import asyncio
from typing import Any

import aiokafka
import pytest

from tailrace.log import client_api, group_consumer, offsets
from tailrace.protocol import log_words


class Consumer:
    """A consumer that waits for an assignment, or keeps an old one."""

    made = 0

    def __init__(self, **_: Any) -> None:
        type(self).made += 1

    def subscribe(self, *_: Any, **__: Any) -> None: ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def assignment(self) -> frozenset[Any]:
        return frozenset()

    def paused(self) -> set[Any]:
        return set()

    async def getmany(self, **_: Any) -> dict[Any, Any]:
        await asyncio.sleep(0.001)
        return {}


async def _unheard(_: set[tuple[str, int]]) -> None: ...


async def _polled(member: group_consumer.GroupConsumer, times: int) -> bool:
    """Whether the membership was given up within these polls."""
    for _ in range(times):
        try:
            await member.poll(10)
        except log_words.LogUnavailable:
            return True
    return False


async def test_a_member_that_its_group_does_not_have_joins_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Heartbeats are refused with an old password, or go nowhere: aiokafka tries again without a
    word. A member without a partition has nothing of which it could hear."""
    listed: frozenset[str] | None = frozenset({"member-1f", "other-2e"})

    async def members(_: offsets.Offsets, group: str) -> frozenset[str]:
        assert group == "g"
        if listed is None:
            raise log_words.LogUnavailable("away")
        return listed

    monkeypatch.setattr(aiokafka, "AIOKafkaConsumer", Consumer)
    monkeypatch.setattr(offsets.Offsets, "members", members)
    monkeypatch.setattr(group_consumer, "GROUP_CHECK_S", 0.0)
    member = group_consumer.GroupConsumer(
        *("h:1", "g", ["t"]),
        session_timeout_ms=6000,
        assigned=_unheard,
        revoked=_unheard,
        client_id="member",
        api=client_api.PublicApi(),
    )
    assert not await _polled(member, 20)
    listed = None  # no answer says nothing
    assert not await _polled(member, 20)
    listed = frozenset({"other-2e"})
    assert await _polled(member, 20)
    made, listed = Consumer.made, frozenset({"member-3d"})
    assert not await _polled(member, 20)
    assert Consumer.made == made + 1, "it has joined again"
    await member.stop()
