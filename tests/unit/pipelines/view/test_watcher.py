"""One loop looks at all pipelines."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import pytest

from pipelines import definition
from pipelines.view.status import State
from pipelines.view.watcher import Watcher
from tailrace.log import LogUnavailable, Offsets
from tests.unit.pipelines.view.test_status import PIPELINE, look


class FakeOffsets:
    """Says which topics there are; None: does not answer."""

    def __init__(self) -> None:
        self.topics: frozenset[str] | None = frozenset({"in"})

    async def existing(self, topics: Iterable[str]) -> frozenset[str]:
        if self.topics is None:
            raise LogUnavailable("away")
        return self.topics & frozenset(topics)


@pytest.fixture
def offsets() -> FakeOffsets:
    return FakeOffsets()


async def test_each_look_is_kept_and_a_failed_one_says_why(
    offsets: FakeOffsets, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, clock = [0], [0.0]

    async def looked(pipeline: definition.Pipeline, _: object) -> object:
        assert pipeline is PIPELINE
        if read[0] < 0:
            raise LogUnavailable("no")
        return look(0, read[0]).progress

    monkeypatch.setattr("pipelines.progress.read", looked)
    watching = Watcher([PIPELINE], cast(Offsets, offsets), monotonic=lambda: clock[0])
    assert watching.observations["small"].state is State.UNREAD
    for read[0], clock[0] in ((10, 0.0), (40, 3.0)):
        await watching.look()
    assert watching.observations["small"].rate == 10.0
    read[0] = -1
    for topics, state in (
        (frozenset({"in"}), State.UNKNOWN),
        (frozenset({"other"}), State.MISSING),
        (None, State.UNKNOWN),
    ):
        offsets.topics = topics
        await watching.look()
        assert watching.observations["small"].state is state
        assert watching.observations["small"].looks[-1].progress.done.read == 40
