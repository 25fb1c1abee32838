"""`make analytics`: Flink's results compared with their twins, through kills (docs/analytics.md).

It starts a deployment with the scripted engine and a local Flink, lets users of several tenants
ask two models, and compares each query's result with the plain-Python one over the same records:
after a quiet start, after the TaskManager was killed under load, and after the JobManager was.
Copies of usage records, garbage and aborted transactions are planted. The embedded store is killed
as well, and compared. Exits with 1 on a difference, with 2 where something is missing.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import aiokafka
import msgspec

from bench import load, stacks
from pipelines.analytics import cluster, jobs, programs, results, supervisor, twins
from tailrace import log
from tailrace.local import dev_credentials
from tailrace.protocol import records, topics

PREFIX: Final = "analytics"
ANSWERS: Final = "reviews.answers"
LABEL: Final = "sentiment"
GAP_S: Final = 4  # short, so that a run sees several sessions of a user
CHECKPOINT_S: Final = 3
AGREE_S: Final = 180.0
RUNNING_S: Final = 240.0
USERS: Final = (
    *(("ada", "acme"), ("ben", "acme"), ("cleo", "globex"), ("dan", "globex")),
    *(("eve", ""), ("fay", "")),
)
# The second model has no price.
POOLS: Final = {
    "small": {"models": ["small-model"], "price": {"input": 0.05, "output": 0.2}},
    "large": {"models": ["large-model"]},
}
MODELS: Final = ("small-model", "large-model")
COPIES: Final = 40  # usage records that are written a second time, at each phase
GARBAGE: Final = (b"", b"{", b"null", b'"USAGE"', b'{"t":"USAGE"}', b'{"t":"OTHER","rid":"x"}')
REVIEWS: Final = 120  # answers of the pipeline at each phase; half as many are aborted
STORE_KILLS: Final = 4


class Differs(Exception):
    """A result is not its twin's. The text says where."""


