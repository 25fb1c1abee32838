"""F28: load and faults of every kind at once, drawn from a seed, in rounds; each round has a stage
of its own and is judged by itself.

python -m tests.faults --seconds 1800 --seed 7
"""

from __future__ import annotations

import asyncio
import re
import shutil
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tailrace.verify import report
from tests.faults import archived, chaos, crowd, drill, feeds, stage, wants

ROUND_S = 120.0  # of load and faults; starting, resting and judging come on top
OPEN = 14  # responses under way
PAUSE_S = (1.0, 4.0)
WITH_ITEMS = 0.45  # of the requests: tools, reasoning, a format, log probabilities
WITH_IMAGES = 0.15  # of the requests, with items or without
EMBEDDINGS = 0.12  # of the requests
LONG = 0.15  # of the requests: a conversation that may be too long for the model
TURNS = 0.2  # of the requests, of a few conversations
BATCH = 0.5  # of the requests that are no turns and no forks
FORKS = 0.2  # of the requests, of responses that run or have ended
# A worker with so few slots that requests wait there while others have some free.
SMALL = {"worker-1": {"TAILRACE_MAX_NUM_SEQS": "2"}}
STOLEN = re.compile(rb'"kind": ?"stolen"')
PAUSED = re.compile(rb'"reason": ?"paused"')
WORDS = (" instead", " 天😀", "")  # what a fork replaces


@dataclass
class Round:
    """One seed's run."""

    seed: int
    report: report.Report
    takeovers: int = 0
    of: Counter[str] = field(default_factory=Counter)  # of these, by what was asked for
    inconclusive: str = ""
    compared: int = 0  # responses whose events the archive gave too
    differing: list[str] = field(default_factory=list)  # of them
    untold: list[str] = field(default_factory=list)  # what is wrong with the feeds
    resumes: int = 0  # of feeds
    told: int = 0  # ends of responses, on feeds
    stolen: int = 0  # claims by workers that stole the request
    paused: int = 0  # times that a batch answer made way

    @property
    def word(self) -> str:
        if self.differing or self.untold:
            return "fail"
        if self.report.verdict is not report.Verdict.PASS:
            return str(self.report.verdict.value)
        return "inconclusive" if self.inconclusive else "pass"


@dataclass
class Totals:
    """All rounds together."""

    report: report.Report = field(default_factory=report.Report)
    words: Counter[str] = field(default_factory=Counter)
    takeovers: int = 0
    of: Counter[str] = field(default_factory=Counter)
    compared: int = 0
    resumes: int = 0
    told: int = 0
    stolen: int = 0
    paused: int = 0
    bad: list[int] = field(default_factory=list)

    def add(self, one: Round) -> None:
        self.words[one.word] += 1
        if one.word == "inconclusive":
            return  # not in N
        self.report.absorb(one.report)
        self.takeovers += one.takeovers
        self.of += one.of
        self.compared += one.compared
        self.resumes += one.resumes
        self.told += one.told
        self.stolen += one.stolen
        self.paused += one.paused
        if one.word != "pass":
            self.bad.append(one.seed)

    def lines(self, command: str) -> list[str]:
        """The summary of all rounds, line by line."""
        f, s = self.report.figures, self.report.samples
        faults = ", ".join(
            f"{name.removeprefix('fault: ')} {n}"
            for name, n in sorted(f.items())
            if name.startswith("fault: ")
        )
        failed = sum(r.failed for r in self.report.results.values())
        kinds = ", ".join(f"{n} of {what}" for what, n in sorted(self.of.items()))
        bound = f", so < {3 / self.takeovers:.2%} at 95 %" if self.takeovers and not failed else ""
        out = [
            "",
            (
                f"rounds: {dict(self.words)}; anomalies {failed} in {self.takeovers} takeovers "
                f"with k > 0 ({kinds}){bound}"
            ),
        ]
        out += [
            (
                f"responses {f['responses']}, of which {self.report.results['L11'].count} turns "
                f"of conversations, tokens {f['tokens']}, connections "
                f"{f['connections']}, reconnects {f['reconnects']}; equal from the archive "
                f"{self.compared}; ends told by feeds {self.told}, which resumed {self.resumes} "
                f"times; requests stolen by idle workers {self.stolen}; pauses {self.paused}; "
                f"rerouted {f[drill.REROUTED]}, continued by another model {f[drill.CONTINUED]}"
            ),
            f"faults: {faults}",
            (
                f"ignored tokens {f['ignored tokens']}, ignored TOK {f['ignored TOK']}, CLAIM "
                f"{f['ignored CLAIM']}, END {f['ignored END']}; "
                f"submits of unknown outcome {f['submits of unknown outcome']}; "
                f"repeated usage records {f['usage records that repeat one']}"
            ),
        ]
        wanted = (
            "kill to next token, ms",
            "stop to next token, ms",
            "term to next token, ms",
            "longest gap a watcher saw, ms",
            "behind the append, ms",
        )
        out += [f"{name}: {report.figure(s[name])}" for name in wanted if s.get(name)]
        out += [
            f"seed {seed} did not pass: {command} --seconds {ROUND_S:.0f} --seed {seed}"
            for seed in self.bad
        ]
        return out


