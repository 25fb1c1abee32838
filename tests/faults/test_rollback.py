"""A broker comes up with an older disk. A drill of its own, and no fault of the mixture: what is
judged is what remains, so nothing that was said before can be."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.faults import archived, drill, stage
from tests.faults.conftest import LONG, SEED
from tests.faults.crowd import Asked

pytestmark = [pytest.mark.timeout(900), LONG]

BEFORE, LOST = 4, 6


@pytest.fixture
def own(tmp_path: Path) -> Iterator[stage.Stage]:
    made = stage.Stage(tmp_path, workers=1, gateways=1, pushes=1, archive=True, ready_s=400).open()
    yield made
    made.close()


async def test_the_newest_records_are_gone_and_everything_goes_on(own: stage.Stage) -> None:
    async with drill.drill(own, "rollback", SEED) as d, d.reviving():
        before = await d.crowd.ask_many(BEFORE, tokens=40, pace_ms=2)
        await d.crowd.settle(60)
        await archived.folded(own)
        own.kafka.stop()
        own.kafka.copy()
        own.kafka.launch()
        await asyncio.to_thread(own.kafka.wait_ready)
        lost = await d.crowd.ask_many(LOST, tokens=40, pace_ms=2)
        await d.crowd.settle(90)
        await archived.folded(own)
        running = await d.crowd.ask_many(2, tokens=3000, pace_ms=20)
        await d.streaming(running[0], 20)
        starts = {name: own.services[name].starts for name in ("gateway-1", "push-1", "worker-1")}
        d.fault("rollback", "kafka")
        own.kafka.kill()
        own.kafka.roll_back()
        own.kafka.launch()
        await asyncio.to_thread(own.kafka.wait_ready)
        await d.until(
            "services have started again",
            lambda: all(own.services[name].starts > n for name, n in starts.items()),
            90.0,
        )
        await d.until("all are ready", own.all_ready, 60.0)
        found = {a.rid: await read(own, a) for a in (*before, *lost)}
        assert set(found.values()) == {"completed"}, "from the log, or from the archive"
        assert {await read(own, a) for a in running} <= {"404", "410"}
    for path in own.transcripts.glob(
        "*.jsonl"
    ):  # what was written down about records that are gone
        path.rename(path.with_suffix(".lost"))
    for service in own.services.values():
        own.kill(service.name)
    async with drill.drill(own, "after", SEED) as again:
        more = await again.crowd.ask_many(LOST, tokens=50, pace_ms=5)
        verdict = await again.judge()
        await archived.folded(own)
        for a in more:
            assert await listed(own, a)
    drill.passed(verdict)
    assert again.statuses() == {"completed": LOST}
    assert "log_rolled_back" in own.services["archive-1"].log.read_text()
    done = await asyncio.to_thread(
        own.command, "verify", "--kafka", own.kafka.bootstrap, "--pool", stage.POOL, "--settle", "0"
    )
    assert done.returncode == 0, done.stdout + done.stderr


async def read(on: stage.Stage, a: Asked) -> str:
    """The status of a response, or of the answer that refuses it."""
    async with httpx.AsyncClient(base_url=on.services["gateway-1"].url, timeout=30) as client:
        headers = {"authorization": f"Bearer {on.token(a.user)}"}
        got = await client.get(f"/v1/responses/{a.rid}", headers=headers)
        return str(got.json()["status"]) if got.status_code == 200 else str(got.status_code)


async def listed(on: stage.Stage, a: Asked) -> bool:
    """Whether a list of the owner's responses has it."""
    async with httpx.AsyncClient(base_url=on.services["gateway-1"].url, timeout=30) as client:
        headers = {"authorization": f"Bearer {on.token(a.user)}"}
        got = await client.get("/v1/responses", params={"limit": 100}, headers=headers)
        return a.rid in got.text
