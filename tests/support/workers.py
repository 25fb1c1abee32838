"""A bench for worker tests: asks as a gateway would, starts worker processes, and reads the token
log as any reader would."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tailrace import log, settings
from tailrace.local import ports
from tailrace.protocol import events, fold, ids, records, topics
from tailrace.protocol.fold import Ended, Fold, Outcome
from tests.support import waiting
from worker import app as worker_app
from worker.heartbeat import status

ROOT = Path(__file__).parents[2]
ENGINE_PYTHON = ROOT / ".venv-engine" / "bin" / "python"
MODEL_NAME = "smollm2-135m-instruct"
OWNER = records.Owner("https://tests", "alice")


@dataclass
class Answer:
    """A response as a reader holds it. `times`: broker time of each of its records, in ms."""

    fold: Fold
    text: str
    records: list[tuple[int, records.TokenRecord, Outcome]]
    times: list[int]

    @property
    def ended(self) -> Ended:
        assert self.fold.ended is not None
        return self.fold.ended

    def kinds(self) -> list[str]:
        return [type(r).__name__ for _, r, _ in self.records]


@dataclass
class Worker:
    """One worker process; its log lines are in `log_path`."""

    process: subprocess.Popen[bytes]
    name: str
    port: int
    log_path: Path

    def status(self) -> dict[str, Any] | None:
        """What `/ready` says; None while nothing listens."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/ready", timeout=2) as answer:
                found = json.load(answer)
        except urllib.error.HTTPError as error:
            found = json.loads(error.read())
        except OSError:
            return None
        assert isinstance(found, dict)
        return found

    async def ready(self, deadline_s: float = 30.0) -> Worker:
        async def says_so() -> bool:
            assert self.process.poll() is None, self.logs()
            status = await asyncio.to_thread(self.status)
            return bool(status and status["ready"])

        await waiting.eventually(says_so, "the worker is ready", within_s=deadline_s)
        return self

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    async def exit_code(self, deadline_s: float = 20.0) -> int:
        return await asyncio.to_thread(self.process.wait, deadline_s)

    def logs(self) -> str:
        return self.log_path.read_text(errors="replace")[-6000:]


@dataclass
class Inside:
    """A worker in the test's own process: no start-up, and its parts can be looked at. For tests
    that kill nothing."""

    name: str
    app: worker_app.App
    task: asyncio.Task[int]

    async def leave(self) -> int:
        self.app.leave()
        return await asyncio.wait_for(self.task, 30)


