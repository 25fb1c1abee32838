"""A plain response has, byte for byte, the records it had before there were items.

`plain_records.jsonl` was written by the worker of version 0.3. To a case's records belong those of
takeovers, of stop strings, of characters cut in half and of ends without ids.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tailrace.protocol import fold, ids, records
from tests.support import cases
from tests.unit.worker.text.test_generation import make
from worker.text import generation

RECORDED = Path(__file__).with_name("plain_records.jsonl")
RID = ids.mint(ids.Address(b"abcd", 0, 0), b"r" * 11)
OWNER = records.Owner("i", "s")
TEXTS = ("hello world", "a😀bé END c", "ENDE EN", "日本\U0001f600" * 3)
STEPS = ((1,), (3, 1), (2, 5), (40,))
SEAMS = ((), (1,), (0, 2, 5))
STOPS = ((), ("END",), ("N c", "ld"))
LIMITS = ((1_000, "stop", ()), (7, "stop", ()), (1_000, "length", ()), (9, "stop", (101, 240)))


def samples() -> Iterator[dict[str, Any]]:
    """A sample of all combinations, always the same."""
    every = itertools.product(TEXTS, STEPS, SEAMS, STOPS, LIMITS)
    for number, (text, steps, seams, stop, (most, finish, stop_ids)) in enumerate(every):
        if number % 11 == 0:
            yield {
                "text": text,
                "steps": list(steps),
                "seams": list(seams),
                "stop": list(stop),
                "max_tokens": most,
                "finish": finish,
                "stop_ids": list(stop_ids),
            }


def written(case: dict[str, Any]) -> list[str]:
    """The records of a response whose engine says `text`, in steps of these numbers of bytes; the
    worker is replaced before the steps with the numbers `seams`."""
    state, out, offset = fold.Fold(retain_ids=True), [], itertools.count()

    def write(record: records.TokenRecord) -> None:
        out.append(records.encode(record).decode())
        assert not isinstance(state.apply(record, next(offset)), fold.Ignored)

    def owner() -> generation.Generation:
        own = f"own{state.epoch}"
        write(records.Claim(RID, own, state.owner, OWNER, "w", "t", 0, "m", "t"))
        return make(
            own,
            state,
            stop=tuple(case["stop"]),
            max_tokens=case["max_tokens"],
            stop_ids=tuple(case["stop_ids"]),
        )

    raw, made = case["text"].encode(), owner()
    for number, size in enumerate(itertools.cycle(case["steps"])):
        if number in case["seams"]:
            made.stand_down()
            made = owner()
        if made.phase is generation.Phase.RUNNING:
            at = made.total
            last = at + size >= len(raw)
            made.push(list(raw[at : at + size]), case["finish"] if last else None)
        if number % 2 or made.phase is not generation.Phase.RUNNING:
            for frame in made.frames(0):
                write(frame)
        if made.phase is not generation.Phase.RUNNING:
            write(made.end(records.Usage(1, made.total)))
            break
    return out


def recorded() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RECORDED.read_text().splitlines()]


@cases.each("number", range(len(list(samples()))))
def test_the_records_are_those_of_before(number: int) -> None:
    case = list(samples())[number]
    assert recorded()[number] == {"case": case, "records": written(case)}
