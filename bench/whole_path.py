"""The whole path compared with vLLM's own server, in turn: same model, engine settings and client.

Both sides answer `POST /v1/chat/completions` with server-sent events, greedily. A closed loop runs
at several numbers of streams; then an open loop at half of the first side's throughput at 32
streams, with the same arrivals for both. Both sides run all the time, the idle one frozen, and the
two measurements of a pair are seconds apart, so that slow changes of the machine's speed affect
both. By default vLLM runs the model in a process of its own on a CPU, and that cost is in it; with
`--alike` its server has the worker's arrangement of processes, and only the path differs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import uvloop

from bench import load, measure, stacks

NAME: Final = "whole_path"
OVER, UNDER = stacks.OURS, stacks.THEIRS
PLOTS: Final = (
    "tokens_per_s",
    "first_p50_ms",
    "first_p99_ms",
    "per_token_p50_ms",
    "cpu_servers_us_per_token",
)
PROMPTS: Final = (
    "Write a long story about a river and the people who live beside it.",
    "Explain quantum entanglement to a curious child, in detail.",
    "Describe the history of the printing press in detail.",
    "Give a long description of a walk through an old town.",
)
PACED_AT: Final = 32  # the open loop's rate comes from this number of streams
OPEN_SHARE: Final = 0.5


class Level(NamedTuple):
    """`each` answers of `tokens` tokens on each of `streams` streams."""

    streams: int
    each: int
    tokens: int


class Work(NamedTuple):
    """The measurements of one model. `questions` is for the open loop; `rounds` for a full run."""

    label: str
    levels: tuple[Level, ...]
    questions: int
    rounds: int


SMALL: Final = Work(
    "small", (Level(1, 1, 48), Level(8, 1, 32), Level(32, 1, 24), Level(128, 1, 16)), 8, 3
)
TOY: Final = Work(
    "toy", (Level(1, 3, 128), Level(8, 2, 128), Level(32, 2, 128), Level(128, 1, 128)), 40, 3
)
TOY_QUICK: Final = Work("toy", (Level(1, 2, 128), Level(32, 2, 128)), 30, 1)
# A side that is frozen for less keeps its partitions.
SETTINGS: Final = {"TAILRACE_SESSION_TIMEOUT_MS": "600000"}

Both = tuple[stacks.Side, stacks.Side]
Case = tuple[str, Callable[[stacks.Side], Coroutine[Any, Any, load.Result]]]


def run(plan: measure.Plan, _shared: Callable[[], stacks.Side]) -> Iterator[measure.Row]:
    """Measure the toy model, and in a full run also the small one."""
    yield from measure_cases(plan, TOY_QUICK if plan.quick else TOY, _sides(plan, stacks.toy_model))
    if not plan.quick:
        yield from measure_cases(plan, SMALL, _sides(plan, stacks.model_folder))


@contextlib.contextmanager
def _sides(plan: measure.Plan, model: Callable[[], Path]) -> Iterator[Both]:
    """Run both sides. Raises stacks.NotHere."""
    folder = model()
    with stacks.together(
        stacks.tailrace(plan.scratch, engine="vllm", model=str(folder), settings=SETTINGS),
        stacks.vllm_server(plan.scratch, folder, folder.name, alike=plan.alike),
    ) as both:
        yield both


def measure_cases(
    plan: measure.Plan,
    work: Work,
    sides: contextlib.AbstractContextManager[Both],
    name: str = NAME,
) -> Iterator[measure.Row]:
    """Rows of one model. `name`: of the suite."""
    with sides as both:
        rounds = min(plan.rounds, 1) if plan.rounds < 2 else work.rounds
        for row in in_turn(name, rounds, both, _cases(work), [("warm", _warm)]):
            yield msgspec.structs.replace(row, case=f"{work.label}, {row.case}")


def in_turn(
    suite: str, rounds: int, both: Both, cases: Sequence[Case], warm: Sequence[Case]
) -> Iterator[measure.Row]:
    """Measure both sides in turn, the idle one frozen. `warm`: cases that come first and do not
    count: lazy initialisation, the broker's JIT compiler, grammars."""
    ours, theirs = both
    for number in range(-1, rounds):
        for case, case_run in cases if number >= 0 else warm:
            for side in (ours, theirs) if number % 2 == 0 else (theirs, ours):
                with stacks.frozen(theirs if side is ours else ours):
                    uvloop.run(_woken(side))
                    with side.meter() as meter:
                        result = uvloop.run(case_run(side))
                if number >= 0:
                    yield measure.Row(suite, case, side.name, number, _values(result, meter))


def _woken(side: stacks.Side) -> Coroutine[Any, Any, load.Result]:
    """Ask a question that is not counted.

    vLLM's processes sleep after a second without work and may wake up to 5 s late. After a freeze
    that would count as latency.
    """
    return load.closed_loop(sender(side, 2), 1, 1)


def _warm(side: stacks.Side) -> Coroutine[Any, Any, load.Result]:
    return load.closed_loop(sender(side, 64), 16, 2)


def _cases(work: Work) -> list[Case]:
    """The cases in order. The open loop's rate comes from the first closed loop, for both sides."""
    rates: list[float] = []

    def closed(level: Level) -> Case:
        async def run_case(side: stacks.Side) -> load.Result:
            result = await load.closed_loop(sender(side, level.tokens), level.streams, level.each)
            if level.streams == PACED_AT:
                rates.append(OPEN_SHARE * len(result.good) / result.wall)
            return result

        return f"{level.streams} streams", run_case

    async def opened(side: stacks.Side) -> load.Result:
        tokens = next(level.tokens for level in work.levels if level.streams == PACED_AT)
        return await load.open_loop(sender(side, tokens), rates[0], work.questions)

    return [*(closed(level) for level in work.levels), ("open loop", opened)]


def _values(result: load.Result, meter: measure.Meter) -> dict[str, float]:
    good = result.good
    # Must be equal on both sides, else they do not answer the same question.
    prompt = sum(a.prompt_tokens for a in good) / max(1, len(good))
    shares = {
        **meter.per(result.tokens, "us_per_token"),
        **meter.per(len(good), "ms_per_request", 1e3),
    }
    return {**result.values(), "prompt_tokens": prompt, **shares}


def sender(side: stacks.Side, tokens: int, **more: Any) -> load.Send:
    """Questions to either side. `more`: further members of the body."""

    async def asking(number: int, due: float) -> load.Answer:
        body: dict[str, Any] = {
            "model": side.model,
            "messages": [{"role": "user", "content": PROMPTS[number % len(PROMPTS)]}],
            "max_tokens": tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **more,
        }
        return await load.stream(side.url, "POST", "/v1/chat/completions", side.headers, body, due)

    return asking
