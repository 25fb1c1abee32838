"""The room of the attacks: one deployment, an ordinary user beside, and a row for each attack.

How to add an attack:

    def test_a_head_without_an_end_is_refused(deployment: room.Deployment, attack: room.Attacks):
        with attack("head without an end", "431 at 32 KiB; memory flat"):
            ...                                   # be a bad client; assert what must come of it

- `attack` measures around the block: first tokens of the bystander before and during it, memory and
  file descriptors of each service before, at the most, and afterwards. It writes the row also when
  the block fails.
- An attack is bounded, and reaches nothing but 127.0.0.1. `room.amount(full, small)` is how much of
  it: `full` under `make attacks`, `small` in `make test`.
- Bad clients are in `tests/attacks/raw.py`. They come from 127.0.0.2, the bystander from 127.0.0.9.
- `deployment.headers("mallory")` is a credential of any user; `deployment.gateway(1)` and
  `deployment.push(1)` are what to attack, and what the bystander uses. Kill none of them.
- A test may be `async`: the block's measuring blocks the loop only before and after it.
- Under `make attacks` an attack fails that moves the bystander's first token by more than
  `SLOWER_MS` (90th percentile), or lets a service grow by more than `GROWTH_MB`. In `make test`
  nothing timed fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from tailrace import log
from tailrace.local import child_process
from tests.faults.stage import ROOT, Service, Stage
from tests.support import attacks, waiting

FULL: Final = os.environ.get("TAILRACE_TEST_ATTACKS") == "full"
REPORT: Final = ROOT / "test-results" / "attacks.json"
SLOWER_MS: Final = 100.0
GROWTH_MB: Final = 50.0
SAMPLE_S: Final = 0.1
# After an attack, before memory is read for the last time. It has no end that could be waited for.
SETTLE_S: Final = 5.0 if FULL else 0.2
WAYS: Final = ("gateway", "push")
QUESTIONS: Final = 3  # at least so many of the bystander's count in each window
IDLE_QUESTIONS: Final = 25 if FULL else QUESTIONS  # the same in the window before an attack
# For so long, that window also serves the attacks after it.
IDLE_VALID_S: Final = 0.0 if FULL else 60.0
BYSTANDERS: Final = 20  # users that the bystander is in turn, so that no limit of a user is met


def amount(full: int, small: int) -> int:
    """How much of something an attack does: `full` under `make attacks`, `small` otherwise."""
    return full if FULL else small


@dataclass(frozen=True)
class Question:
    """One question of the bystander; monotonic seconds."""

    way: str
    begun: float
    ended: float
    ok: bool


class Deployment:
    """Two gateways, pushes and workers with the settings of production, and the bystander.

    Attributes:
        forge: holds the keys of more issuers, and signs whatever it is given.
    """

    def __init__(self, folder: Path) -> None:
        # Limits as in production, where a stage of faults has none.
        self.forge = attacks.Forge()
        self._stage = Stage(
            folder,
            traced=False,
            environ={"TAILRACE_LIMITS": "{}"},
            issuers=self.forge.settings()["issuers"],
            archive=True,
            record_keys=True,
        )
        self._answers = folder / "bystander.txt"
        self._bystander: child_process.ChildProcess | None = None
        self._idle: tuple[float, dict[str, Delays]] | None = None

    def open(self) -> None:
        """Start everything, and the bystander; from the main thread."""
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # attackers hold thousands
        self._stage.open()
        self._answers.touch()
        room = {
            "ask": self.gateway(2).url,
            "gateway": self.gateway(1).url,
            "push": self.push(1).url,
            "credentials": [self.token(f"bystander-{n}") for n in range(BYSTANDERS)],
            "out": str(self._answers),
        }
        path = self._stage.folder / "bystander.json"
        path.write_text(json.dumps(room))
        self._bystander = child_process.ChildProcess(
            "bystander",
            [sys.executable, "-m", "tests.attacks.bystander", str(path)],
            environ={**os.environ, "PYTHONPATH": str(ROOT)},
            log=self._stage.folder / "bystander.log",
            run=self._stage.run,
            cwd=ROOT,
        )
        self.wait_for_answers(since=0.0, count=2 * BYSTANDERS)

    def close(self) -> None:
        """End everything."""
        if self._bystander is not None:
            self._bystander.kill()
        self._stage.close()

    def gateway(self, number: int = 1) -> Service:
        return self._stage.services[f"gateway-{number}"]

    def push(self, number: int = 1) -> Service:
        return self._stage.services[f"push-{number}"]

    @property
    def services(self) -> dict[str, Service]:
        """All services by name."""
        return self._stage.services

    @property
    def kafka(self) -> str:
        """Bootstrap address of the broker."""
        return str(self._stage.kafka.bootstrap)

    @property
    def redis(self) -> str:
        """URL of Redis."""
        return self._stage.redis.url

    def token(self, user: str, lifetime_s: int = 7200, **named: Any) -> str:
        """A credential of any user. `named`: scopes, tenant, credential (its id)."""
        return self._stage.keys.token(user, lifetime_s, **named)

    def headers(self, user: str, **named: Any) -> dict[str, str]:
        """Headers with a credential of any user, as for `token`."""
        return {"Authorization": f"Bearer {self.token(user, **named)}"}

    def start_another(self, role: str) -> Service:
        """One more instance, which is no part of `services`; `end` ends it."""
        made = self._stage.add(role, 3)
        self._stage.start(made.name)
        return made

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`tailrace *words` with the record keys of the services."""
        return self._stage.command(*words)

    def end(self, service: Service) -> None:
        """End an instance that `start_another` started."""
        self._stage.kill(service.name)
        del self._stage.services[service.name]

    def records(self, topic: str) -> list[log.Record]:
        """Everything that the topic holds, by partition."""
        return records_of(self.kafka, topic)

    def questions(self, since: float) -> list[Question]:
        """What the bystander has asked and ended since then (monotonic seconds)."""
        found = []
        for line in self._answers.read_text().splitlines():
            with contextlib.suppress(ValueError):  # a line that is being written
                way, begun, ended, ok = line.split()
                found.append(Question(way, float(begun), float(ended), ok == "1"))
        return [question for question in found if question.ended >= since]

    def wait_for_answers(self, since: float, count: int = QUESTIONS) -> None:
        """Until the bystander has got so many answers each way."""

        def enough() -> bool:
            answered = [q.way for q in self.questions(since) if q.ok]
            return all(answered.count(way) >= count for way in WAYS)

        waiting.eventually_blocking(
            enough,
            lambda: f"the bystander gets answers: {self._said()}",
            within_s=60.0,
        )

    def idle(self) -> dict[str, Delays]:
        """What the bystander feels while nothing attacks, at most IDLE_VALID_S ago."""
        now = time.monotonic()
        if self._idle is None or now - self._idle[0] >= IDLE_VALID_S:
            self.wait_for_answers(now, IDLE_QUESTIONS)
            self._idle = now, _delays(self.questions(now))
        return self._idle[1]

    def _said(self) -> str:
        log = self._stage.folder / "bystander.log"
        said = log.read_text(errors="replace")[-2000:] if log.exists() else ""
        return f"{self.questions(0.0)[-5:]} {said}"


