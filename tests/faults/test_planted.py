"""M2 on real parts: each planted bug is found by the same drill that the product passes."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults import chaos, drill, plants, stage, wants
from tests.faults.conftest import LONG, SEED

pytestmark = [
    pytest.mark.timeout(300),
    LONG,
]

HARMLESS = ("", "no_grace")
CAUGHT: list[str] = []


@pytest.fixture
def planted(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[stage.Stage]:
    made = stage.Stage(
        tmp_path, environ={"TAILRACE_TEST_PLANT": request.param} if request.param else {}
    ).open()
    yield made
    made.close()


async def hurt(on: stage.Stage) -> tuple[list[str], int]:
    """Names of the checks that fail after a drill of a kill, rebalances and records that arrive
    twice; and takeovers with k > 0."""
    async with drill.drill(on, "planted", SEED) as d:
        asked = await d.crowd.ask_many(10, tokens=800, pace_ms=10, sampling=1)
        await d.crowd.ask_many(6, pace_ms=10, sampling=1, **wants.EVERYTHING)
        victim = await d.streaming(asked[0], 20)
        on.add("worker", 3)
        on.start("worker-3")  # a rebalance while everything streams
        d.kill(victim)
        with contextlib.suppress(
            drill.Inconclusive
        ):  # a missing takeover may be the planted bug: the judge decides
            await d.succeeded(asked[0], victim)
        await chaos.replay(d, most=10)  # also claims that were replaced since
        found = await d.judge(settle_s=25.0, final_reads=4)
    print("\n".join(found.lines()))
    return found.failed(), len(d.takeovers())


@pytest.mark.parametrize("planted", HARMLESS, indirect=True, ids=lambda p: p or "nothing")
async def test_without_a_bug_the_drill_is_passed(planted: stage.Stage) -> None:
    failed, takeovers = await hurt(planted)
    assert failed == []
    if not takeovers:
        raise drill.Inconclusive("no takeover with k > 0")


@pytest.mark.parametrize(
    "planted", [name for name in plants.PLANTS if name not in HARMLESS], indirect=True
)
async def test_a_planted_bug_is_caught(planted: stage.Stage) -> None:
    failed, _ = await hurt(planted)
    assert failed
    CAUGHT.append(planted.environ["TAILRACE_TEST_PLANT"])
    print(
        f"M2: {CAUGHT[-1]} caught by {', '.join(failed)}; caught so far "
        f"{len(CAUGHT)}/{len(plants.PLANTS) - 1}"
    )


@pytest.mark.parametrize("planted", plants.REFUSALS, indirect=True)
async def test_a_refused_request_that_runs_is_caught(planted: stage.Stage) -> None:
    async with drill.drill(planted, "refusals", SEED) as d:
        await chaos.ask_without_broker(d, signal.SIGSTOP)
        found = await d.judge(settle_s=25.0, final_reads=4)
    print("\n".join(found.lines()))
    if not found.results["R3"].count:
        raise drill.Inconclusive("no submit was judged")
    assert "R3" in found.failed()
