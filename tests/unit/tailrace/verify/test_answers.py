"""L16: whose answer may be given again, and to whom."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tailrace.protocol import records
from tests.support import cases
from tests.unit.tailrace.verify import histories as worlds

GREEDY = records.Sampling(4096, temperature=0.0)


def problems(w: worlds.World) -> list[str]:
    """What L16 says. No other check may fail."""
    out = w.judge()
    assert set(out.failed()) <= {"L16"}
    return [each.what for each in out.results["L16"].counterexamples]


def claim(w: worlds.World, request: records.Request, **changes: Any) -> None:
    at = w.find(request.rid, records.Claim)
    w.replace(at, msgspec.structs.replace(w.decoded(at), **changes))


def test_an_answer_to_the_same_principal_passes() -> None:
    w = worlds.World()
    worlds.with_an_answer_given_again(w)
    out = w.judge()
    assert out.failed() == []
    assert out.results["L16"].count == 1
    assert out.figures["answers given again"] == 1


def test_nobody_is_given_an_answer_of_another_cache_scope() -> None:
    w = worlds.World()
    worlds.with_an_answer_given_again(w, "bob", "alice")
    assert problems(w) == ["it is an answer to another cache scope"]


@cases.each(
    "wants",
    [
        {"sampling": records.Sampling(4096)},
        {"sampling": records.Sampling(4096, temperature=0.5)},
        {"cached_answers": False},
    ],
    ids=str,
)
def test_a_request_that_must_be_generated_is_not_given_an_answer(wants: dict[str, Any]) -> None:
    w = worlds.World()
    worlds.with_an_answer_given_again(w, **wants)
    assert "its request may not be answered by a former answer" in problems(w)


def test_an_answer_of_another_revision_is_not_given() -> None:
    w = worlds.World()
    _, second = worlds.with_an_answer_given_again(w)
    claim(w, second, model_rev="scripted-2")
    assert problems(w) == ["it is an answer of another model, tokenizer or parser"]


def test_an_answer_that_was_given_itself_is_not_given_on() -> None:
    w = worlds.World()
    _, second = worlds.with_an_answer_given_again(w)
    third = w.ask("greedy", wants={"sampling": GREEDY})
    w.writer(third, "worker-2/b", answer_of=second.rid).frames(20, 20).end()
    assert problems(w) == ["it is an answer that did not end by itself, or was not generated there"]


@pytest.mark.parametrize("reason", ["length", "failed"])
def test_an_answer_that_was_cut_short_is_not_given(reason: str) -> None:
    w = worlds.World()
    first = w.ask("greedy", wants={"sampling": GREEDY})
    w.writer(first, "worker-1/a").frames(20).end(reason)
    second = w.ask("greedy", wants={"sampling": GREEDY})
    w.writer(second, "worker-2/b", answer_of=first.rid).frames(20, 20).end()
    assert problems(w) == ["it is an answer that did not end by itself, or was not generated there"]


def test_an_answer_is_given_whole() -> None:
    w = worlds.World()
    first = w.ask("greedy", wants={"sampling": GREEDY})
    w.writer(first, "worker-1/a").frames(20).end()
    second = w.ask("greedy", wants={"sampling": GREEDY})
    w.writer(second, "worker-2/b", answer_of=first.rid).frames(18, 18).end()
    assert problems(w) == ["it ended after 18 of 20 ids"]


def test_other_ids_than_those_of_the_answer_are_found() -> None:
    w = worlds.World()
    first = w.ask("another question", wants={"sampling": GREEDY})
    w.writer(first, "worker-1/a").frames(20).end()
    second = w.ask("greedy", wants={"sampling": GREEDY})
    w.writer(second, "worker-2/b", answer_of=first.rid).frames(20, 20).end()
    assert problems(w) == ["id 0 is not that of the answer that it names"]


def test_a_takeover_generates_the_rest() -> None:
    w = worlds.World()
    first = w.ask("greedy", wants={"sampling": GREEDY})
    w.writer(first, "worker-1/a").frames(20).end()
    second = w.ask("greedy", wants={"sampling": GREEDY})
    given = w.writer(second, "worker-2/b", answer_of=first.rid).frames(8, 8)
    rest = w.writer(second, "worker-3/c", given, given.ids, given.held)
    rest.answer_of = first.rid  # the bill names it all the same
    rest.frames(12).end()
    assert problems(w) == []


def test_another_models_answer_is_not_given() -> None:
    w = worlds.World()
    _, second = worlds.with_an_answer_given_again(w)
    claim(w, second, copied=1)
    assert "another model's answer, a fork's or a shortened prompt's is given" in [
        each.what for each in w.judge().results["L16"].counterexamples
    ]
