"""One drill: load, a fault, healing, rest, final reads, and the judge's verdict on all of it."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import random
import signal
import time
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tailrace import log
from tailrace.protocol import ids, records, topics
from tailrace.verify import checks, clients, command, outcome, report, transcript
from tests.faults import crowd, stage
from tests.faults.crowd import Asked, Scribe
from tests.support import scripted_content, waiting

REVIVE_EVERY_S = 0.3
# The cold read compares offsets and usage with the log: one more commit of the workers.
LAST_COMMIT_S = 1.5
# A worker begins what is in its topic, also after an outage of the broker that it waited out.
BEGIN_S = 15.0

LATE_MS = 5_000.0
# Figures of the report.
REROUTED = "responses of another pool's model after a reroute"
CONTINUED = "responses that another model continued"


class Inconclusive(Exception):
    """The fault did not bite: the run proves nothing (M3)."""


@dataclass
class Drill:
    """What a scenario works with.

    Attributes:
        away: services that are not started again when they die.
    """

    stage: stage.Stage
    crowd: crowd.Crowd
    name: str
    seed: int
    rng: random.Random
    nemesis: Scribe
    outcomes: dict[str, outcome.Outcome] = field(default_factory=dict)
    since: float = field(default_factory=time.time)
    away: set[str] = field(default_factory=set)

    def fault(self, kind: str, target: str, f: str = "start") -> None:
        """Write down what was done to whom."""
        self.nemesis.line(op="nemesis", f=f, kind=kind, target=target)

    def kill(self, name: str) -> None:
        self.fault("kill", name)
        self.stage.kill(name)

    def pause(self, name: str) -> None:
        """SIGSTOP."""
        self.fault("stop", name)
        self.stage.send(name, signal.SIGSTOP)

    def resume(self, name: str) -> None:
        """SIGCONT."""
        self.fault("stop", name, "stop")
        self.stage.send(name, signal.SIGCONT)

    @contextlib.asynccontextmanager
    async def reviving(self) -> AsyncIterator[None]:
        """As an orchestrator does: what died is started again."""

        async def revive() -> None:
            while True:
                await asyncio.sleep(REVIVE_EVERY_S)
                for service in self.stage.services.values():
                    if not service.alive and service.name not in self.away:
                        self.stage.start(service.name)

        task = asyncio.create_task(revive())
        try:
            yield
            # What drains may end only now.
            await waiting.eventually(
                lambda: asyncio.to_thread(self.stage.all_ready),
                "all are ready",
                within_s=stage.READY_S,
                every_s=0.1,
            )
        finally:
            task.cancel()

    async def restart(self, name: str) -> None:
        """Start a dead service again, and wait until it is ready."""
        self.stage.start(name)
        await asyncio.to_thread(self.stage.wait_ready, name)

    async def until(self, what: str, happens: Callable[[], Any], seconds: float = 60.0) -> None:
        """Wait for it; a fault that never shows proves nothing.

        Raises:
            Inconclusive
        """
        try:
            await waiting.eventually(
                lambda: asyncio.to_thread(happens), what, within_s=seconds, every_s=0.2
            )
        except AssertionError as error:
            raise Inconclusive(str(error)) from None

    # ---- looking into the log while it runs

    async def records_of(self, rid: str) -> list[tuple[int, records.TokenRecord]]:
        """Everything of a response that is in the log now."""
        address = ids.parse(rid)
        offsets, replays, found = (
            log.Offsets(self.stage.kafka.bootstrap),
            log.Replays(self.stage.kafka.bootstrap, size=1),
            [],
        )
        try:
            end = (await offsets.ends(topics.TOKENS, [address.partition]))[address.partition]
            async for batch in replays.read(topics.TOKENS, address.partition, address.offset, end):
                for r in batch:
                    decoded = records.decode_token(r.value) if r.key == rid.encode() else None
                    if decoded is not None:
                        found.append((r.timestamp, decoded))
        finally:
            await offsets.stop()
            await replays.stop()
        return found

    async def owner_of(self, rid: str) -> str:
        """Name of the worker that claimed it last; empty before the first claim."""
        claims = [r for _, r in await self.records_of(rid) if isinstance(r, records.Claim)]
        return claims[-1].worker.split("/")[0] if claims else ""

    async def streaming(self, asked: Asked, n: int = 10, seconds: float = 30.0) -> str:
        """Wait until `n` tokens are in the log; the owner's name."""

        async def owner() -> str:
            found = await self.records_of(asked.rid)
            if sum(len(r.ids) for _, r in found if isinstance(r, records.Tok)) < n:
                return ""
            return next(
                r.worker.split("/")[0] for _, r in reversed(found) if isinstance(r, records.Claim)
            )

        return await waiting.eventually(
            owner, f"{asked.rid} streams", within_s=seconds, every_s=0.1
        )

    async def succeeded(self, asked: Asked, victim: str, seconds: float = 30.0) -> None:
        """Wait until another worker than `victim` has it."""

        async def taken_over() -> bool:
            return await self.owner_of(asked.rid) != victim

        try:
            await waiting.eventually(
                taken_over,
                f"{asked.rid} is taken over from {victim}",
                within_s=seconds,
                every_s=0.2,
            )
        except AssertionError as error:
            raise Inconclusive(str(error)) from None

    # ---- the end

    async def judge(
        self, *, settle_s: float = 90.0, final_reads: int = 20, fresh: bool = True
    ) -> report.Report:
        """Heal is over: let everything end, read it all again, and judge."""
        self.nemesis.line(op="heal")
        await self.crowd.settle(settle_s)
        await self.ended(settle_s)
        await self.crowd.read_again(final_reads)
        await asyncio.sleep(LAST_COMMIT_S)
        found, outcomes = await examine(
            self.stage, since=self.since, only=self.name, late_ms=LATE_MS if fresh else 0.0
        )
        self.outcomes = {a.rid: outcomes[a.rid] for a in self.crowd.asked if a.rid in outcomes}
        return found

    # ---- what the judge may be asked for M3: about the responses of this drill alone

    def takeovers(self, lost: str = "") -> list[outcome.Takeover]:
        """With k > 0; `lost`: only from this worker."""
        return [
            t
            for o in self.outcomes.values()
            for t in o.takeovers
            if t.k and (not lost or t.lost.split("/")[0] == lost)
        ]

    def statuses(self) -> dict[str | None, int]:
        return collections.Counter(o.status for o in self.outcomes.values())

    def ignored(self) -> int:
        return sum(o.ignored for o in self.outcomes.values())

    def reconnects(self, *, but: Collection[str] = ()) -> list[str]:
        """Connections of this drill that a watcher had to follow with another one: who, where and
        how they ended. `but`: not of these watchers."""
        found, latest = [], dict[str, transcript.Line]()
        for _, lines in self.crowd.files():
            ends: dict[int, int | str | None] = {}
            for line in lines:
                if line.f in ("info", "fail") or line.op == "close":
                    ends.setdefault(line.n, line.code)
                elif line.op == "watch" and line.f == "invoke":
                    before = latest.get(line.watcher)
                    if before is not None and line.watcher not in but:
                        found.append(f"{line.watcher} at {before.target}: {ends.get(before.n)}")
                    latest[line.watcher] = line
        return found

    def unknown(self) -> int:
        """The number of operations whose outcome is unknown."""
        return sum(line.f == "info" for _, lines in self.crowd.files() for line in lines)

    async def ended(self, seconds: float) -> None:
        """Waits until every request in the log has an end, also those without a watcher, and those
        of unknown outcome that are begun within BEGIN_S."""
        began = time.monotonic()
        give_up, begun_by = began + seconds, began + BEGIN_S
        waiting, read = {a.rid.encode() for a in self.crowd.asked}, dict[int, int]()
        unknown = {rid.encode() for rid in self.crowd.unknown if rid.startswith(ids.PREFIX)}
        for rid in waiting | unknown:
            address = ids.parse(rid.decode())
            read[address.partition] = min(
                address.offset, read.get(address.partition, address.offset)
            )
        offsets, replays = (
            log.Offsets(self.stage.kafka.bootstrap),
            log.Replays(self.stage.kafka.bootstrap),
        )
        try:
            unknown = await self._written(unknown, offsets, replays)
            while (now := time.monotonic()) < give_up:
                if not waiting and (not unknown or now > begun_by):
                    break
                ends = await offsets.ends(topics.TOKENS, read)
                for partition, end in ends.items():
                    async for batch in replays.read(topics.TOKENS, partition, read[partition], end):
                        for r in batch:
                            decoded = records.decode_token(r.value)
                            if isinstance(decoded, records.End | records.Cancel):
                                waiting.discard(r.key)
                                unknown.discard(r.key)
                            elif isinstance(decoded, records.Claim) and r.key in unknown:
                                unknown.discard(r.key)
                                waiting.add(r.key)
                    read[partition] = end
                if waiting or unknown:
                    await asyncio.sleep(0.5)
        finally:
            await offsets.stop()
            await replays.stop()

    async def _written(
        self, rids: Collection[bytes], offsets: log.Offsets, replays: log.Replays
    ) -> set[bytes]:
        """Those of them whose request is in the log: a worker begins it, unless it came too late to
        count."""
        found = set[bytes]()
        partitions = {ids.parse(rid.decode()).partition: 0 for rid in rids}
        for pool in self.stage.pools:
            for priority in topics.CLASSES:
                topic = topics.requests(pool, priority)
                ends = await offsets.ends(topic, partitions) if partitions else {}
                for partition, end in ends.items():
                    async for batch in replays.read(topic, partition, 0, end):
                        for r in batch:
                            request = records.decode_request(r.value)
                            if request is not None and request.rid.encode() in rids:
                                found.add(request.rid.encode())
        return found