@dataclass
class Usage:
    """Memory (MB, resident) and file descriptors of one service around an attack."""

    before_mb: float
    before_fds: int
    peak_mb: float = 0.0
    peak_fds: int = 0
    after_mb: float = 0.0
    after_fds: int = 0

    @property
    def grown_mb(self) -> float:
        """From before the attack to its worst moment."""
        return self.peak_mb - self.before_mb


@dataclass
class Delays:
    """First tokens of the bystander in one window, in milliseconds; 0 when there were none."""

    count: int
    failed: int
    median_ms: float
    p90_ms: float
    max_ms: float

    def __str__(self) -> str:
        return f"{self.median_ms:.0f}/{self.p90_ms:.0f}/{self.max_ms:.0f}"

    @classmethod
    def of(cls, questions: list[Question]) -> Delays:
        waited = sorted(1000 * (q.ended - q.begun) for q in questions) or [0.0]
        return cls(
            len(questions),
            sum(not q.ok for q in questions),
            round(statistics.median(waited), 1),
            round(waited[int(0.9 * (len(waited) - 1))], 1),
            round(waited[-1], 1),
        )


@dataclass
class Row:
    """What one attack came to. `note` may hold a figure of its own."""

    name: str
    expectation: str
    passed: bool = False
    seconds: float = 0.0
    idle: dict[str, Delays] = field(default_factory=dict)
    during: dict[str, Delays] = field(default_factory=dict)
    usage: dict[str, Usage] = field(default_factory=dict)
    note: str = ""

    @property
    def slower_ms(self) -> float:
        """By how much the bystander's first token grew at the 90th percentile, in the worse of both
        ways. Not the longest: it grows with the length of a window, and attackers share the cores.
        """
        return max(
            (self.during[way].p90_ms - self.idle[way].p90_ms for way in self.during), default=0.0
        )

    @property
    def grown(self) -> tuple[float, str]:
        """Megabytes by which the service grew most that grew most, and its name."""
        return max(((u.grown_mb, name) for name, u in self.usage.items()), default=(0.0, ""))

    def line(self) -> str:
        """The row as it is printed."""
        grown_mb, name = self.grown
        ways = "  ".join(f"{way} {self.idle[way]} → {self.during[way]} ms" for way in self.during)
        return (
            f"{'ok' if self.passed else 'FAILED':<6} {self.name[:46]:<46} {ways}  "
            f"{grown_mb:+.1f} MB {name}  {self.note}".rstrip()
        )


