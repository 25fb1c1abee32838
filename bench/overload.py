"""`python -m bench.overload`: far more requests than there is capacity for, and what each class
feels of it (docs/measurements/README.md). Each of `--seeds` draws other arrivals.

Two gateways get an open loop of streamed requests for two pools, in proportion to what they can do,
each of one of many users by chance: `large` has two workers of the scripted engine, whose capacity
is known, `small` has one, and answers for `large` when that cannot. 3 % of the answers are 20 times
as long as the others. In the first kind of run interactive requests take half of the capacity, and
batch requests are what is too much; in the second kind both classes are. In each run Redis is
emptied after a third of the load and killed after two thirds; the supervisor starts it again.
Sometimes the same user repeats a refused request at once, with time to wait: the wait in the
refusal must be within a factor of two of that request's wait, for nine of ten.
After the load, interactive requests show how soon the pools are as quick as before.

In the last run there is no more load than `small` can answer, and all workers of `large` are killed
after a third of it, again and again until two thirds. At the end `tailrace verify` judges the log.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import math
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import redis
import uvloop

from bench import load, measure, overload_figures, report, scaling, scripted, stacks
from bench.overload_figures import Group, RequestOutcome
from bench.soak import say
from gateway.load import admission
from tailrace.local import dev_credentials, paths, state
from tailrace.verify import checks
from tailrace.verify import command as verify

WORKERS: Final = {"large": 2, "small": 1}
ALL_WORKERS: Final = sum(WORKERS.values())
POOLS: Final = [pool for pool, workers in WORKERS.items() for _ in range(workers)]
LOADS: Final[dict[str, Any]] = {
    "large": {"models": ["large"], "engine": "scripted", "fallback": ["small"]},
    "small": {"models": ["small"], "engine": "scripted"},
}
LARGE_WORKER: Final = "worker-1"  # the supervisor's; the other one is `stacks.second_worker`
PLACES: Final = 4  # of each worker
PACE_MS: Final = 40
CAPACITY: Final = ALL_WORKERS * PLACES * 1000 / PACE_MS  # tokens per second
SHORT, LONG, LONG_SHARE = 20, 400, 0.03  # tokens
MEAN: Final = SHORT + LONG_SHARE * (LONG - SHORT)
MOST: Final = 1000  # tokens that every request allows
USERS: Final = 20
DEADLINE_MS: Final[dict[Group, int]] = {"interactive": 5_000, "batch": 20_000}
TIERS: Final[dict[Group, str]] = {"interactive": "auto", "batch": "flex"}
# Between two refused requests of a class and pool that are repeated: these are load, too. Only
# those are repeated that will begin in the first half of the remaining load.
RETRY_S: Final[dict[Group, float]] = {"interactive": 2.0, "batch": 10.0}
MIN_LOAD_LEFT_S: Final = 2.0
RETRY_DEADLINE_MS: Final = 600_000
IDLE_LOAD: Final = 0.5  # of the capacity, by interactive requests
DYING_LOAD: Final = 0.25
KILL_S: Final = 0.3  # between two scans for a restarted worker
AFTER_S: Final = 10.0  # load that shows the recovery
SETTLE_S: Final = 5.0  # between two runs, after all have ended
SEED: Final = 7  # of the first load of each kind


class Run(msgspec.Struct, frozen=True):
    """One load, in parts of the capacity. `dies`: the workers of `large` do."""

    name: str
    interactive: float
    batch: float
    dies: bool = False


ALONE: Final = Run("interactive at half of the capacity", IDLE_LOAD, 0.0)
FACTORS: Final = (2, 5, 10)
RUNS: Final = (
    ALONE,
    *(Run(f"x{k}, batch is too much", IDLE_LOAD, k - IDLE_LOAD) for k in FACTORS),
    *(Run(f"x{k}, both are too much", 0.7 * k, 0.3 * k) for k in FACTORS),
    Run("the workers of a pool die", DYING_LOAD, 0.0, dies=True),
)


class Overload(msgspec.Struct, frozen=True):
    """The content of the JSON file. `capacity`: tokens per second of all places. `verdict` is that
    of `tailrace verify`. `seconds` are by run."""

    machine: report.Machine
    capacity: float
    verdict: str
    rows: list[measure.Row]
    seconds: dict[str, dict[Group, list[overload_figures.Second]]]


class Client:
    """Asks as one of many users, at the gateways in turn."""

    def __init__(self, side: stacks.Side) -> None:
        assert side.data is not None
        self._side = side
        self._headers = [
            {"authorization": f"Bearer {dev_credentials.issue(side.data, f'user-{n}', 3 * 3600)}"}
            for n in range(USERS)
        ]
        self._numbers = itertools.count()
        self._rng = random.Random(0)  # whose turn it is
        self._retries: dict[tuple[Group, str], float] = {}

    async def ask(
        self, group: Group, pool: str, tokens: int, due: float, began: float, load_s: float = 0.0
    ) -> RequestOutcome:
        """One request, streamed to its end. `due`, `began`: by `time.perf_counter`. One that is
        refused may be repeated before the load has lasted for `load_s`."""
        number = USERS * next(self._numbers) + self._rng.randrange(USERS)
        answer = await self._stream(group, pool, number, tokens, due, DEADLINE_MS[group])
        ended_s, due_s = answer.ended - began, due - began
        if answer.retry_after_s is not None:
            retry = None
            if ended_s + MIN_LOAD_LEFT_S * answer.retry_after_s < load_s:
                retry = await self._retry(group, pool, number)
            if retry is not None and retry.error:
                return RequestOutcome(group, due_s, "failed", ended_s, error=retry.error, pool=pool)
            refusal = RequestOutcome(
                group, due_s, "refused", ended_s, retry_after_s=answer.retry_after_s, pool=pool
            )
            if retry is None or not retry.started:  # refused once more, for another reason
                return refusal
            return msgspec.structs.replace(
                refusal,
                repeat_s=retry.started - retry.due,
                tokens=retry.tokens,
                came_s=tuple(stamp - began for stamp in retry.stamps),
            )
        if answer.expired:
            return RequestOutcome(group, due_s, "expired", ended_s, pool=pool)
        if answer.error:
            return RequestOutcome(group, due_s, "failed", ended_s, error=answer.error, pool=pool)
        return RequestOutcome(
            *(group, due_s, "answered", ended_s, answer.first, answer.tokens),
            tuple(stamp - began for stamp in answer.stamps),
            pool=pool,
            by_fallback=answer.by_fallback,
        )

    async def _retry(self, group: Group, pool: str, refused: int) -> load.Answer | None:
        """The answer; None if another one was repeated just before."""
        now = time.perf_counter()
        if now < self._retries.get((group, pool), 0.0):
            return None
        self._retries[group, pool] = now + RETRY_S[group]
        # Later numbers are other prompts of the same user at the same gateway.
        number = refused + USERS * 1_000_000
        return await self._stream(group, pool, number, SHORT, now, RETRY_DEADLINE_MS)

    async def _stream(
        self, group: Group, pool: str, number: int, tokens: int, due: float, deadline_ms: int
    ) -> load.Answer:
        body = self._body(group, pool, number, tokens) | {"deadline_ms": deadline_ms}
        url = self._side.urls[number % len(self._side.urls)]
        headers = self._headers[number % USERS]
        return await load.stream(url, "POST", "/v1/responses", headers, body, due)

    def _body(self, group: Group, pool: str, number: int, tokens: int) -> dict[str, Any]:
        return {
            **scripted.body(self._side, number, tokens, PACE_MS, stream=True),
            "model": pool,
            "max_output_tokens": MOST,
            "service_tier": TIERS[group],
        }


def arrivals(run: Run, load_s: float, seed: int) -> list[tuple[float, Group, str, int]]:
    """(seconds, class, pool, tokens) of each request of a run, in order: Poisson processes."""
    rng, times = random.Random(seed), []
    parts: list[tuple[Group, float, float, float]] = [
        ("interactive", run.interactive, 0.0, load_s),
        ("batch", run.batch, 0.0, load_s),
        ("interactive", IDLE_LOAD, load_s, load_s + AFTER_S),
    ]
    for group, part, begin, end in parts:
        at = begin
        while part > 0 and (at := at + rng.expovariate(part * CAPACITY / MEAN)) < end:
            times.append((at, group, LONG if rng.random() < LONG_SHARE else SHORT))
    return [(at, group, rng.choice(POOLS), tokens) for at, group, tokens in sorted(times)]


async def warm(client: Client, each: int) -> None:
    """A closed loop of twice as many clients as there are places. Then workers know their rate, and
    the real lengths of answers. The share of long answers is exact: random ones were 14 instead of
    6, and for minutes every estimated wait was half too long."""
    clients, every = 2 * ALL_WORKERS * PLACES, round(1 / LONG_SHARE)

    async def one(number: int) -> None:
        for turn in range(each):
            long = (number + clients * turn) % every == every // 2
            tokens = LONG if long else SHORT
            pool = POOLS[number % ALL_WORKERS]
            await client.ask("interactive", pool, tokens, time.perf_counter(), 0.0)

    await asyncio.gather(*map(one, range(clients)))


def ideal(run: Run, load_s: float, seed: int, idle_p99_s: float) -> float:
    """Seconds to the recovery of pools without faults and costs, which have only the interactive
    requests of the run."""
    theirs = [
        overload_figures.Arrival(at, pool, tokens * PACE_MS / 1000)
        for at, group, pool, tokens in arrivals(run, load_s, seed)
        if group == "interactive"
    ]
    places = {pool: workers * PLACES for pool, workers in WORKERS.items()}
    longest_s = admission.SURE * DEADLINE_MS["interactive"] / 1000
    return overload_figures.ideal_recovery_s(theirs, places, load_s, longest_s, idle_p99_s)


async def perform(
    client: Client, side: stacks.Side, second_worker: int, run: Run, load_s: float, seed: int
) -> list[RequestOutcome]:
    """One run, to the end of its last answer. `second_worker`: a process id; it is of `large`."""
    began = time.perf_counter()
    requests: list[asyncio.Task[RequestOutcome]] = []
    async with asyncio.TaskGroup() as tasks:
        if run.dies:
            tasks.create_task(_kill(side, second_worker, load_s))
        else:
            tasks.create_task(_disturb(side, load_s))
        for at, group, pool, tokens in arrivals(run, load_s, seed):
            await asyncio.sleep(began + at - time.perf_counter())
            due = began + at
            requests.append(tasks.create_task(client.ask(group, pool, tokens, due, began, load_s)))
    return [task.result() for task in requests]


async def _disturb(side: stacks.Side, load_s: float) -> None:
    """Redis loses all that it has, and later its life."""
    assert side.data is not None
    await asyncio.sleep(load_s / 3)
    with contextlib.closing(redis.Redis.from_url(side.redis)) as store:
        store.flushall()
    await asyncio.sleep(load_s / 3)
    running = state.load(side.data.state)
    assert running is not None
    for part in running.parts:
        if part.role == "redis":
            os.kill(part.pid, signal.SIGKILL)


async def _kill(side: stacks.Side, second_worker: int, load_s: float) -> None:
    """Kill the workers of `large`, and those that the supervisor starts in their place.

    `second_worker`: process id of the worker that the supervisor does not start again.
    """
    assert side.data is not None
    await asyncio.sleep(load_s / 3)
    os.kill(second_worker, signal.SIGKILL)
    killed_pids = set[int]()
    end = time.perf_counter() + load_s / 3
    while time.perf_counter() < end:
        running = state.load(side.data.state)
        assert running is not None
        pid = next(part.pid for part in running.parts if part.name == LARGE_WORKER)
        if pid not in killed_pids:
            killed_pids.add(pid)
            os.kill(pid, signal.SIGKILL)
        await asyncio.sleep(KILL_S)


def measure_runs(
    side: stacks.Side, second_worker: int, runs: Sequence[Run], load_s: float, seeds: int
) -> Iterator[tuple[Run, int, list[RequestOutcome]]]:
    """Each run, its seed and its requests."""
    for pool, workers in WORKERS.items():
        uvloop.run(scaling.wait_until_balanced(side, workers, pool))
    client = Client(side)
    uvloop.run(warm(client, 8))
    for run in runs:
        for seed in range(SEED, SEED + (1 if run is ALONE else seeds)):
            requests = uvloop.run(perform(client, side, second_worker, run, load_s, seed))
            yield run, seed, requests
            time.sleep(SETTLE_S)


def markdown(overload: Overload) -> str:
    """The report: a row per figure, a column per run."""
    names = [row.case for row in overload.rows]
    out = [
        "# Overload",
        "",
        f"{overload.machine.when}, commit {overload.machine.commit}, "
        f"{overload.machine.cores} cores ({overload.machine.cpu}), "
        f"Python {overload.machine.python}. "
        f"Capacity {overload.capacity:.0f} tokens/s. `tailrace verify`: {overload.verdict}.",
        "",
        f"| figure | {' | '.join(names)} |",
        "|---" * (len(names) + 1) + "|",
    ]
    for value in dict.fromkeys(name for row in overload.rows for name in row.values):
        cells = [report.figure(row.values.get(value, math.nan)) for row in overload.rows]
        out.append(f"| {value} | {' | '.join(cells)} |")
    return "\n".join(out) + "\n"


_COLOURS: Final = {"answered": "C2", "refused": "C1", "expired": "C3", "failed": "C4"}


def plot(path: Path, overload: Overload) -> bool:
    """Draw a row per run: requests by outcome of each class, and the first tokens of interactive
    ones. Returns whether matplotlib is here."""
    try:
        from matplotlib import figure as drawing
    except ImportError:
        return False
    canvas = drawing.Figure(figsize=(14, 2.6 * len(overload.seconds)), layout="constrained")
    grid = canvas.subplots(len(overload.seconds), 3, squeeze=False)
    for panels, (name, groups) in zip(grid, overload.seconds.items(), strict=True):
        for panel, (group, seconds) in zip(panels, groups.items(), strict=False):
            layers = {
                outcome: [getattr(second, outcome) for second in seconds] for outcome in _COLOURS
            }
            panel.stackplot(
                range(len(seconds)),
                *layers.values(),
                labels=layers,
                colors=_COLOURS.values(),
                step="post",
            )
            panel.set_title(f"{name}: {group} requests per second", fontsize=9)
        waits = groups["interactive"]
        panels[2].plot([second.first_p50_s for second in waits], label="p50")
        panels[2].plot([second.first_p99_s for second in waits], label="p99")
        panels[2].set_title("first token of interactive requests, s", fontsize=9)
        panels[2].set_ylim(bottom=0)
    grid[0][0].legend(fontsize=7)
    grid[0][2].legend(fontsize=7)
    canvas.supxlabel("seconds")
    canvas.savefig(path)
    return True


def add_shares_of_peak(rows: Sequence[measure.Row]) -> None:
    """To the runs with more load than capacity: their goodput over the highest one of them."""
    over = tuple(run.name for run in RUNS if run.interactive + run.batch > 1)
    peaks = [row for row in rows if row.case.startswith(over)]
    peak = max((row.values["goodput_tokens_per_s"] for row in peaks), default=math.nan)
    for row in peaks:
        row.values["goodput_of_peak"] = row.values["goodput_tokens_per_s"] / peak


def settings(scratch: Path) -> dict[str, str]:
    """Of all processes. The pools are in a file, because each has workers of its own."""
    pools = scratch / "pools.json"  # which is YAML too
    pools.write_text(json.dumps({"pools": LOADS}))
    return {"TAILRACE_MAX_NUM_SEQS": str(PLACES), "TAILRACE_POOLS": str(pools)}


def main() -> int:
    """Returns 0 when every request was answered, refused or expired and the log is whole, else
    1."""
    parser = argparse.ArgumentParser(prog="python -m bench.overload", description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each load (default: 30)")
    parser.add_argument(
        "--runs",
        type=int,
        nargs="+",
        default=range(1, len(RUNS) + 1),
        choices=range(1, len(RUNS) + 1),
        help="numbers of the loads (default: all)",
    )
    parser.add_argument("--seeds", type=int, default=1, help="loads of each kind (default: 1)")
    parser.add_argument(
        "--out", type=Path, default=paths.ROOT / "bench/out", help="folder (default: bench/out)"
    )
    arguments = parser.parse_args()
    # Without this the stack would survive, because it has a session of its own.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    machine = report.machine(quick=arguments.seconds < 30, rounds=1)
    rows: list[measure.Row] = []
    seconds: dict[str, dict[Group, list[overload_figures.Second]]] = {}
    idle_p99_s = math.nan
    with (
        tempfile.TemporaryDirectory(
            prefix="tailrace-overload-", ignore_cleanup_errors=True
        ) as scratch,
        stacks.tailrace(Path(scratch), gateways=2, settings=settings(Path(scratch))) as side,
        stacks.second_worker(side, 2, "large") as second_worker,
    ):
        runs = [RUNS[number - 1] for number in arguments.runs]
        loads = measure_runs(side, second_worker, runs, arguments.seconds, arguments.seeds)
        for run, seed, requests in loads:
            name = run.name if seed == SEED else f"{run.name}, seed {seed}"
            values = overload_figures.figures(requests, arguments.seconds, CAPACITY)
            if run is ALONE:
                idle_p99_s = values["interactive_first_p99_ms"] / 1000
            if not math.isnan(idle_p99_s):  # else the latency of idle pools is not known
                values |= {
                    "recovery_s": overload_figures.recovery_s(
                        requests, arguments.seconds, idle_p99_s
                    ),
                    "ideal_recovery_s": ideal(run, arguments.seconds, seed, idle_p99_s),
                }
            rows.append(measure.Row("overload", name, "tailrace", 0, values))
            seconds[name] = {
                group: overload_figures.by_second(requests, group)
                for group in overload_figures.GROUPS
            }
            errors = {each.error for each in requests if each.outcome == "failed"}
            say(
                f"{name}: {values}"
                + "".join(f"\n  failed: {error}" for error in sorted(errors)[:5])
            )
        verify_report, _ = asyncio.run(
            verify.examine(side.kafka, list(WORKERS), [], checks.Options())
        )
    add_shares_of_peak(rows)
    overload = Overload(machine, CAPACITY, verify_report.verdict.value, rows, seconds)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "overload.json").write_bytes(msgspec.json.encode(overload) + b"\n")
    (arguments.out / "overload.md").write_text(markdown(overload))
    say(markdown(overload))
    if not plot(arguments.out / "overload.svg", overload):
        say("no plot: matplotlib is not installed here (make overload installs it)")
    failed = sum(row.values["failed"] for row in rows)
    return 1 if failed or verify_report.exit_code else 0


if __name__ == "__main__":
    sys.exit(main())
