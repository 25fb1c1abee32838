"""The archive under kills and drops: from it alone, every event is what the log said."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults import archived, drill, plants, stage, wants
from tests.faults.conftest import LONG, SEED

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def planted(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[stage.Stage]:
    plant = {"TAILRACE_TEST_PLANT": request.param} if request.param else {}
    made = stage.Stage(tmp_path, gateways=1, pushes=1, archive=True, environ=plant).open()
    yield made
    made.close()


async def hurt(on: stage.Stage) -> tuple[list[str], int, list[str]]:
    """Checks that fail; how many responses were compared, and those that differ."""
    async with drill.drill(on, "archive", SEED) as d:
        async with d.reviving():
            asked = await d.crowd.ask_many(8, tokens=120, pace_ms=10, sampling=1)
            await d.crowd.ask_many(4, pace_ms=5, **wants.EVERYTHING)
            d.kill(await d.streaming(asked[0], 20))
            await archived.kill(d)
            await d.crowd.cancel(asked[1])
            await d.crowd.settle(60.0)
            await archived.drop(d)
            await archived.stop(d)
            await d.crowd.ask_many(6, tokens=40, pace_ms=2)
            await d.crowd.settle(60.0)
            await archived.kill(d)
        found = await d.judge(settle_s=60.0, final_reads=4)
        compared, differing = await archived.compare(d)
    print("\n".join(found.lines()))
    return found.failed(), compared, differing


@pytest.mark.parametrize("planted", [""], indirect=True, ids=["nothing"])
async def test_killed_stopped_and_dropped_the_archive_has_every_event(planted: stage.Stage) -> None:
    failed, compared, differing = await hurt(planted)
    assert (failed, compared, differing) == ([], 18, [])


@LONG
@pytest.mark.parametrize("planted", plants.ARCHIVE, indirect=True)
async def test_a_planted_bug_of_the_archive_is_caught(planted: stage.Stage) -> None:
    failed, compared, differing = await hurt(planted)
    await asyncio.sleep(0)
    assert failed == [], "only the comparison can see it"
    assert compared == 18
    assert differing
