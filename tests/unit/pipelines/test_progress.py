"""How far a pipeline is, told by offsets alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import pytest
import yaml

from pipelines import definition, progress
from pipelines.counts import Counts
from tailrace.log import Offsets


class FakeOffsets:
    """Two partitions, held from 10 on and from 0 on, that end at 50 and 20."""

    def __init__(self) -> None:
        self.group = ""
        self.by_partition: dict[tuple[str, int], tuple[int, str]] = {}

    async def partitions(self, topic: str) -> int:
        assert topic == "in"
        return 2

    async def beginnings(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        return dict(zip(partitions, (10, 0), strict=True))

    async def ends(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        return dict(zip(partitions, (50, 20), strict=True))

    async def committed(self, group: str) -> dict[tuple[str, int], tuple[int, str]]:
        self.group = group
        return self.by_partition


def pipeline(start: str = "earliest") -> definition.Pipeline:
    told: dict[str, Any] = {
        "name": "small",
        "input": {"topic": "in", "start": start},
        "prompt": {"user": "{{ record.text }}"},
        "output": {"topic": "out"},
        "dead_letters": {"topic": "dead"},
    }
    return definition.parse(yaml.safe_dump(told))


async def look(offsets: FakeOffsets, start: str = "earliest") -> progress.Progress:
    return await progress.read(pipeline(start), cast(Offsets, offsets))


async def test_nothing_is_done_before_the_first_commit() -> None:
    offsets = FakeOffsets()
    progress = await look(offsets)
    assert offsets.group == "tailrace.pipelines.small"
    assert (progress.lag, progress.done) == (60, Counts())
    assert progress.eta_s is None


async def test_a_group_that_begins_with_what_comes_has_nothing_to_do_yet() -> None:
    assert (await look(FakeOffsets(), "latest")).lag == 0


async def test_counts_of_all_partitions_add_up() -> None:
    offsets = FakeOffsets()
    offsets.by_partition = {
        ("in", 0): (30, Counts(read=20, answered=19, dead=1).encode()),
        ("in", 1): (20, Counts(read=20, answered=20, alerted=2).encode()),
        ("other", 0): (7, Counts(read=7).encode()),
    }
    progress = await look(offsets)
    assert (progress.lag, progress.done) == (20, Counts(read=40, answered=39, dead=1, alerted=2))
    members = progress._replace(rate=4.0).members()
    assert (members["lag"], members["rows_per_s"], members["eta_s"]) == (20, 4.0, 5.0)
    assert members["partitions"] == {
        0: {"committed": 30, "end": 50},
        1: {"committed": 20, "end": 20},
    }
    assert "look_until" not in members


async def test_what_the_topic_lost_is_no_lag() -> None:
    offsets = FakeOffsets()
    offsets.by_partition = {("in", 0): (3, ""), ("in", 1): (99, "")}
    progress = await look(offsets)
    assert progress.by_partition[0].committed == 10
    assert progress.by_partition[1].committed == 20
    assert progress.lag == 40


async def test_a_rate_is_that_of_two_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    offsets = FakeOffsets()
    offsets.by_partition = {("in", 0): (20, Counts(read=10).encode())}

    async def later(seconds: float) -> None:
        assert seconds == progress.WATCH_S
        offsets.by_partition = {("in", 0): (35, Counts(read=25).encode())}

    monkeypatch.setattr("pipelines.progress.asyncio.sleep", later)
    state = await progress.read_with_rate(pipeline(), cast(Offsets, offsets))
    assert state.rate == 15 / progress.WATCH_S
    assert state.eta_s == state.lag / 5.0
