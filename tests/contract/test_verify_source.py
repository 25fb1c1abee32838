"""What `tailrace verify` reads of a real log."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from tailrace import log
from tailrace.protocol import events, ids, records, topics
from tailrace.verify import source
from tests.support import archive_parts

OLD, NEW = 300, 3


@pytest.fixture
async def broker(bare: str) -> str:
    """Bootstrap address of one whose topics nobody else uses."""
    await log.apply_topics(bare, ["default"], partitions=2)
    return bare


@pytest.fixture
async def writer(broker: str) -> AsyncIterator[log.Writer]:
    made = log.Writer(broker)
    running = asyncio.create_task(made.run())
    yield made
    await made.stop()
    running.cancel()


class Replays(log.Replays):
    """Counts the records of `llm.history` that were read."""

    count = 0

    async def read(self, topic: str, partition: int, start: int, end: int):  # type: ignore[no-untyped-def]
        async for batch in super().read(topic, partition, start, end):
            Replays.count += len(batch) * (topic == topics.HISTORY)
            yield batch


async def _read(broker: str, rid: str = "") -> tuple[int, dict[str, int]]:
    """Records of `llm.history` that were read, and how many each response has there."""
    Replays.count = 0
    made = source.Source(broker, source.Selection(["default"], rid))
    found: dict[str, int] = {}
    try:
        async for part in made.histories():
            found |= {name: len(r.stored_records) for name, r in part.responses.items()}
    finally:
        await made.stop()
    return Replays.count, found


async def test_of_the_history_only_what_the_log_still_holds_is_read(
    broker: str, writer: log.Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic never expires: it was read from its beginning each time."""
    monkeypatch.setattr(log, "Replays", Replays)
    monkeypatch.setattr(source, "SLACK_MS", 0)
    tag = (await log.layout(broker)).tag

    async def write(number: int) -> str:
        """A CANCEL and what is kept of it; neither has to be whole."""
        offset = (await offsets.ends(topics.TOKENS, [1]))[1] if number >= OLD else 0
        rid = ids.mint(ids.Address(tag, 1, offset), number.to_bytes(ids.RANDOM_BYTES, "big"))
        if number >= OLD or number == 0:
            cancel = records.Cancel(rid, records.Owner("i", "alice"))
            await writer.append(topics.TOKENS, 1, rid, records.encode(cancel))
        kept = json.dumps({"t": "PART", "rid": rid, "part": 0, "of": 1, "digest": ""}).encode()
        await writer.append(topics.HISTORY, 1, rid, kept + b"\n{}")
        return rid

    offsets = log.Offsets(broker)
    try:
        old = [await write(number) for number in range(OLD)]
        count, found = await _read(broker)
        assert count >= OLD
        assert all(found[rid] == 1 for rid in old[1:])
        await archive_parts.cut(broker, [topics.TOKENS])
        assert await _read(broker) == (0, {})  # nothing is left to be compared
        await asyncio.sleep(0.01)  # the broker tells whole milliseconds
        new = [await write(OLD + number) for number in range(NEW)]
        assert await _read(broker) == (NEW, dict.fromkeys(new, 1))
        assert await _read(broker, new[-1]) == (1, {new[-1]: 1})
    finally:
        await offsets.stop()


async def test_a_response_whose_request_outlived_its_beginning_is_not_judged_as_whole(
    broker: str, writer: log.Writer
) -> None:
    """Its request made it before the beginning of `llm.tokens` was known: what the log had lost of
    it was held against it."""
    owner = records.Owner("i", "alice")
    rid = ids.mint(ids.Address((await log.layout(broker)).tag, 1, 0), bytes(ids.RANDOM_BYTES))
    echo = events.echo(rid, 1, "m")
    request = records.Request(rid, owner, "m", [], records.Sampling(1), echo)
    topic = topics.requests("default", "interactive")
    await writer.append(topic, 1, rid, records.encode(request))
    await writer.append(topics.TOKENS, 1, rid, records.encode(records.Cancel(rid, owner)))
    await archive_parts.cut(broker, [topics.TOKENS])
    made = source.Source(broker, source.Selection(["default"]))
    try:
        found = [part async for part in made.histories()]
    finally:
        await made.stop()
    assert [r.whole for part in found for r in part.responses.values()] == [False]