@dataclass
class Bench:
    """Everything a test asks for, on one pool of its own."""

    bootstrap: str
    redis_url: str
    pool: str
    folder: Path
    layout: log.Layout
    writer: log.Writer
    offsets: log.Offsets
    workers: list[Worker] = field(default_factory=list)
    inside: list[Inside] = field(default_factory=list)

    def _settings(self, name: str, engine: str, session_ms: int) -> dict[str, str]:
        return {
            "TAILRACE_KAFKA": self.bootstrap,
            "TAILRACE_REDIS": self.redis_url,
            "TAILRACE_POOL": self.pool,
            "TAILRACE_POOLS": json.dumps(
                {self.pool: {"models": [MODEL_NAME], "max_model_len": 8192}}
            ),
            "TAILRACE_ENGINE": engine,
            "TAILRACE_NAME": name,
            "TAILRACE_SESSION_TIMEOUT_MS": str(session_ms),
        }

    async def serve(self, *, engine: str = "scripted", **env: str) -> Inside:
        """A worker inside this process, once it is ready."""
        name = f"{self.pool}-i{len(self.inside) + 1}"
        chosen = settings.worker(self._settings(name, engine, 6000) | env)
        app = worker_app.App(chosen)
        made = Inside(name, app, asyncio.create_task(app.run()))
        self.inside.append(made)

        def loaded() -> bool:
            assert not made.task.done()
            return app.status.state is not status.State.LOADING

        await waiting.eventually(loaded, "the worker has loaded", within_s=60, every_s=0.01)
        return made

    def worker(
        self,
        *,
        engine: str = "scripted",
        python: str | Path = sys.executable,
        session_ms: int = 6000,
        **env: str,
    ) -> Worker:
        name, port = f"{self.pool}-{len(self.workers) + 1}", ports.free_port()
        chosen = self._settings(name, engine, session_ms) | {
            "TAILRACE_ADMIN_PORT": str(port),
            "PYTHONPATH": str(ROOT),
        }
        path = self.folder / f"{name}.log"
        with path.open("wb") as out:
            process = subprocess.Popen(
                [str(python), "-m", "worker"],
                env={**os.environ, **chosen, **env},
                cwd=self.folder,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        made = Worker(process, name, port, path)
        self.workers.append(made)
        return made

    async def mint(self, partition: int) -> str:
        end = (await self.offsets.ends(topics.TOKENS, [partition]))[partition]
        return ids.mint(ids.Address(self.layout.tag, partition, end), os.urandom(ids.RANDOM_BYTES))

    async def ask(
        self,
        text: str = "hello",
        *,
        partition: int = 0,
        priority: str = "interactive",
        rid: str | None = None,
        cues: dict[str, str] | None = None,
        sampling: records.Sampling | None = None,
        **more: Any,
    ) -> records.Request:
        rid = rid or await self.mint(partition)
        messages = [{"role": "user", "content": text}]
        echo = events.echo(rid, int(time.time()), MODEL_NAME, metadata=cues or {})
        fields: dict[str, Any] = {
            "model": MODEL_NAME,
            "messages": messages,
            "sampling": sampling or records.Sampling(4096),
            "echo": echo,
            **more,
        }
        request = records.Request(rid, OWNER, **fields)
        await self.append(
            topics.requests(self.pool, priority), partition, rid, records.encode(request)
        )
        return request

    async def append(self, topic: str, partition: int, key: str, value: bytes) -> log.Appended:
        return await self.writer.append(topic, partition, key, value)

    async def cancel(self, request: records.Request) -> None:
        partition = ids.parse(request.rid).partition
        await self.append(
            topics.TOKENS,
            partition,
            request.rid,
            records.encode(records.Cancel(request.rid, OWNER, request.echo)),
        )

    async def read(self, rid: str) -> Answer:
        """Fold the response from its id's bound to the log's end, on a connection of its own."""
        address = ids.parse(rid)
        replays = log.Replays(self.bootstrap, size=1)
        state, parts, found, times = fold.Fold(retain_ids=True), [], [], []
        try:
            end = (await self.offsets.ends(topics.TOKENS, [address.partition]))[address.partition]
            async for batch in replays.read(topics.TOKENS, address.partition, address.offset, end):
                for r in batch:
                    record = records.decode_token(r.value)
                    if record is None or record.rid != rid:
                        continue
                    outcome = state.apply(record, r.offset, r.timestamp)
                    found.append((r.offset, record, outcome))
                    times.append(r.timestamp)
                    if isinstance(outcome, fold.Accepted):
                        parts.append(outcome.text)
                    elif isinstance(outcome, fold.Ended):
                        parts.append(outcome.text_tail)
        finally:
            await replays.stop()
        return Answer(state, "".join(parts), found, times)

    async def until(self, rid: str, enough: Any, deadline_s: float = 30.0) -> Answer:
        """The answer once `enough(answer)`; `deadline_s`: how long nothing may happen to it."""
        end, seen = time.monotonic() + deadline_s, (-1, -1)
        while True:
            answer = await self.read(rid)
            if enough(answer):
                return answer
            if seen != (grown := (len(answer.records), answer.fold.next)):
                end, seen = time.monotonic() + deadline_s, grown
            if time.monotonic() > end:
                raise AssertionError(
                    f"not in time: {answer.kinds()[-8:]}, next={answer.fold.next}, "
                    f"{[w.logs()[-1500:] for w in self.workers]}"
                )
            await asyncio.sleep(0.05)

    async def done(self, rid: str, deadline_s: float = 30.0) -> Answer:
        return await self.until(rid, lambda a: a.fold.phase is fold.Phase.DONE, deadline_s)

    async def tokens(self, rid: str, n: int, deadline_s: float = 30.0) -> Answer:
        return await self.until(rid, lambda a: a.fold.next >= n, deadline_s)

    async def committed(self, partition: int, priority: str = "interactive") -> tuple[int, str]:
        found = await self.offsets.committed(topics.group(self.pool))
        return found.get((topics.requests(self.pool, priority), partition), (-1, ""))

    async def beside(self, topic: str, rid: str) -> list[bytes]:
        """Values of a side topic (usage, audit, dead letters) that name the response."""
        count = next(row.partitions for row in topics.table([self.pool]) if row.name == topic)
        replays, found = log.Replays(self.bootstrap, size=1), []
        ends = await self.offsets.ends(topic, range(count))
        beginnings = await self.offsets.beginnings(topic, range(count))
        try:
            for p in range(count):
                async for batch in replays.read(topic, p, beginnings[p], ends[p]):
                    found += [
                        r.value for r in batch if r.value is not None and rid.encode() in r.value
                    ]
        finally:
            await replays.stop()
        return found


@contextlib.asynccontextmanager
async def bench(bootstrap: str, redis_url: str, folder: Path) -> AsyncIterator[Bench]:
    """A bench on a fresh pool; its workers are gone afterwards."""
    pool = f"bench-{os.urandom(4).hex()}"
    await log.apply_topics(bootstrap, [pool])
    writer = log.Writer(bootstrap)
    running = asyncio.create_task(writer.run())
    made = Bench(
        bootstrap,
        redis_url,
        pool,
        folder,
        await log.layout(bootstrap),
        writer,
        log.Offsets(bootstrap),
    )
    try:
        yield made
    finally:
        for inside in made.inside:
            if not inside.task.done():
                await inside.leave()
        for worker in made.workers:
            if worker.process.poll() is None:
                worker.kill()
        await writer.stop()
        running.cancel()
        await made.offsets.stop()
        with contextlib.suppress(asyncio.CancelledError):
            await running
