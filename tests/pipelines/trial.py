"""A pipeline over generated reviews while everything it rests on is killed, judged by the topics.

Two runners share an input of four partitions; the engine is the scripted one, and is told by each
review what to answer. Every few seconds a runner, a gateway, a worker, Redis or the broker gets
SIGKILL; killed runners are started again, and for a while there is a third one. At the end:

- each review that can be read has one output, with the answer that was planted, or was passed over;
- each one that cannot be read has one dead letter; alerts are the planted ones;
- the log has one request, and one usage record, for each answer;
- after a replay of everything the topics have nothing more, and neither has the log;
- a database gets each output once from a sink that is killed and started again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

import aiokafka
import jsonschema
import msgspec
import yaml

from bench import stacks
from pipelines import definition, rows
from pipelines.examples import data
from tailrace import log
from tailrace.local import dev_credentials, paths, state
from tailrace.protocol import records, topics
from tests.support import waiting
from tests.support.database_server import DatabaseServer

PARTITIONS: Final = 4
MOST_S: Final = 1_800.0
LEAVE_S: Final = 30.0
SOME: Final = 10
EXAMPLE: Final = paths.ROOT / "pipelines/examples/reviews.yaml"
SCRIPTED: Final = "scripted"
KILLED: Final = ("runner", "gateway", "runner", "worker", "runner", "redis", "gateway", "worker")


def say(text: str) -> None:
    """A line with the time, at once."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


class Runners:
    """The runners of one pipeline, started by the command that users have."""

    def __init__(self, side: stacks.Side, file: Path, folder: Path) -> None:
        assert side.data is not None
        self.file = file
        self._folder = folder
        credential = folder / "credential"
        credential.write_text(dev_credentials.issue(side.data, "pipelines", 3 * 3600))
        self._environ = stacks.environment(
            PYTHONPATH=str(paths.ROOT),
            TAILRACE_KAFKA=side.kafka,
            TAILRACE_CREDENTIAL_FILE=str(credential),
        )
        self._urls = side.urls
        self._started = 0
        self.running: list[subprocess.Popen[bytes]] = []

    def command(self, *words: str) -> list[str]:
        """One of the pipelines' commands for this pipeline."""
        return [sys.executable, "-m", "pipelines", words[0], str(self.file), *words[1:]]

    def start(self) -> None:
        """One more, at one of the gateways."""
        url = self._urls[self._started % len(self._urls)]
        with (self._folder / f"runner-{self._started}.log").open("w") as out:
            self.running.append(
                subprocess.Popen(
                    self.command("run"),
                    cwd=paths.ROOT,
                    env={**self._environ, "TAILRACE_URL": url},
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                )
            )
        self._started += 1

    def start_command(self, *words: str) -> subprocess.Popen[bytes]:
        """Another one of the pipelines' commands, in the background."""
        return subprocess.Popen(
            self.command(*words), cwd=paths.ROOT, env=self._environ, stdout=subprocess.DEVNULL
        )

    def kill(self, drawn: random.Random) -> None:
        """SIGKILL one of them, and start another one."""
        process = self.running.pop(drawn.randrange(len(self.running)))
        process.kill()
        process.wait()
        self.start()

    def stop(self) -> None:
        """Stop all of them in order. Raises AssertionError: one did not end well."""
        for process in self.running:
            process.terminate()
        codes = [process.wait(60) for process in self.running]
        self.running.clear()
        assert not any(codes), f"runners ended with {codes}: see {self._folder}"

    def told(self, about: str) -> list[str]:
        """Lines of the runners' logs with these words."""
        logs = sorted(self._folder.glob("runner-*.log"))
        lines = [line for each in logs for line in each.read_text(errors="replace").splitlines()]
        return [line for line in lines if about in line]

    def asked(self, *words: str) -> str:
        """What a command says."""
        done = subprocess.run(
            self.command(*words),
            cwd=paths.ROOT,
            env=self._environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def replay(self) -> None:
        """Have everything read again. Killed runners are members of the group for a few seconds."""
        end = time.monotonic() + LEAVE_S
        while True:
            try:
                self.asked("replay", "--from", "earliest", "--yes")
            except AssertionError:
                if time.monotonic() > end:
                    raise
                time.sleep(1)
            else:
                return

    def progress(self) -> dict[str, Any]:
        """`status`, for programs."""
        found: dict[str, Any] = json.loads(self.asked("status", "--json"))
        return found


def pipeline_file(
    folder: Path, name: str, engine: str, *, pace_ms: int = 1, **changes: Any
) -> Path:
    """The example. The scripted engine is told what each review's answer is, and how long it takes
    for each token; a real one gets the example as it is."""
    told = yaml.safe_load(EXAMPLE.read_text())
    told |= {"name": name, "concurrency": 48, "batch": {"records": 100, "seconds": 1}, **changes}
    if engine == SCRIPTED:
        told["prompt"]["user"] += "\njson {{ record.planted | tojson }}\n"
        told["metadata"] = {"script_pace_ms": str(pace_ms)}
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump(told))
    return file


