"""The whole path beside vLLM's own server: same model, same engine settings, same client, same machine, same run, in turn.

Both sides answer `POST /v1/chat/completions` with server-sent events, greedily. Closed loop at several numbers of streams; then open loop at half of
what the first side managed at 32 streams, the same arrivals for both.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import uvloop

from bench import load, measure, stacks

NAME: Final = "whole_path"
OVER, UNDER = stacks.OURS, stacks.THEIRS
PLOTS: Final = ("tokens_per_s", "first_p50_ms", "first_p99_ms", "per_token_p50_ms", "cpu_servers_us_per_token")
PROMPTS: Final = (
    "Write a long story about a river and the people who live beside it.",
    "Explain quantum entanglement to a curious child, in detail.",
    "Describe the history of the printing press in detail.",
    "Give a long description of a walk through an old town.",
)
PACED_AT: Final = 32  # the open loop takes its rate from this number of streams
OPEN_SHARE: Final = 0.5


class Level(NamedTuple):
    """`each` answers of `tokens` tokens on each of `streams` streams."""

    streams: int
    each: int
    tokens: int


class Work(NamedTuple):
    """What is asked of one model; `questions` in the open loop; in at most so many `rounds`, because a start of the engine takes half a minute."""

    label: str
    levels: tuple[Level, ...]
    questions: int
    rounds: int


SMALL: Final = Work("small", (Level(1, 2, 64), Level(8, 1, 96), Level(32, 1, 64), Level(128, 1, 32)), 12, 2)
TOY: Final = Work("toy", (Level(1, 4, 128), Level(8, 4, 128), Level(32, 3, 128), Level(128, 1, 128)), 60, 2)
TOY_QUICK: Final = Work("toy", (Level(1, 4, 128), Level(32, 2, 128)), 40, 1)

Make = Callable[[], contextlib.AbstractContextManager[stacks.Side]]


def run(plan: measure.Plan, _shared: Callable[[], stacks.Side]) -> Iterator[measure.Row]:
    """The toy model, and unless `quick` the small one."""
    yield from _compare(plan, TOY_QUICK if plan.quick else TOY, stacks.toy_model())
    if not plan.quick:
        yield from _compare(plan, SMALL, stacks.model_folder())


def _compare(plan: measure.Plan, work: Work, model: Path) -> Iterator[measure.Row]:
    rates: dict[str, float] = {}

    def ours() -> contextlib.AbstractContextManager[stacks.Side]:
        return stacks.tailrace(plan.scratch, engine="vllm", model=str(model))

    def theirs() -> contextlib.AbstractContextManager[stacks.Side]:
        return stacks.vllm_server(plan.scratch, model, model.name)

    with contextlib.closing(in_turn(min(plan.rounds, work.rounds), ours, theirs)) as sides:
        for number, side in sides:
            for case, values in _measure(side, work, rates):
                yield measure.Row(NAME, case, side.name, number, values)


def in_turn(rounds: int, ours: Make, theirs: Make) -> Generator[tuple[int, stacks.Side], None, None]:
    """(round, warm server) in the order of `measure.turns`; a server that comes twice in a row stays up."""
    with contextlib.ExitStack() as running:
        current: tuple[Make, stacks.Side] | None = None
        for number, make in measure.turns(rounds, ours, theirs):
            if current is None or current[0] is not make:
                running.close()
                current = make, running.enter_context(make())
                uvloop.run(load.closed(_ask(current[1], 64), 16, 2))  # lazy initialisation, and the broker's JIT, are no figure
            yield number, current[1]


def _measure(side: stacks.Side, work: Work, rates: dict[str, float]) -> Iterator[tuple[str, dict[str, float]]]:
    for level in work.levels:
        with side.meter() as meter:
            result = uvloop.run(load.closed(_ask(side, level.tokens), level.streams, level.each))
        yield f"{work.label}, {level.streams} streams", _values(result, meter)
        if level.streams == PACED_AT:
            rates.setdefault("answers_per_s", OPEN_SHARE * len(result.good) / result.wall)
    tokens = next(level.tokens for level in work.levels if level.streams == PACED_AT)
    with side.meter() as meter:
        result = uvloop.run(load.opened(_ask(side, tokens), rates["answers_per_s"], work.questions))
    yield f"{work.label}, open loop", {**_values(result, meter), "asked_per_s": rates["answers_per_s"]}


def _values(result: load.Result, meter: measure.Meter) -> dict[str, float]:
    good = result.good
    prompt = sum(a.prompt_tokens for a in good) / max(1, len(good))  # equal on both sides, or they do not answer the same question
    shares = {**meter.per(result.tokens, "us_per_token"), **meter.per(len(good), "ms_per_request", 1e3)}
    return {**result.values(), "prompt_tokens": prompt, **shares}


def _ask(side: stacks.Side, tokens: int) -> load.Ask:
    async def ask(number: int, due: float) -> load.Answer:
        body: dict[str, Any] = {
            "model": side.model,
            "messages": [{"role": "user", "content": PROMPTS[number % len(PROMPTS)]}],
            "max_tokens": tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return await load.stream(side.url, "POST", "/v1/chat/completions", side.headers, body, due)

    return ask
