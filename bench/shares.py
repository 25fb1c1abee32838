"""Shares: one user's 320 answers in the background, and another user's first token meanwhile.

The answers take every place of a worker for minutes. The other user asks for short ones: three
before, and one every three seconds meanwhile. In the end all have ended, and `tailrace verify`
finds no fault.
"""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

import uvloop

from bench import load, measure, scripted, stacks
from tailrace.local import dev_credentials

NAME: Final = "shares"
OVER, UNDER = "", ""
PLOTS: Final = ("alone_p50_ms", "first_p50_ms", "first_max_ms")
PLACES: Final = 16
ANSWERS: Final = 320
AT_ONCE: Final = 32
TOKENS: Final = 60
QUESTIONS: Final = 6
PACE_MS: Final = 150


def run(plan: measure.Plan, _shared: Callable[[], stacks.Side]) -> Iterator[measure.Row]:
    """A row of each engine; with `--other` only of the scripted one, and of both checkouts."""
    count = plan.pick(2 * PLACES, ANSWERS)
    settings = {"TAILRACE_MAX_NUM_SEQS": str(PLACES)}
    trees = {stacks.OURS: None} if plan.other is None else {"this": None, "other": plan.other}
    for name, tree in trees.items():
        with stacks.tailrace(plan.scratch, settings=settings, tree=tree) as side:
            yield measure.Row(NAME, "scripted", name, 0, uvloop.run(_measure(side, count)))
            _verify(side)
    if plan.other is None:
        model = str(stacks.model_folder())
        with stacks.tailrace(plan.scratch, engine="vllm", model=model, settings=settings) as side:
            yield measure.Row(NAME, "vllm", stacks.OURS, 0, uvloop.run(_measure(side, count)))
            _verify(side)


async def _measure(side: stacks.Side, count: int) -> dict[str, float]:
    assert side.data is not None
    token = dev_credentials.issue(side.data, "another", 3600)
    other = replace(side, headers={"authorization": f"Bearer {token}"})
    ask = scripted.sender(other, 4, PACE_MS)
    await ask(0, time.perf_counter())  # warms up
    alone = [await ask(number, time.perf_counter()) for number in range(1, 4)]
    with side.meter() as meter:
        began = time.perf_counter()
        ids: list[str] = []
        while len(ids) < count:
            numbers = range(len(ids), min(count, len(ids) + AT_ONCE))
            ids += await asyncio.gather(*(_start(side, 1000 + number) for number in numbers))
        answers = []
        for number in range(QUESTIONS):
            await asyncio.sleep(3)
            answers.append(await ask(10 + number, time.perf_counter()))
        responses = [await scripted.wait_for_response(side, rid) for rid in ids]
        wall_s = time.perf_counter() - began
    tokens = sum(response["usage"]["output_tokens"] for response in responses)
    ended = sum(response["status"] in ("completed", "incomplete") for response in responses)
    firsts = [answer.first for answer in answers]
    return {
        **measure.spread("alone", [answer.first for answer in alone]),
        **measure.spread("first", firsts),
        "first_max_ms": max(firsts) * 1000,
        "answers": float(ended),
        "failed": float(count - ended),
        "tokens_per_s": tokens / wall_s,
        **meter.per(tokens, "us_per_token"),
    }


async def _start(side: stacks.Side, number: int) -> str:
    story = f"{number}: write a long story about a river"
    body = scripted.body(side, number, TOKENS, PACE_MS, background=True, input=story)
    response = await load.fetch(side.url, "POST", "/v1/responses", side.headers, body)
    return str(response["id"])


def _verify(side: stacks.Side) -> None:
    """Raises RuntimeError: the log has a fault."""
    assert side.data is not None
    found = subprocess.run(
        [stacks.TAILRACE, "verify", "--data", str(side.data.root)],
        env=side.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode:
        raise RuntimeError(f"tailrace verify: {found.stdout[-3000:]}{found.stderr[-1000:]}")