async def produce(kafka: str, topic: str, generated: list[data.ExampleRecord]) -> None:
    """Write the input."""
    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=kafka, acks="all")
    await producer.start()
    try:
        sent = [await producer.send(topic, each.value, each.key) for each in generated]
        await asyncio.gather(*sent)
    finally:
        await producer.stop()


async def consumed(kafka: str, topic: str) -> list[Any]:
    """All committed records of a topic."""
    consumer = aiokafka.AIOKafkaConsumer(
        topic,
        bootstrap_servers=kafka,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    await consumer.start()
    try:
        ends = await consumer.end_offsets(consumer.assignment())
        found: list[Any] = []
        while True:
            for batch in (await consumer.getmany(timeout_ms=200)).values():
                found += batch
            positions = [await consumer.position(tp) for tp in ends]
            if all(at >= end for at, end in zip(positions, ends.values(), strict=True)):
                return found
    finally:
        await consumer.stop()


async def judged(
    side: stacks.Side,
    pipeline: definition.Pipeline,
    generated: list[data.ExampleRecord],
    engine: str,
) -> list[str]:
    """What is wrong; empty if nothing is. What a real engine answers is its own affair, but for the
    schema."""
    inputs = {
        f"{r.topic}/{r.partition}/{r.offset}/{r.timestamp}": json.loads(r.value)
        for r in await consumed(side.kafka, pipeline.input.topic)
        if r.value.endswith(b"}")
    }
    planted = {p: v["planted"] for p, v in inputs.items() if "planted" in v}
    wrong: list[str] = []

    def expect(what: str, found: object, wanted: object) -> None:
        say(f"  {what}: {found} (wanted {wanted})")
        if found != wanted:
            wrong.append(f"{what}: {found}, wanted {wanted}")

    by_topic: dict[str, dict[str, Any]] = {}
    for topic in pipeline.outputs:
        found = await consumed(side.kafka, topic)
        places = Counter(dict(r.headers)[rows.SOURCE].decode() for r in found)
        expect(f"{topic}, written twice", sum(n > 1 for n in places.values()), 0)
        by_topic[topic] = {dict(r.headers)[rows.SOURCE].decode(): r.value for r in found}
    output, alerts, dead = (by_topic[topic] for topic in pipeline.outputs)
    expect("outputs", len(output), sum(each.planted is not None for each in generated))
    answers = {place: json.loads(value) for place, value in output.items()}
    if engine == SCRIPTED:
        good = sum(a["answer"] == planted.get(place) for place, a in answers.items())
        expect("outputs with the planted answer", good, len(planted))
        right = planted
    else:
        schema = jsonschema.Draft202012Validator(pipeline.answer or True)
        good = sum(schema.is_valid(answer["answer"]) for answer in answers.values())
        expect("outputs that the schema allows", good, len(planted))
        right = {place: answer["answer"] for place, answer in answers.items()}
    leaving = {
        place
        for place, answer in right.items()
        if answer["leaving"] and answer["sentiment"] == "negative"
    }
    expect("alerts that are due", len(alerts.keys() & leaving), len(leaving))
    expect("alerts", len(alerts), len(leaving))
    expect("dead letters", len(dead), sum(each.broken for each in generated))
    responses = {answer["response"] for answer in answers.values()}
    expect("responses", len(responses), len(planted))
    lines = await consumed(side.kafka, topics.requests("default", "batch"))
    read = [(r, request) for r in lines if (request := records.request_of(r.key, r.value))]
    refused = await withdrawn(side.kafka)
    say(f"  requests that were withdrawn before a worker began them: {len(refused)}")
    asked = {request.rid: request for _, request in read if request.rid not in refused}
    usage = [_metered(r.value) for r in await consumed(side.kafka, topics.USAGE)]
    metered = {each.rid: each for each in usage}
    for rid in asked.keys() - responses:
        for r, request in read:
            if request.idempotency_key == asked[rid].idempotency_key:
                at = time.strftime("%H:%M:%S", time.localtime(r.timestamp / 1000))
                used = metered.get(request.rid)
                say(
                    f"    {request.rid} at {r.partition}/{r.offset}, {at}.{r.timestamp % 1000:03}: "
                    f"{used and (used.status, used.usage.output_tokens, used.claims)}"
                )
    expect("requests in the log", len(asked), len(planted))
    expect("requests without an output", len(asked.keys() - responses), 0)
    expect("usage records of distinct responses", len(metered), len(planted))
    return wrong


def sunk(side: stacks.Side, pipeline: definition.Pipeline, runners: Runners) -> list[str]:
    """What is wrong in a database that got the outputs twice, once by a process that was killed."""
    found = asyncio.run(consumed(side.kafka, pipeline.output.topic))
    wanted = {dict(r.headers)[rows.SOURCE].decode(): json.loads(r.value)["answer"] for r in found}
    with contextlib.closing(DatabaseServer()) as server:
        to = ("--to", f"opensearch+http://{server.host}/reviews")
        process = runners.start_command("sink", *to)
        end = time.monotonic() + LEAVE_S
        while not server.written and time.monotonic() < end:
            time.sleep(0.1)
        process.kill()
        process.wait()
        say(f"sink: killed with {server.written} documents")
        runners.asked("sink", *to, "--once")
        kept = {place: row["answer"] for place, (_, row) in server.rows.items()}
        say(f"sink: {len(kept)} documents, {server.written} writes")
    return [] if kept == wanted else [f"sink: {len(kept)} documents, not {len(wanted)}"]


async def withdrawn(kafka: str) -> set[str]:
    """Responses whose first record is the CANCEL of a gateway that told no client of them."""
    first: dict[str, object] = {}
    for r in await consumed(kafka, topics.TOKENS):
        record = records.token_of(r.key, r.value)
        if record is not None:
            first.setdefault(record.rid, record)
    return {
        rid
        for rid, record in first.items()
        if isinstance(record, records.Cancel) and record.withdrawn
    }


def _metered(value: bytes) -> records.UsageRecord:
    return msgspec.json.decode(value, type=records.UsageRecord)


def kill(side: stacks.Side, role: str, drawn: random.Random) -> None:
    """SIGKILL a part of the deployment; its supervisor starts it again."""
    assert side.data is not None
    running = state.load(side.data.state)
    assert running is not None
    pids = [part.pid for part in running.parts if part.role == role]
    with contextlib.suppress(ProcessLookupError):
        os.kill(drawn.choice(pids), signal.SIGKILL)


async def ended(kafka: str, count: int) -> None:
    """Wait until so many responses have ended."""
    partitions = next(
        row.partitions for row in topics.table(("default",)) if row.name == topics.USAGE
    )
    offsets = log.Offsets(kafka)

    async def there() -> bool:
        return sum((await offsets.ends(topics.USAGE, range(partitions))).values()) >= count

    try:
        await waiting.eventually(there, f"{count} responses have ended", within_s=MOST_S)
    finally:
        await offsets.stop()


def disturb(
    side: stacks.Side, runners: Runners, seed: int, every_s: float, rounds: int, at_once: int = 0
) -> int:
    """Kill parts until everything is read: the first `at_once` of them as soon as some rows have
    answers. Returns how many were killed."""
    drawn, killed = random.Random(seed), 0

    def kill_next() -> None:
        nonlocal killed
        what = KILLED[killed % len(KILLED)]
        if killed == 4:
            runners.start()  # a third one: partitions move without anyone dying
        if killed % 9 == 5:
            what = "kafka"
        say(f"killing {what}")
        if what == "runner":
            runners.kill(drawn)
        else:
            kill(side, what, drawn)
        killed += 1

    if at_once:
        asyncio.run(ended(side.kafka, SOME))
        for _ in range(at_once):
            kill_next()
    end = time.monotonic() + MOST_S
    while time.monotonic() < end:
        time.sleep(every_s)
        try:
            now = runners.progress()
        except AssertionError:
            say("no broker")
            continue
        say(
            f"read {now['read']}, answered {now['answered']}, lag {now['lag']}, "
            f"dead {now['dead']}, "
            f"{now['rows_per_s']} rows/s, killed {killed}"
        )
        if now["lag"] == 0:
            return killed
        if killed < rounds:
            kill_next()
    raise AssertionError(f"not everything was read in {MOST_S:.0f} s")


def run(
    scratch: Path,
    count: int,
    seed: int,
    every_s: float,
    rounds: int,
    engine: str = SCRIPTED,
    *,
    pace_ms: int = 1,
    again: bool = True,
) -> list[str]:
    """The whole trial, with two gateways. Returns what is wrong.

    Args:
        every_s: between two looks, each with a kill.
        rounds: kills at most.
        pace_ms: of a token of the scripted engine.
        again: with a replay of everything, and the sink; else all kills come at once.
    """
    generated = list(data.reviews(count, seed))
    workers = 2 if engine == SCRIPTED else 1
    with stacks.tailrace(scratch, engine=engine, gateways=2, workers=workers) as side:
        file = pipeline_file(scratch, "reviews-trial", engine, pace_ms=pace_ms)
        pipeline = definition.parse(file.read_bytes())
        names = [pipeline.input.topic, *pipeline.outputs]
        asyncio.run(log.create_topics(side.kafka, names, partitions=PARTITIONS))
        asyncio.run(produce(side.kafka, pipeline.input.topic, generated))
        runners = Runners(side, file, scratch)
        say(runners.asked("plan").strip())
        for _ in range(2):
            runners.start()
        began = time.monotonic()
        try:
            killed = disturb(side, runners, seed, every_s, rounds, 0 if again else rounds)
            say(f"{count} rows in {time.monotonic() - began:.0f} s, {killed} kills")
            runners.stop()
            for told in runners.told("attempt"):
                say(f"  {told}")
            wrong = asyncio.run(judged(side, pipeline, generated, engine))
            if not again:
                return wrong
            say(runners.asked("replay", "--from", "earliest").strip())
            runners.replay()
            for _ in range(2):
                runners.start()
            disturb(side, runners, seed, every_s=1.0, rounds=0)
            runners.stop()
            say("after a replay of everything:")
            wrong += asyncio.run(judged(side, pipeline, generated, engine))
            wrong += sunk(side, pipeline, runners)
        finally:
            for process in runners.running:
                process.kill()
                process.wait()
    return wrong
