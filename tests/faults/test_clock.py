"""F16: the wall clock of one service is wrong by an hour, or jumps to and fro, while every client
else's is right. By libfaketime (Debian: faketime)."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tailrace import log
from tailrace.local import dev_credentials
from tailrace.protocol import events, ids, records, topics
from tests.faults import crowd, drill, stage
from tests.faults.conftest import LONG, SEED
from tests.support import gateway_process

STEP_S = 0.3  # between two jumps of the clock
SHORT_TTL_MS = 2_000
SLEPT_S = 4.0  # how long the worker is stopped: past the short time to live

LIBRARY = next(Path("/usr/lib").glob("**/faketime/libfaketimeMT.so.1"), None)
HOUR_S = 3600
LEEWAY_S = 60
WRONG = ("gateway-1", "push-1", "worker-1")


pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.skipif(
        LIBRARY is None, reason="wrong clocks need libfaketime (Debian package: faketime)"
    ),
]


class Clocks:
    """Wall clocks of single services, which may be set while they run. Monotonic clocks stay true:
    asyncio's timers run on them."""

    def __init__(self, on: stage.Stage) -> None:
        self._on = on
        for name in WRONG:
            self.set(name, 0)
            on.kill(name)
            on.start(
                name,
                LD_PRELOAD=str(LIBRARY),
                FAKETIME_TIMESTAMP_FILE=str(self._file(name)),
                FAKETIME_NO_CACHE="1",
                FAKETIME_DONT_FAKE_MONOTONIC="1",
            )
        on.wait_ready(*WRONG)

    def set(self, name: str, offset_s: int) -> None:
        fresh = self._file(name).with_suffix(".new")
        fresh.write_text(f"{offset_s:+d}")
        fresh.rename(self._file(name))  # the service may read it at any moment

    def set_all(self, offset_s: int) -> None:
        for name in WRONG:
            self.set(name, offset_s)

    def _file(self, name: str) -> Path:
        return self._on.folder / f"{name}.clock"


@pytest.fixture
def own(tmp_path: Path) -> Iterator[stage.Stage]:
    """One worker; a credential may be a minute too old or too young."""
    made = stage.Stage(tmp_path, workers=1).open()
    found = json.loads(made.keys.issuers.read_text())
    found["issuers"][0]["leeway"] = LEEWAY_S
    made.keys.issuers.write_text(json.dumps(found))
    yield made
    made.close()


@pytest.fixture
def clocks(own: stage.Stage) -> Clocks:
    return Clocks(own)