def fork_of(d: drill.Drill) -> dict[str, Any]:
    """Arguments of `Crowd.ask` for a fork of one of the last responses, at a place that it may not
    have."""
    rng = d.rng
    source = rng.choice(d.crowd.asked[-2 * OPEN :])
    plain = _plain(d, source)
    of = {"response_id": source.rid, "at": rng.randrange(0, max(2, source.tokens // 2))}
    tokens = source.tokens
    if plain:  # only there does another text leave the rest what it must be
        of["replace"] = rng.choice(WORDS)
        tokens += rng.randrange(200)
    more: dict[str, Any] = {}
    if rng.random() < 0.3:
        more = {"include": wants.LOGPROBS, "top_logprobs": rng.randrange(4)}
    return {
        "fork": of,
        "user": source.user,
        "tokens": tokens,
        "pace_ms": rng.choice((5, 10, 20)),
        "key": f"key-{rng.getrandbits(64):x}" if rng.random() < 0.4 else None,
        "sampling": rng.randrange(2),
        **more,
    }


def _plain(d: drill.Drill, asked: crowd.Asked) -> bool:
    """Whether an answer is nothing but text. A fork is what its source is."""
    fork = asked.body.get("fork")
    if fork is None:
        return not asked.body.keys() & {"tools", "text", "reasoning"}
    sources = [each for each in d.crowd.asked if each.rid == fork["response_id"]]
    return bool(sources) and _plain(d, sources[0])


async def turn_of(d: drill.Drill) -> dict[str, Any]:
    """Arguments of `Crowd.ask` for a turn of a conversation, in which another one may run."""
    rng = d.rng
    user = rng.choice(crowd.USERS)
    name = await d.crowd.conversation(user)
    more = {"conversation": name} if name is not None else {}
    return {
        "user": user,
        "tokens": rng.randrange(20, 200),
        "pace_ms": rng.choice((5, 10, 20)),
        "key": f"key-{rng.getrandbits(64):x}" if rng.random() < 0.4 else None,
        "if_busy": rng.choice(("reject", "queue", "interrupt")),
        **more,
    }


async def follow(d: drill.Drill, asked: crowd.Asked | None) -> None:
    """Watch it, or not, to its end; cancel it, or not."""
    if asked is None:
        return
    rng = d.rng
    watches = [d.crowd.watch(asked, deadline_s=180.0) for _ in range(rng.choice((0, 1, 1, 2)))]
    if rng.random() < 0.12:
        await asyncio.sleep(rng.uniform(0.0, 3.0))
        await d.crowd.cancel(asked)
    if watches:
        await asyncio.wait(watches)
    else:
        await asyncio.sleep(asked.tokens * 0.01)


async def load(d: drill.Drill, until: float) -> None:
    """Keep OPEN responses under way: some sampled, some with a key, some cancelled, some with
    tools, a format or images, some long, some forks, most watched; and some requests for
    embeddings."""

    async def one() -> None:
        rng = d.rng
        if rng.random() < EMBEDDINGS:
            more = {"dimensions": rng.randrange(1, 33)} if rng.random() < 0.3 else {}
            key = f"key-{rng.getrandbits(64):x}" if rng.random() < 0.4 else None
            await d.crowd.embed(pace_ms=rng.choice((20, 100)), key=key, **more)
            return
        if rng.random() < FORKS and d.crowd.asked:
            await follow(d, await d.crowd.ask(**fork_of(d)))
            return
        if rng.random() < TURNS:
            await follow(d, await d.crowd.ask(**await turn_of(d)))
            return
        tokens = rng.randrange(20, 400)
        wanted = wants.draw(rng, tokens) if rng.random() < WITH_ITEMS else {}
        if rng.random() < WITH_IMAGES:
            wanted["shown"] = wants.images(rng)
        if rng.random() < LONG:
            wanted["before"] = rng.randrange(1, 30)
        if rng.random() < BATCH:
            wanted["service_tier"] = "flex"
        asked = await d.crowd.ask(
            tokens=tokens,
            pace_ms=rng.choice((5, 10, 20)),
            key=f"key-{rng.getrandbits(64):x}" if rng.random() < 0.4 else None,
            sampling=rng.randrange(2),
            **wanted,
        )
        await follow(d, asked)

    running: set[asyncio.Task[None]] = set()
    while time.monotonic() < until:
        while len(running) < OPEN:
            running.add(asyncio.create_task(one()))
        done, running = await asyncio.wait(
            running, timeout=1.0, return_when=asyncio.FIRST_COMPLETED
        )
        for task in done:
            task.result()
    await asyncio.wait(running, timeout=120.0)


async def run_round(seed: int, seconds: float, folder: Path) -> Round:
    """One stage from start to verdict. With an odd seed records carry authentication tags, and
    what the faults write themselves is forged."""
    on = stage.Stage(
        folder,
        workers=3,
        fallback=2,
        links=["worker-1", "push-1"],
        environ={"TAILRACE_TEST_TRACE_EVERY": "5"},
        worker_environ={"TAILRACE_STEAL_AFTER_MS": "50"},
        environ_of=SMALL,
        archive=True,
        record_keys=seed % 2 == 1,
    ).open()
    try:
        async with drill.drill(on, "mixture", seed) as d:
            until = time.monotonic() + seconds
            async with feeds.following(d) as devices:
                async with d.reviving():
                    loading = asyncio.create_task(load(d, until))
                    await asyncio.gather(chaos.rage(d, until, PAUSE_S), chaos.lose_pools(d, until))
                    await chaos.heal(d)
                    await loading
                found = await d.judge(settle_s=120.0, final_reads=30)
                untold = await feeds.problems(d, devices)
            takeovers = len(d.takeovers())
            asked = d.crowd.asked
            of = {
                "images": {a.rid for a in asked if "input_image" in str(a.body.get("input"))},
                "forks": {a.rid for a in asked if "fork" in a.body},
                "prompts without older messages": {
                    rid for rid, o in d.outcomes.items() if o.dropped
                },
                "calls or reasoning": {
                    rid
                    for rid, o in d.outcomes.items()
                    if any(kind != "message" for kind, *_ in o.items)
                },
            }
            counts = {
                what: sum(
                    t.k > 0 for rid in rids & d.outcomes.keys() for t in d.outcomes[rid].takeovers
                )
                for what, rids in of.items()
            }
            turns = found.results["L11"].count
            pools_lost = found.figures["fault: pool lost"]
            missing = [
                what
                for what, bit in (
                    ("takeovers with k > 0", takeovers),
                    ("ignored records", d.ignored()),
                    ("unknown outcomes", d.unknown()),
                    ("embeddings", d.crowd.embedded),
                    ("forks", of["forks"]),
                    ("prompts without older messages", of["prompts without older messages"]),
                    ("turns of conversations", turns),
                    ("rerouted responses", found.figures[drill.REROUTED] or not pools_lost),
                    ("continued responses", found.figures[drill.CONTINUED] or not pools_lost),
                )
                if not bit
            ]
            compared, differing = await archived.compare(d)
        logs = [worker.log.read_bytes() for role in stage.WORKERS for worker in on.of(role)]
        return Round(
            *(seed, found, takeovers, Counter(counts)),
            inconclusive=", ".join(missing),
            compared=compared,
            differing=differing,
            untold=untold,
            resumes=sum(device.resumes for device in devices),
            told=sum(len(device.told) for device in devices),
            stolen=sum(len(STOLEN.findall(log)) for log in logs),
            paused=sum(len(PAUSED.findall(log)) for log in logs),
        )
    finally:
        on.close()


async def run(seconds: float, seed: int, keep: Path | None) -> int:
    """Rounds until the time is over; the exit code: 0 all pass, 1 a round failed, 2 nothing was
    conclusive."""
    totals, end = Totals(), time.monotonic() + seconds
    command = "python -m tests.faults"
    print(f"{command} --seconds {seconds:.0f} --seed {seed}", flush=True)
    for number in range(10_000):
        left = end - time.monotonic()
        if number and left < 45.0:
            break
        folder = Path(tempfile.mkdtemp(prefix=f"tailrace-faults-{seed + number}-", dir=keep))
        one = await run_round(seed + number, max(20.0, min(ROUND_S, left - 30.0)), folder)
        totals.add(one)
        why = f" ({one.inconclusive})" if one.word == "inconclusive" else ""
        print(
            (
                f"seed {one.seed}: {one.word}{why}; takeovers with k > 0: {one.takeovers}; "
                f"responses {one.report.figures['responses']}; stolen {one.stolen}; "
                f"paused {one.paused}; rerouted {one.report.figures[drill.REROUTED]}, continued by "
                f"another model {one.report.figures[drill.CONTINUED]}"
            ),
            flush=True,
        )
        if one.word in ("fail", "unknown"):
            for rid in one.differing:
                print(f"{rid}: the archive gives other events than the log did", flush=True)
            for problem in one.untold:
                print(f"feeds: {problem}", flush=True)
            print(
                "\n".join(one.report.lines()), f"\nits logs and transcripts: {folder}", flush=True
            )
        else:
            shutil.rmtree(folder, ignore_errors=True)
    print("\n".join(totals.lines(command)), flush=True)
    if totals.bad:
        return 1
    return 0 if totals.words["pass"] else 2