class Load:
    """Users who send requests, in a thread of its own.

    Attributes:
        answers: what they got, by outcome.
    """

    def __init__(self, side: stacks.Side) -> None:
        assert side.data is not None
        self.answers: Counter[str] = Counter()
        self._side = side
        self._numbers = itertools.count()
        self._stop = threading.Event()
        key = side.data.dev_key.read_text()
        credentials = [
            dev_credentials.mint(
                key,
                dev_credentials.KEY_ID,
                dev_credentials.ISSUER,
                dev_credentials.AUDIENCE,
                user,
                time.time(),
                3600,
                tenant=tenant or None,
                scopes=dev_credentials.DEFAULT_SCOPES,
            )
            for user, tenant in USERS
        ]
        self._headers = [{"authorization": f"Bearer {each}"} for each in credentials]

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Ask until this context ends, and until all answers have."""
        self._stop.clear()
        thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    async def _run(self) -> None:
        await asyncio.gather(*(self._user(number) for number in range(len(USERS))))

    async def _user(self, user: int) -> None:
        """Some questions, a pause that may end the session, and so on."""
        rng = random.Random(f"{user} {next(self._numbers)}")
        while not self._stop.is_set():
            for _ in range(rng.randint(1, 12)):
                await self._send(user, rng)
            pause_s = rng.choice((0.1, 1.0, GAP_S - 1, GAP_S + 1.5))
            await asyncio.to_thread(self._stop.wait, pause_s)

    async def _send(self, user: int, rng: random.Random) -> None:
        tokens = rng.choice((1, 5, 20, 60))
        cues = {"script_tokens": str(tokens), "script_pace_ms": str(rng.choice((1, 2, 5)))}
        if rng.random() < 0.05:
            cues["script_fault"] = "error"
        body = {
            "model": rng.choice(MODELS),
            "input": f"{next(self._numbers)}: go on",
            "max_output_tokens": tokens,
            "metadata": cues,
            "stream": True,
        }
        answer = await load.stream(
            self._side.url, "POST", "/v1/responses", self._headers[user], body, time.perf_counter()
        )
        self.answers["failed" if answer.error else "good"] += 1


async def plant(side: stacks.Side) -> None:
    """Write usage records again, as a worker does that finishes a request once more, with another
    cost; garbage; and what a pipeline commits and aborts."""
    first = twins.bills(await results.read(side.kafka, topics.USAGE))
    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=side.kafka)
    await producer.start()
    try:
        for bill in random.Random(len(first)).sample(first, min(COPIES, len(first))):
            changed_bill = msgspec.structs.replace(bill.usage_record, cost_nano=7)
            name, value = changed_bill.owner.key.encode(), records.encode(changed_bill)
            place = zlib.crc32(name) % topics.partitions_of(topics.USAGE)  # as all copies
            await producer.send_and_wait(topics.USAGE, value, key=name, partition=place)
        for value in GARBAGE:
            await producer.send_and_wait(topics.USAGE, value, partition=0)
            await producer.send_and_wait(ANSWERS, value)
    finally:
        await producer.stop()
    pipeline = aiokafka.AIOKafkaProducer(
        bootstrap_servers=side.kafka, transactional_id="analytics-load"
    )
    await pipeline.start()
    try:
        for number in range(REVIEWS // 10 * 3 // 2):
            await pipeline.begin_transaction()
            for at in range(10):
                await pipeline.send(ANSWERS, _answer(number * 10 + at))
            if number % 3:
                await pipeline.commit_transaction()
            else:
                await pipeline.abort_transaction()
    finally:
        await pipeline.stop()


def _answer(number: int) -> bytes:
    """What a pipeline writes: some answers are structured, others text."""
    label = ("good", "bad", "so-so")[number % 3]
    answer: Any = {LABEL: label, "reason": "…"} if number % 2 else label
    value = {
        "answer": answer,
        "response": f"resp_{number}",
        "model": MODELS[0],
        "pipeline": "reviews",
        "revision": 1,
        "usage": {"input_tokens": 10 + number, "output_tokens": 3},
    }
    return json.dumps(value).encode()


async def expected_rows(side: stacks.Side) -> Any:
    """The rows of the twins for the present records."""
    usage = await results.read(side.kafka, topics.USAGE)
    answers = await results.read(side.kafka, ANSWERS)
    return twins.results(usage, answers, gap_s=GAP_S, label=LABEL)


async def compare(side: stacks.Side) -> list[str]:
    """All differences between results and twins."""
    expected = await expected_rows(side)
    out = []
    for result in jobs.RESULTS:
        actual = await results.changes(side.kafka, result, PREFIX)
        lines = twins.differences(expected[result.name], results.rows(actual))
        out += [f"{result.name} {line}" for line in lines]
        # Its counts of a second are replaced, which takes the old one back for a moment.
        if result is not jobs.REQUEST_MINUTES:
            out += [
                f"{result.name} took back {line}" for line in results.regressions(result, actual)
            ]
    return out


class Run:
    """The steps of a run, with their messages."""

    def __init__(
        self, side: stacks.Side, keeper: supervisor.Supervisor, flink: cluster.Cluster
    ) -> None:
        self.side = side
        self.keeper = keeper
        self.flink = flink
        self.load = Load(side)
        self._began = time.monotonic()

    def report(self, text: str) -> None:
        say(f"{time.monotonic() - self._began:7.1f} s  {text}")

    def until_running(self) -> float:
        """Let the supervisor work until all jobs run. Returns how long it took. Raises Differs."""
        began = time.monotonic()
        while time.monotonic() - began < RUNNING_S:
            self.keeper.step()
            if self.keeper.running():
                return time.monotonic() - began
            time.sleep(0.5)
        raise Differs(f"jobs do not run: {self.keeper.states()}")

    def agree(self, when: str) -> None:
        """Wait until results and twins agree. Raises Differs."""
        began = time.monotonic()
        while True:
            self.keeper.step()
            lines = asyncio.run(compare(self.side))
            if not lines:
                break
            if time.monotonic() - began > AGREE_S:
                raise Differs(f"{when}: {len(lines)} differences:\n" + "\n".join(lines[:20]))
            time.sleep(1)
        expected = asyncio.run(expected_rows(self.side))
        figures = ", ".join(f"{len(rows)} {name}" for name, rows in expected.items())
        responses = sum(row[0] for row in expected[jobs.REQUEST_MINUTES.name].values())
        waited_s = time.monotonic() - began
        self.report(
            f"{when}: results are the twins', {responses} responses ({figures}), {waited_s:.1f} s"
        )

    def phase(self, when: str, seconds: float, kill: Callable[[], None] | None = None) -> None:
        """Load, a kill in the middle of it, recovery, more load; then results have to agree."""
        with self.load.running():
            self._wait(seconds / 2)
            if kill is not None:
                kill()
                self.report(
                    f"{when}: killed; all jobs run again {self.until_running():.1f} s later"
                )
            self._wait(seconds / 2)
        asyncio.run(plant(self.side))
        self.report(f"{when}: load ended, {dict(self.load.answers)} in all")
        self.agree(when)

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.keeper.step()
            time.sleep(0.5)

    def kill_task_manager(self) -> None:
        assert self.flink.task_manager is not None
        self.flink.task_manager.kill()
        self.flink.task_manager.wait()

    def kill_job_manager(self) -> None:
        assert self.flink.job_manager is not None
        self.flink.job_manager.kill()
        self.flink.job_manager.wait()


def check_store(run: Run, scratch: Path) -> None:
    """Fold the results into the embedded store, kill it several times, and compare. Raises
    Differs."""
    try:
        from pipelines.analytics import embedded
    except ImportError:
        raise programs.Missing("DuckDB (make analytics installs it)") from None
    path = scratch / "analytics.duckdb"
    command = [sys.executable, "-m", "pipelines.analytics.store", str(path)]
    command += ["--kafka", run.side.kafka, "--prefix", PREFIX]
    rng = random.Random(1)
    for _ in range(STORE_KILLS):
        process = subprocess.Popen(command)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(rng.uniform(0.8, 1.8))
        process.kill()
        process.wait()
    began = time.monotonic()
    for _ in range(2):  # the second time there is nothing to do
        subprocess.run([*command, "--once"], check=True, timeout=120)
    took = time.monotonic() - began
    expected = asyncio.run(expected_rows(run.side))
    store = embedded.Store(path)
    try:
        lines = [
            f"store: {result.name} {line}"
            for result in jobs.RESULTS
            for line in twins.differences(expected[result.name], store.rows(result))
        ]
        row_count = sum(len(store.rows(result)) for result in jobs.RESULTS)
    finally:
        store.close()
    if lines:
        raise Differs("\n".join(lines[:20]))
    run.report(f"store: {row_count} rows as the twins say, after {STORE_KILLS} kills, {took:.1f} s")


def check_log(run: Run) -> None:
    """`tailrace verify` has to find nothing: usage records and their times are the log's. Raises
    Differs."""
    assert run.side.data is not None
    command: list[str | Path] = [stacks.TAILRACE, "verify", "--data", run.side.data.root]
    process = subprocess.run(
        [*command, "--settle", "0", *(part for pool in POOLS for part in ("--pool", pool))],
        env=run.side.environ,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if process.returncode:
        raise Differs(f"tailrace verify: {(process.stdout + process.stderr)[-3000:]}")
    run.report("log: tailrace verify finds nothing")


def run_all(scratch: Path, seconds: float, parallelism: int) -> None:
    """A whole run. Raises Differs, programs.Missing."""
    classes = programs.compile_main(scratch / "classes")
    settings = {"TAILRACE_POOLS": json.dumps(POOLS)}
    with stacks.tailrace(scratch, settings=settings) as side, contextlib.ExitStack() as stack:
        flink = cluster.Cluster(scratch / "flink")
        stack.callback(flink.stop)
        writers: list[Callable[[str], None]] = [say]
        keeper = supervisor.Supervisor(
            flink,
            scratch,
            classes,
            names=list(jobs.JOBS),
            variables={
                "kafka": side.kafka,
                "usage": topics.USAGE,
                "prefix": PREFIX,
                "gap_s": str(GAP_S),
                "answers": ANSWERS,
                "label": LABEL,
            },
            settings={
                "execution.checkpointing.interval": f"{CHECKPOINT_S}s",
                "parallelism.default": str(parallelism),
            },
            report=lambda text: writers[0](text),
        )
        run = Run(side, keeper, flink)
        writers[0] = run.report
        run.report("the deployment is up")
        asyncio.run(results.create_topics(side.kafka, PREFIX))
        asyncio.run(log.create_topics(side.kafka, [ANSWERS], partitions=1))
        keeper.start()
        run.report(f"Flink is up; all jobs run {run.until_running():.1f} s later")
        run.phase("without a fault", seconds)
        run.phase("TaskManager killed", seconds, run.kill_task_manager)
        run.phase("JobManager killed", seconds, run.kill_job_manager)
        check_store(run, scratch)
        check_log(run)
        run.report(f"started again: {dict(Counter(keeper.restarts))}")


def say(text: str) -> None:
    """One line for the user, at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=30, help="of load in each of three phases")
    parser.add_argument("--parallelism", type=int, default=1, help="tasks of a query, at most 2")
    parser.add_argument("--keep", action="store_true", help="keep logs and data")
    options = parser.parse_args(arguments)
    scratch = Path(tempfile.mkdtemp(prefix="analytics-"))
    try:
        run_all(scratch, options.seconds, options.parallelism)
    except (programs.Missing, stacks.NotHere) as missing:
        say(f"analytics needs {missing}")
        return 2
    except Differs as differs:
        say(f"{differs}\nlogs are in {scratch}")
        return 1
    if not options.keep:
        shutil.rmtree(scratch)
    return 0


if __name__ == "__main__":
    sys.exit(main())
