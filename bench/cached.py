"""Cached answers: equal questions whose answer is given again, beside ones that decline it, in
turn, on one deployment with the scripted engine.

The engine takes 4 ms a token and as many responses as there are streams, so the ratio of tokens per
second says little of other engines; the first token and the CPU time per token do.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Final

import uvloop

from bench import load, measure, scripted, stacks

NAME: Final = "cached"
OVER, UNDER = "given again", "generated"
PLOTS: Final = ("first_p50_ms", "answer_p50_ms", "cpu_servers_us_per_token")
POOLS: Final[dict[str, Any]] = {
    "default": {"models": ["scripted"], "engine": "scripted", "cached_answers": {"ttl_s": 3600}}
}
PACE_MS: Final = 4.0
LENGTHS: Final = (40, 400)


def run(plan: measure.Plan, _shared: Callable[[], stacks.Side]) -> Iterator[measure.Row]:
    pools = plan.scratch / "cached-pools.json"
    pools.write_text(json.dumps({"pools": POOLS}))
    settings = {"TAILRACE_POOLS": str(pools)}
    with stacks.tailrace(plan.scratch, settings=settings) as side:
        uvloop.run(scripted.warm(side))
        for number in range(plan.rounds):
            for tokens in LENGTHS:
                uvloop.run(_keep(side, tokens))
                for streams in plan.pick((8,), (1, 8, 32)):
                    for name in (OVER, UNDER) if number % 2 == 0 else (UNDER, OVER):
                        ask = _asking(side, tokens, given=name == OVER)
                        with side.meter() as meter:
                            result = uvloop.run(load.closed(ask, streams, plan.pick(2, 4)))
                        case = f"{tokens} tokens, {streams} streams"
                        values = {**result.values(), **meter.per(result.tokens, "us_per_token")}
                        yield measure.Row(NAME, case, name, number, values)


def _body(side: stacks.Side, tokens: int, **more: Any) -> dict[str, Any]:
    """The same for every question: an answer that ends by itself."""
    found = scripted.body(side, tokens, tokens, PACE_MS, temperature=0, **more)
    return {**found, "max_output_tokens": 2 * tokens}


async def _keep(side: stacks.Side, tokens: int) -> None:
    """Return when the answer is given again. Raises load.Failed if it is not."""
    for _ in range(5):
        found = await load.fetch(
            side.url, "POST", "/v1/responses", side.headers, _body(side, tokens)
        )
        if found.get("cached_answer"):
            return
    raise load.Failed("no answer is given again")


def _asking(side: stacks.Side, tokens: int, *, given: bool) -> load.Ask:
    body = _body(side, tokens, stream=True, cached_answers=given)

    async def ask(_number: int, due: float) -> load.Answer:
        return await load.stream(side.url, "POST", "/v1/responses", side.headers, body, due)

    return ask
