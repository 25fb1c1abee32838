"""Affinity: conversations of several turns over two gateways and three workers; placed by what the
engines hold of their prompts, beside placement by partition alone; then after a fourth worker has
come and partitions have moved.

Half of the conversations name their previous response, the other half send all messages each time.
Turns of one conversation go to both gateways in turn. Groups of conversations begin with the same
long text. The scripted engine computes one prompt after another and holds a bounded number of
tokens. Both sides run in turn, each on a deployment of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import uvloop

from bench import load, measure, scaling, scripted, stacks
from tailrace.local import plan as deployment
from tailrace.protocol import ids
from tailrace.store.redis_store import RedisStore
from tailrace.store.workers import Workers

NAME: Final = "affinity"
OVER, UNDER = "affinity", "without"
PLOTS: Final = ("cached_share", "first_p50_ms", "first_p99_ms", "busiest_over_mean")
WORKERS: Final = 3
CONVERSATIONS, GROUPS = 18, 3
TURNS, TURNS_AFTER = 6, 4
THINK_S: Final = 3.5  # on average, between an answer and the next question
TOKENS, PACE_MS = 20, 10
COMMON, QUESTION = 4_000, 1_600  # characters; four are a token of the scripted engine
SETTINGS: Final = {
    "TAILRACE_MAX_NUM_SEQS": "8",
    "TAILRACE_SCRIPT_PREFILL_MS": "500",
    "TAILRACE_SCRIPT_CACHE_TOKENS": "30000",
}
AFFINITY: Final = {OVER: "1", UNDER: "0"}


def run(plan: measure.Plan, _shared: Callable[[], stacks.Side]) -> Iterator[measure.Row]:
    for number, name in measure.turns(plan.pick(1, min(2, plan.rounds)), OVER, UNDER):
        settings = {**SETTINGS, "TAILRACE_PREFIX_AFFINITY": AFFINITY[name]}
        with (
            stacks.tailrace(plan.scratch, gateways=2, settings=settings) as side,
            contextlib.ExitStack() as more,
        ):
            uvloop.run(scripted.warm(side))
            for each in range(2, WORKERS + 1):
                more.enter_context(stacks.another_worker(side, each))
            uvloop.run(scaling.balanced(side, WORKERS))
            talks = [Conversation(side, n) for n in range(CONVERSATIONS)]
            yield measure.Row(
                NAME, "three workers", name, number, uvloop.run(_values(talks, TURNS))
            )
            more.enter_context(stacks.another_worker(side, WORKERS + 1))
            uvloop.run(scaling.balanced(side, WORKERS + 1))
            values = uvloop.run(_values(talks, TURNS_AFTER))
            yield measure.Row(NAME, "after a rebalance", name, number, values)


@dataclass
class Conversation:
    """One client's dialogue.

    Attributes:
        turn: questions so far.
        said: all messages.
        last: id of the last response.
    """

    side: stacks.Side
    number: int
    turn: int = 0
    said: list[dict[str, str]] = field(default_factory=list)
    last: str = ""

    async def ask(self) -> load.Answer:
        """Ask the next question."""
        new = [{"role": "user", "content": _text(f"{self.number} {self.turn}", QUESTION)}]
        if not self.said:
            common = _text(f"group {self.number % GROUPS}", COMMON)
            new.insert(0, {"role": "system", "content": common})
        self.said += new
        given: dict[str, Any] = {"input": self.said}
        if self.number % 2 and self.last:
            given = {"input": new, "previous_response_id": self.last}
        body = scripted.body(self.side, self.number, TOKENS, PACE_MS, stream=True, **given)
        url = self.side.urls[(self.number + self.turn) % len(self.side.urls)]
        self.turn += 1
        answer = await load.stream(
            *(url, "POST", "/v1/responses", self.side.headers, body),
            time.perf_counter(),
            keep_text=True,
        )
        self.said.append({"role": "assistant", "content": "".join(answer.text)})
        self.last = answer.rid
        return answer


async def _talk(talks: list[Conversation], turns: int) -> load.Result:
    async def one(talk: Conversation) -> list[load.Answer]:
        pick, answers = random.Random(talk.number), list[load.Answer]()
        for _ in range(turns):
            await asyncio.sleep(pick.uniform(0, 2 * THINK_S))
            answers.append(await talk.ask())
        return answers

    began = time.perf_counter()
    groups = await asyncio.gather(*map(one, talks))
    return load.Result([a for group in groups for a in group], time.perf_counter() - began)


async def _values(talks: list[Conversation], turns: int) -> dict[str, float]:
    result, side = await _talk(talks, turns), talks[0].side
    prompts = sum(answer.prompt_tokens for answer in result.good)
    cached = sum(answer.cached_tokens for answer in result.good)
    async with RedisStore(side.redis) as redis:
        workers = await Workers(redis).list_workers(deployment.POOL)
    found = Counter(ids.parse(answer.rid).partition for answer in result.good)
    answered = [sum(found[p] for p in worker["partitions"]) for worker in workers]
    return {
        **result.values(),
        "cached_share": cached / max(1, prompts),
        "busiest_over_mean": max(answered) * len(answered) / max(1, sum(answered)),
    }


def _text(seed: str, length: int) -> str:
    pick = random.Random(seed)
    return "".join(pick.choices("abcdefghij klmnop", k=length))
