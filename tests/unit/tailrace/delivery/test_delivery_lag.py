"""Look-ups beside the tail, each found during fault runs.

On an instance whose tail was behind, a response that another had just acknowledged was answered
404. On one that had just started, a stream looked up before the tail had its home partitions stood
still for ever: the tail then began anew further on, and what lay between was missing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest

from tailrace import log
from tailrace.delivery import delivery, token_tail
from tailrace.protocol import events, ids, records, topics

TAG = ids.incarnation_tag("one")
OWNER = records.Owner("https://tests", "alice")
REQUESTS = topics.requests("default", "interactive")


class Lagging:
    """A log, and a tail that stands at `position` of the only partition. Stands in for all four
    clients of a `Delivery`."""

    def __init__(self, position: int) -> None:
        self.position = position
        self.found: dict[str, list[log.Record]] = {
            topics.TOKENS: [],
            REQUESTS: [],
            topics.requests("default", "batch"): [],
        }
        self.low = 0

    def append(self, topic: str, record: records.Record, key: str) -> None:
        at = len(self.found[topic])
        self.found[topic].append(
            log.Record(topic, 0, at, 1000 + at, key.encode(), records.encode(record), ())
        )

    def follows(self, _partition: int) -> bool:
        return True

    def next_offset(self, _partition: int) -> int:
        return self.position

    async def ends(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        return {p: len(self.found[topic]) for p in partitions}

    async def beginnings(self, _topic: str, partitions: Iterable[int]) -> dict[int, int]:
        return dict.fromkeys(partitions, 0)

    async def committed(self, _group: str) -> dict[tuple[str, int], tuple[int, str]]:
        return {(REQUESTS, 0): (self.low, "")}

    async def read(
        self, topic: str, _partition: int, start: int, end: int
    ) -> AsyncIterator[list[log.Record]]:
        if found := self.found[topic][start:end]:
            yield found


def request(offset: int) -> records.Request:
    rid = ids.mint(ids.Address(TAG, 0, offset), b"x" * 11)
    return records.Request(
        rid, OWNER, "m", [], records.Sampling(1), events.echo(rid, 1, "m", background=True)
    )


def claim(asked: records.Request) -> records.Claim:
    return records.Claim(
        asked.rid, "a" * 32, None, OWNER, "w/1", REQUESTS, 0, "r", "t", 0, asked.echo
    )


def other() -> records.Cancel:
    return records.Cancel(ids.mint(ids.Address(TAG, 0, 0), b"y" * 11), OWNER)


def deliver(behind: Lagging) -> delivery.Delivery:
    made = delivery.Delivery(
        bootstrap="nowhere:1", layout=log.Layout("one", TAG, 1), pools=["default"], preferred=[]
    )
    parts: Any = behind
    made._reader = made._replays = made._offsets = parts
    return made


async def test_a_response_minted_beyond_our_tail_is_found_by_its_request() -> None:
    behind = Lagging(position=2)
    for _ in range(5):
        behind.append(topics.TOKENS, other(), "y")
    asked = request(5)
    behind.append(REQUESTS, asked, asked.rid)
    found = await deliver(behind).find(asked.rid, OWNER)
    assert found.response["status"] == "queued"


async def test_an_id_beyond_the_end_of_the_log_is_still_refused_at_once() -> None:
    behind = Lagging(position=2)
    with pytest.raises(delivery.NotFound):
        await deliver(behind).find(request(6).rid, OWNER)


async def test_a_response_finished_and_committed_while_our_tail_was_behind_is_found_once_the_tail_brings_it() -> (
    None
):
    behind = Lagging(position=0)
    asked = request(0)
    behind.append(REQUESTS, asked, asked.rid)
    behind.append(topics.TOKENS, claim(asked), asked.rid)
    behind.low = 1
    made = deliver(behind)
    looking = asyncio.create_task(made.find(asked.rid, OWNER))
    await asyncio.sleep(0.05)
    assert not looking.done()
    made._hub.dispatch(behind.found[topics.TOKENS][0])
    behind.position = 1
    assert (await looking).response["status"] == "in_progress"


async def test_an_unknown_id_is_not_found_as_soon_as_the_tail_has_read_everything() -> None:
    behind = Lagging(position=0)
    behind.append(topics.TOKENS, other(), "y")
    looking = asyncio.create_task(deliver(behind).find(request(0).rid, OWNER))
    await asyncio.sleep(0.05)
    behind.position = 1
    with pytest.raises(delivery.NotFound):
        await looking


async def test_a_stream_looked_up_during_the_start_keeps_the_place_where_the_tail_began_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    behind = Lagging(position=0)
    for _ in range(5):
        behind.append(topics.TOKENS, other(), "y")
    made = deliver(behind)
    made.preferred = (0,)
    made._reader = token_tail.TokenTail("nowhere:1", [0], client_id="test")
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def slow_start() -> None:
        asked.set()
        await go_on.wait()

    async def idle(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(behind, "start", slow_start, raising=False)
    for name in ("_tail", "_tail_conversations", "_sweep"):
        monkeypatch.setattr(made, name, idle)
    running = asyncio.create_task(made.run())
    await asked.wait()
    await made.mint(0)  # somebody is served already: the tail begins at 5
    for _ in range(4):
        behind.append(topics.TOKENS, other(), "y")
    go_on.set()
    await asyncio.sleep(0.01)
    assert made._reader.next_offset(0) == 5
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
