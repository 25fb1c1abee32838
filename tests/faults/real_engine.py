"""Workers with the real engine are killed in mid-answer, again and again, and everything they wrote
is judged (`make faults-engine`). They answer with text, reasoning, calls and JSON; the model has
random weights, and a tokenizer and a template that know tools.

python -m tests.faults.real_engine --kills 50 --seed 1
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tailrace.local import models
from tailrace.protocol import records
from tailrace.verify import checks as verify_checks
from tailrace.verify import command, history, reference_fold, report, transcript
from tests.faults import drill, real_parsers, real_wants, stage
from tests.support import scripted_content

ENGINE_PYTHON = stage.ROOT / ".venv-engine" / "bin" / "python"
SESSION_MS = 6_000  # the engine's start takes all cores: heartbeats of the others may be late
READY_S = 900.0
OPEN = 6  # answers under way
VICTIM_EVERY_S = 2.0  # how often a victim is looked for
GONE_S = 20.0
NO_EOS = {k: float(v) for k, v in real_wants.NO_EOS.items()}
REASONING = "deepseek_r1"  # the parser of the toy's reasoning
PROMPTS = (
    "Write a long story about a river and the people who live beside it.",
    "Explain how a steam engine works, in great detail.",
    "Repeat this line many times: 🚀🌍🎉 größer ≠ kleiner, 東京と大阪。",
    "Write a poem with an emoji in every line, like 🐟 and 🌊.",
    "List all animals you know and say something about each.",
    "翻译成中文：The river runs to the sea, and the sea is never full.",
)


@dataclass
class Judge:
    """What can be known of a real answer: text and items are what vLLM's parsers make of its ids,
    and an answer that cannot stop has exactly the tokens asked for.

    Attributes:
        compared: answers that were read a second time; with_items: those of them that have items
            beside one message.
    """

    parsers: real_parsers.Parsers
    compared: int = 0
    with_items: int = 0

    def content(self, response: history.Response, account: reference_fold.Account) -> Iterable[str]:
        """For `checks.Options`: problems; those of the text begin with "text"."""
        if not response.requests or account.reason not in ("stop", "length"):
            return
        request = response.requests[0].request
        sampling = request.sampling
        if account.reason == "length" and account.total != sampling.max_tokens:
            yield f"ended by length after {account.total} of {sampling.max_tokens} tokens"
        plain = not (request.tools or request.format)
        if plain and NO_EOS.items() <= sampling.logit_bias.items() and account.reason != "length":
            yield "ended by a token that it could not choose"
        pieces = self.parsers.read(request, account.ids)
        most = request.max_tool_calls
        made = scripted_content.Made(request, pieces, over=True, max_calls=most)
        yield from scripted_content.differences(made, account)
        self.compared += 1
        self.with_items += bool(account.marks)


@dataclass
class Run:
    """Kills until there are enough that hit a streaming answer."""

    d: drill.Drill
    kills: int
    until: float  # of the monotonic clock: no more kills after it
    bitten: int = 0
    left_behind: list[int] = field(default_factory=list)
    _over: bool = False
    _calm: asyncio.Event = field(
        default_factory=asyncio.Event
    )  # another worker can take over from a victim
    _ended: set[str] = field(default_factory=set)

    async def load(self) -> None:
        """Keep OPEN answers under way until the last kill is done; with one worker left only what
        it has, for the others' starts need the cores."""

        async def one() -> None:
            wants = real_wants.draw(self.d.rng)
            asked = await self.d.crowd.ask(input=self.d.rng.choice(PROMPTS), **wants)
            if asked is not None:
                await asyncio.wait([self.d.crowd.watch(asked, deadline_s=600.0) for _ in range(2)])

        running: set[asyncio.Task[None]] = set()
        while not self._over:
            while len(running) < OPEN and self._calm.is_set():
                running.add(asyncio.create_task(one()))
            if not running:
                await asyncio.sleep(0.5)
                continue
            done, running = await asyncio.wait(
                running, timeout=1.0, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                task.result()
        if running:
            await asyncio.wait(running, timeout=600.0)

    async def rage(self) -> None:
        """The one that has the most answers dies, as soon as another one could take them over."""
        began = time.monotonic()
        while self.bitten < self.kills and time.monotonic() < self.until:
            ready = [s for s in self.d.stage.of("worker") if s.alive and s.ready()]
            (self._calm.set if len(ready) >= 2 else self._calm.clear)()
            streaming = await self._streaming() if len(ready) >= 2 else Counter()
            victim = max(ready, key=lambda s: streaming[s.name], default=None)
            if len(ready) < 2 or victim is None or not streaming[victim.name]:
                await asyncio.sleep(VICTIM_EVERY_S)
                continue
            assert victim.child is not None
            family = psutil.Process(victim.child.pid).children(recursive=True)
            self.d.kill(victim.name)
            self.d.stage.start(victim.name)
            self.bitten += 1
            _, alive = await asyncio.to_thread(psutil.wait_procs, family, GONE_S)
            self.left_behind += [p.pid for p in alive]
            what = (
                f"{victim.name} with {streaming[victim.name]} answers, {len(family)} "
                f"engine processes"
            )
            print(f"[{time.monotonic() - began:6.0f} s] kill {self.bitten}: {what}", flush=True)
        self._over = True

    async def _streaming(self) -> Counter[str]:
        """How many unfinished answers that have begun each worker holds."""
        found: Counter[str] = Counter()
        for asked in [a for a in self.d.crowd.asked if a.rid not in self._ended]:
            kinds = [r for _, r in await self.d.records_of(asked.rid)]
            claims = [r for r in kinds if isinstance(r, records.Claim)]
            if any(isinstance(r, records.End | records.Cancel) for r in kinds):
                self._ended.add(asked.rid)
            elif claims:
                own = sum(
                    len(r.ids)
                    for r in kinds[kinds.index(claims[-1]) :]
                    if isinstance(r, records.Tok)
                )
                found[claims[-1].worker.split("/")[0]] += own >= 3
        return found


async def run(
    kills: int, workers: int, seed: int, seconds: float, engine_args: dict[str, Any], folder: Path
) -> int:
    """The exit code: 0 all well, 1 something failed, 2 not enough kills bit."""
    model = folder / "model"
    small = models.resolve("vllm", "").source
    command = [str(ENGINE_PYTHON), "-m", "tests.support.toy_tools", str(small), str(model)]
    await asyncio.to_thread(lambda: subprocess.run(command, cwd=stage.ROOT, check=True))
    pools = {
        stage.POOL: {
            "models": [stage.MODEL],
            "max_model_len": 2048,
            "max_output_tokens": 1024,
            "engine_args": engine_args,
        }
    }
    on = stage.Stage(
        folder,
        workers=workers,
        session_ms=SESSION_MS,
        environ={"TAILRACE_TEST_TRACE_EVERY": "5", "TAILRACE_ENGINE_STALL_S": "120"},
        worker_python=str(ENGINE_PYTHON),
        worker_environ={
            "TAILRACE_ENGINE": "vllm",
            "TAILRACE_MODEL": str(model),
            "TAILRACE_TOOL_PARSER": "hermes",
            "TAILRACE_REASONING_PARSER": REASONING,
            "TAILRACE_POOLS": json.dumps(pools),
            "SPT_NOENV": "1",
        },
        ready_s=READY_S,
    ).open()
    parsers = real_parsers.Parsers(ENGINE_PYTHON, model, REASONING)
    try:
        async with drill.drill(on, "real-engine", seed) as d:
            this = Run(d, kills, time.monotonic() + seconds)
            await asyncio.gather(this.load(), this.rage())
            await asyncio.to_thread(on.wait_ready, seconds=READY_S)
            found, judge = await verdict(d, parsers)
        taken = d.takeovers()
        f = found.figures
        print("\n".join(found.lines()))
        print(
            f"\nkills in mid-answer {this.bitten}; takeovers with k > 0: {len(taken)}; "
            f"engine processes left behind: {len(this.left_behind)}"
        )
        print(
            f"responses {f['responses']}, tokens {f['tokens']}, read again from its ids: "
            f"{judge.compared} ({judge.with_items} with items), statuses {dict(d.statuses())}"
        )
        of_items = [o for o in d.outcomes.values() if any(k != "message" for k, *_ in o.items)]
        print(
            f"takeovers with k > 0 of responses with calls or reasoning: "
            f"{sum(t.k > 0 for o in of_items for t in o.takeovers)}; items by type "
            f"{dict(Counter(k for o in d.outcomes.values() for k, *_ in o.items))}"
        )
        for figure in ("kill to next token, ms", "longest gap a watcher saw, ms"):
            if found.samples.get(figure):
                print(f"{figure}: {report.figure(found.samples[figure])}")
        if found.verdict is report.Verdict.FAIL or this.left_behind:
            return 1
        return (
            0
            if found.verdict is report.Verdict.PASS and len(taken) >= kills and judge.compared
            else 2
        )
    finally:
        parsers.close()
        on.close()


async def verdict(d: drill.Drill, parsers: real_parsers.Parsers) -> tuple[report.Report, Judge]:
    """As `Drill.judge`, with what is known of a real engine's answers."""
    d.nemesis.line(op="heal")
    await d.crowd.settle(600.0)
    await d.ended(300.0)
    await d.crowd.read_again(20)
    await asyncio.sleep(drill.LAST_COMMIT_S)
    judge = Judge(parsers)
    files = [
        (p.name, transcript.read(p.read_bytes(), p.name))
        for p in sorted(d.stage.transcripts.glob("*.jsonl"))
    ]
    options = verify_checks.Options(settle_s=0.0, content=judge.content)
    found, d.outcomes = await command.examine(
        d.stage.kafka.bootstrap, [stage.POOL], files, options, late_ms=0.0
    )
    return found, judge


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.real_engine", description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument(
        "--seconds", type=float, default=7200.0, help="no kill later; fewer than KILLS: exit code 2"
    )
    parser.add_argument("--seed", type=int, default=None, help="default: drawn, and printed")
    parser.add_argument(
        "--engine-args",
        type=json.loads,
        default={},
        help="the pool's engine_args, as JSON; on a GPU a share of its memory for each worker",
    )
    chosen = parser.parse_args()
    seed = random.randrange(10**6) if chosen.seed is None else chosen.seed
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the stage is taken down
    print(
        (
            f"python -m tests.faults.real_engine --kills {chosen.kills} --workers "
            f"{chosen.workers} --seed {seed} --engine-args '{json.dumps(chosen.engine_args)}'"
        ),
        flush=True,
    )
    folder = Path(tempfile.mkdtemp(prefix="tailrace-real-engine-"))
    print(f"logs and transcripts: {folder}", flush=True)
    sys.exit(
        asyncio.run(
            run(chosen.kills, chosen.workers, seed, chosen.seconds, chosen.engine_args, folder)
        )
    )


if __name__ == "__main__":
    main()