Attacks = Callable[[str, str], AbstractContextManager[Row]]


class Sampler:
    """Reads memory and file descriptors of all services in a thread, while an attack runs."""

    def __init__(self, services: dict[str, Service]) -> None:
        self._processes = {name: psutil.Process(s.pid) for name, s in services.items()}
        self.usage = {name: Usage(*self._read(name)) for name in services}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def _read(self, name: str) -> tuple[float, int]:
        process = self._processes[name]
        return process.memory_info().rss / 1e6, process.num_fds()

    def _sample(self) -> None:
        while not self._over.wait(SAMPLE_S):
            for name, usage in self.usage.items():
                with contextlib.suppress(psutil.Error):  # it died: the test says so
                    megabytes, fds = self._read(name)
                    usage.peak_mb = max(usage.peak_mb, megabytes)
                    usage.peak_fds = max(usage.peak_fds, fds)

    def stop(self) -> None:
        """Read for the last time."""
        self._over.set()
        self._thread.join()
        for name, usage in self.usage.items():
            with contextlib.suppress(psutil.Error):
                usage.after_mb, usage.after_fds = self._read(name)
                usage.peak_mb = max(usage.peak_mb, usage.after_mb)
                usage.peak_fds = max(usage.peak_fds, usage.after_fds)


@contextlib.contextmanager
def measured(deployment: Deployment, row: Row) -> Iterator[Row]:
    """Measure around an attack. The row is complete at the end.

    Raises:
        AssertionError: under `make attacks`, when the attack was felt by others.
    """
    row.idle = deployment.idle()
    sampler = Sampler(deployment.services)
    began = time.monotonic()
    try:
        yield row
        row.passed = True
    finally:
        row.seconds = round(time.monotonic() - began, 2)
        try:
            deployment.wait_for_answers(began)
        finally:
            row.during = _delays(deployment.questions(began))
            time.sleep(SETTLE_S)
            sampler.stop()
            row.usage = sampler.usage
    if FULL:
        row.passed = False
        grown_mb, name = row.grown
        assert grown_mb <= GROWTH_MB, f"{name} grew by {grown_mb:.0f} MB: {row.line()}"
        assert row.slower_ms <= SLOWER_MS, f"the bystander waited: {row.line()}"
        row.passed = True


def records_of(kafka: str, topic: str) -> list[log.Record]:
    """Everything that the topic holds, by partition; without record keys, so forged ones too."""
    with futures.ThreadPoolExecutor(1) as thread:  # the caller may have an event loop
        return thread.submit(lambda: asyncio.run(_records(kafka, topic))).result()


async def _records(kafka: str, topic: str) -> list[log.Record]:
    offsets, replays = log.Offsets(kafka), log.Replays(kafka, size=1)
    found = []
    try:
        partitions = range(await offsets.partitions(topic))
        begins = await offsets.beginnings(topic, partitions)
        for partition, end in (await offsets.ends(topic, partitions)).items():
            async for batch in replays.read(topic, partition, begins[partition], end):
                found += batch
    finally:
        await offsets.stop()
        await replays.stop()
    return found


def _delays(questions: list[Question]) -> dict[str, Delays]:
    return {way: Delays.of([q for q in questions if q.way == way]) for way in WAYS}


def as_json(rows: list[Row]) -> list[dict[str, Any]]:
    """The rows as they are written to the report."""
    return [
        {
            "name": row.name,
            "expectation": row.expectation,
            "passed": row.passed,
            "seconds": row.seconds,
            "note": row.note,
            "bystander_first_token": {
                way: {"idle": vars(row.idle[way]), "during": vars(row.during[way])}
                for way in row.during
            },
            "services": {
                name: {key: round(value, 1) for key, value in vars(usage).items()}
                for name, usage in row.usage.items()
            },
        }
        for row in rows
    ]
