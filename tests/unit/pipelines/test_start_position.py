"""Where a partition begins whose position the log may not hold any more."""

from __future__ import annotations

import itertools
import json
import logging
from typing import Any, cast

import pytest
import yaml

from pipelines import definition, start_position
from pipelines.counts import Counts
from pipelines.partition import Beginning
from tailrace import log
from tests.support.memory_log import MemoryLog

TOLD: dict[str, Any] = {
    "name": "small",
    "prompt": {"user": "{{ record.n }}"},
    "output": {"topic": "out"},
    "dead_letters": {"topic": "dead"},
}


class Stage:
    """An input of one partition, and what a runner has committed of it."""

    def __init__(self, start: str = "earliest") -> None:
        told = {**TOLD, "input": {"topic": "in", "start": start}}
        self.pipeline = definition.parse(yaml.safe_dump(told))
        seconds = itertools.count(1_795_632_373)
        self.memory = MemoryLog(clock=lambda: float(next(seconds)))
        for topic in ("in", "out", "dead"):
            self.memory.create_topic(topic, 1)

    def put(self, *numbers: int) -> None:
        for number in numbers:
            self.memory.put("in", 0, b"k", b'{"n": %d}' % number)

    def answer(self, offset: int) -> str:
        """An output of the record there; its place."""
        row = self.memory.records("in", 0)[offset]
        place = f"in/0/{row.offset}/{row.timestamp}"
        revision = f"small/{self.pipeline.revision}".encode()
        headers = [("tailrace-source", place.encode()), ("tailrace-pipeline", revision)]
        self.memory.put("out", 0, b"k", json.dumps({}).encode(), headers)
        return place

    def commit(self, offset: int, **counts: Any) -> Counts:
        """As a runner does behind the record before `offset`."""
        mark = str(log.Mark.from_record(self.memory.records("in", 0)[offset - 1]))
        done = Counts(read=offset, mark=mark, **counts)
        self.memory.committed_offsets[self.pipeline.group] = {("in", 0): (offset, done.encode())}
        return done

    def roll_back(self, *, to: int) -> None:
        self.memory.roll_back("in", 0, to)

    async def begin(self) -> Beginning:
        offsets, replays = self.memory.offsets(), self.memory.replays()
        return await start_position.begin(
            *(self.pipeline, 0, cast(log.Offsets, offsets), cast(log.Replays, replays))
        )


async def test_a_position_of_the_log_is_where_it_begins() -> None:
    stage = Stage()
    stage.put(0, 1, 2)
    assert await stage.begin() == Beginning(0, Counts(look_until=1))
    done = stage.commit(2)
    assert await stage.begin() == Beginning(2, done)


@pytest.mark.parametrize("later", [(), (7, 8, 9)], ids=["shorter", "other records"])
async def test_after_a_rollback_it_begins_anew_without_rows_that_have_an_output(
    later: tuple[int, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """Records that were written after a broker had come back with an older disk were passed over,
    silently, up to the former position."""
    stage = Stage()
    stage.put(0, 1, 2, 3)
    stage.commit(4)
    stage.roll_back(to=1)
    place = stage.answer(0)
    stage.put(*later)
    with caplog.at_level(logging.WARNING):
        beginning = await stage.begin()
    assert beginning == Beginning(0, Counts(read=4, look_until=4), frozenset({place}), reset=True)
    assert "partition 0 does not hold what was read below offset 4" in caplog.text


async def test_a_pipeline_that_began_at_the_end_asks_about_no_older_rows_after_a_rollback() -> None:
    stage = Stage("latest")
    stage.put(0, 1, 2, 3)
    stage.commit(4)
    stage.roll_back(to=2)
    stage.put(7, 8)
    beginning = await stage.begin()
    assert (beginning.offset, beginning.reset) == (2, True)


async def test_rows_that_retention_took_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()
    stage.put(0, 1, 2, 3)
    done = stage.commit(1)
    stage.memory.delete_below("in", 0, 3)
    with caplog.at_level(logging.WARNING):
        assert await stage.begin() == Beginning(3, done)
    assert "the offsets from 1 to 3 were deleted before they were read" in caplog.text