@pytest.mark.parametrize(
    "offsets",
    [
        pytest.param((HOUR_S,), id="ahead", marks=LONG),
        pytest.param((-HOUR_S,), id="behind", marks=LONG),
        pytest.param((HOUR_S, -HOUR_S, 0), id="strobe", marks=LONG),
    ],
)
async def test_f16_the_wall_clock_of_one_service_is_wrong(
    own: stage.Stage, clocks: Clocks, offsets: tuple[int, ...]
) -> None:
    async with drill.drill(own, "f16", SEED) as d:
        asked = [await d.crowd.ask(tokens=600, pace_ms=15) for _ in range(6)]
        for a in asked:
            assert a is not None
            for i in range(4):
                d.crowd.watch(
                    a,
                    bases=[own.services[("push-1", "gateway-1")[i // 2]].url],
                    via=("ws", "sse")[i % 2],
                )
        await d.until(
            "everyone is connected",
            lambda: (
                own.services["push-1"].connections >= 12
                and own.services["gateway-1"].connections >= 12
            ),
        )
        for i in range(12):
            d.fault("clock", ",".join(WRONG))
            clocks.set_all(offsets[i % len(offsets)])
            await asyncio.sleep(STEP_S)
        unaffected = d.reconnects()
        accepted, refused = (
            await credentials_by_their_clock(own, offsets[-1]) if len(offsets) == 1 else (1, 1)
        )
        expired, kept = await requests_of_a_worker_that_slept(d)
        first = asked[0]
        assert first is not None
        wrote = max(
            abs(r.ts - at) for at, r in await d.records_of(first.rid) if isinstance(r, records.Tok)
        )
        clocks.set_all(0)
        found = await d.judge()
    drill.passed(
        found,
        ("the worker's own time in its frames", wrote > 0.9 * HOUR_S * 1000),
        ("credentials of both kinds", accepted and refused),
    )
    assert unaffected == [], "no stream broke"
    assert not d.takeovers()
    assert d.outcomes[expired].status == "failed"
    assert d.outcomes[kept].status == "completed"
    assert {d.outcomes[a.rid].status for a in asked if a} == {"completed"}


async def credentials_by_their_clock(on: stage.Stage, offset_s: int) -> tuple[int, int]:
    """A service takes exactly the credentials that are valid by its own clock, give or take the
    leeway; how many of either kind were tried."""
    tried = {True: 0, False: 0}
    margin = 15  # between the two clocks' readings
    async with httpx.AsyncClient(timeout=20) as http:
        for name, path in (("gateway-1", "/v1/models"), ("push-1", "/v1/responses/resp_none")):
            for issued, ttl in (
                (0, HOUR_S // 2),  # fresh by the true clock
                (0, 3 * HOUR_S),
                (-3 * HOUR_S, 2 * HOUR_S),  # long over
                (offset_s - HOUR_S, HOUR_S - LEEWAY_S + margin),  # over, within the leeway
                (offset_s - HOUR_S, HOUR_S - LEEWAY_S - margin),
                (offset_s + LEEWAY_S - margin, HOUR_S),  # too young, within the leeway
                (offset_s + LEEWAY_S + margin, HOUR_S),
            ):
                valid = issued <= offset_s + LEEWAY_S and issued + ttl > offset_s - LEEWAY_S
                token = dev_credentials.mint(
                    on.keys.private,
                    gateway_process.KID,
                    gateway_process.ISS,
                    gateway_process.AUDIENCE,
                    "alice",
                    time.time() + issued,
                    ttl,
                )
                answer = await http.get(
                    f"{on.services[name].url}{path}", headers={"Authorization": f"Bearer {token}"}
                )
                assert (answer.status_code != 401) == valid, (
                    name,
                    offset_s,
                    issued,
                    ttl,
                    answer.text,
                )
                tried[valid] += 1
    return tried[True], tried[False]


async def requests_of_a_worker_that_slept(d: drill.Drill) -> tuple[str, str]:
    """Two requests wait while the worker is stopped: one for longer than its time to live, by the
    broker's clock, and one for much less."""
    d.pause("worker-1")
    expired, kept = await put(d, ttl_ms=SHORT_TTL_MS), await put(d, ttl_ms=600_000)
    await asyncio.sleep(SLEPT_S)
    d.resume("worker-1")
    return expired, kept


async def put(d: drill.Drill, *, ttl_ms: int) -> str:
    """A request as a gateway writes it."""
    bootstrap, partition, mark = d.stage.kafka.bootstrap, 1, f"{d.crowd.name}-ttl-{ttl_ms}"
    offsets, writer = log.Offsets(bootstrap), log.Writer(bootstrap)
    running = asyncio.create_task(writer.run())
    try:
        end = (await offsets.ends(topics.TOKENS, [partition]))[partition]
        rid = ids.mint(
            ids.Address((await log.layout(bootstrap)).tag, partition, end),
            os.urandom(ids.RANDOM_BYTES),
        )
        echo = events.echo(
            rid,
            int(time.time()),
            stage.MODEL,
            metadata={"mark": mark, "script_tokens": "20", "script_pace_ms": "5"},
        )
        owner = records.Owner(gateway_process.ISS, "alice", "")
        messages = [{"role": "user", "content": mark}]
        request = records.Request(
            rid, owner, stage.MODEL, messages, records.Sampling(1_000), echo, ttl_ms=ttl_ms
        )
        await writer.append(
            topics.requests(stage.POOL, "interactive"), partition, rid, records.encode(request)
        )
    finally:
        await writer.stop()
        running.cancel()
        await offsets.stop()
    d.crowd.asked.append(crowd.Asked(rid, "alice", 20))
    return rid