async def examine(
    on: stage.Stage, *, since: float = 0.0, only: str = "", late_ms: float = 0.0
) -> tuple[report.Report, dict[str, outcome.Outcome]]:
    """The cold read, with the transcripts of the run. `since`, `only`: without the drills before,
    which were judged already."""
    paths = [
        p
        for p in sorted(on.transcripts.glob("*.jsonl"))
        if p.name.split("-")[0] not in ("client", "nemesis") or f"-{only}" in p.name
    ]
    files: clients.Files = [(p.name, transcript.read(p.read_bytes(), p.name)) for p in paths]
    options = checks.Options(
        settle_s=0.0, since_ms=int(since * 1000), content=scripted_content.content
    )
    return await command.examine(on.kafka.bootstrap, on.pools, files, options, late_ms=late_ms)


def passed(found: report.Report, *bitten: tuple[str, Any]) -> None:
    """The verdict, and that the fault really bit: `bitten` are (what, whether).

    Raises:
        AssertionError: a check failed.
        Inconclusive: it did not bite.
    """
    text = "\n".join(found.lines())
    assert not found.failed(), text
    assert found.verdict is report.Verdict.PASS, text
    missing = [what for what, bit in bitten if not bit]
    if missing:
        raise Inconclusive(f"the fault did not bite: {', '.join(missing)}\n{text}")


@contextlib.asynccontextmanager
async def drill(on: stage.Stage, name: str, seed: int) -> AsyncIterator[Drill]:
    """A drill on a stage; its clients are gone afterwards. All draws come from `seed`."""
    on.mend()  # blocks: children are started from the main thread
    rng = random.Random(f"{name}/{seed}")
    path = Path(on.transcripts) / f"nemesis-{name}-{seed}.jsonl"
    for before in (
        path,
        path.with_name(f"client-{name}-{seed}.jsonl"),
    ):  # of a drill that proved nothing
        before.unlink(missing_ok=True)
    made = Drill(on, crowd.Crowd(on, f"{name}-{seed}", rng), name, seed, rng, Scribe(path))
    try:
        yield made
    finally:
        await made.crowd.leave()
        made.nemesis.close()
