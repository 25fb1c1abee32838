"""F29: all workers of a pool are lost. Another pool's model answers what waits, and continues the
text of what has begun."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.protocol import records
from tailrace.verify import report
from tests.faults import drill, plants, stage
from tests.faults.conftest import LONG, SEED
from tests.support import waiting

CONTINUED, REROUTED = 6, 4
TAKEN_S = 90.0
FINDS = {
    "word_again": "L2",
    "token_missing": "L2",
    "one_item": "C2",
}  # the check, by what is planted

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def planted(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[stage.Stage]:
    plant = {"TAILRACE_TEST_PLANT": request.param} if request.param else {}
    made = stage.Stage(tmp_path, fallback=2, pushes=1, environ=plant).open()
    yield made
    made.close()


async def lose(d: drill.Drill) -> tuple[report.Report, str]:
    """One worker of the first pool is killed, the other one comes back as a zombie. One of the
    second pool is killed while it continues: its name."""
    begun = await d.crowd.ask_many(CONTINUED // 2, tokens=800, pace_ms=10)
    begun += await d.crowd.ask_many(CONTINUED // 2, tokens=800, pace_ms=10, sampling=1)
    for asked in begun:
        await d.streaming(asked, 10)
    killed, zombie = d.stage.of("worker")
    d.pause(zombie.name)
    d.kill(killed.name)
    waits = await d.crowd.ask_many(REROUTED, tokens=50, pace_ms=5)

    async def taken() -> bool:
        found = [await d.records_of(asked.rid) for asked in (*begun, *waits)]
        owners = [[r for _, r in each if isinstance(r, records.Claim)] for each in found]
        return all(claims and claims[-1].served for claims in owners)

    await waiting.eventually(taken, "the second pool has them", within_s=TAKEN_S, every_s=0.2)
    victim = await d.owner_of(begun[0].rid)
    d.kill(victim)
    d.resume(zombie.name)
    await d.restart(killed.name)
    await d.restart(victim)
    return await d.judge(), victim


@LONG
@pytest.mark.parametrize("planted", [""], indirect=True, ids=["nothing"])
async def test_f29_a_pool_is_lost_and_another_one_answers_and_continues(
    planted: stage.Stage,
) -> None:
    async with drill.drill(planted, "f29", SEED) as d:
        found, victim = await lose(d)
    drill.passed(
        found,
        ("responses that were rerouted", found.figures[drill.REROUTED]),
        ("responses that another model continued", found.figures[drill.CONTINUED]),
        ("ignored records of the zombie", d.ignored()),
        ("takeovers of what another model continues", d.takeovers(victim)),
    )
    assert d.statuses() == {"completed": CONTINUED + REROUTED}


@LONG
@pytest.mark.parametrize("planted", plants.FALLBACK, indirect=True)
async def test_a_planted_bug_of_the_continuation_is_caught(planted: stage.Stage) -> None:
    async with drill.drill(planted, "f29", SEED) as d:
        found, _ = await lose(d)
    print("\n".join(found.lines()))
    assert found.figures[drill.CONTINUED]
    assert FINDS[planted.environ["TAILRACE_TEST_PLANT"]] in found.failed()
