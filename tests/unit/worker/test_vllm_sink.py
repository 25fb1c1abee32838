"""One request's end of vLLM's output loop, without vLLM; tests/contract/test_engines.py has the
real one."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from worker.engines import base, vllm


class Taken:
    def __init__(self, most: int = 99, error: Exception | None = None) -> None:
        self.steps: list[base.Step] = []
        self._most = most
        self._error = error

    def __call__(self, step: base.Step) -> bool:
        if self._error is not None:
            raise self._error
        self.steps.append(step)
        return len(self.steps) < self._most


class Queue:
    def __init__(self, early: Any = None) -> None:
        self._early = early

    def get_nowait(self) -> Any:
        if isinstance(self._early, Exception):
            raise self._early
        return self._early


def attached(take: base.Take, early: Any = None) -> tuple[vllm.Sink, Any]:
    state = SimpleNamespace(num_cached_tokens=7, make_request_output=None, queue=None)
    sink = vllm.Sink(take, asyncio.get_running_loop().create_future())
    sink.replace(Queue(early), state)
    return sink, state


async def test_steps_come_one_by_one_and_the_finish_is_the_last() -> None:
    taken = Taken()
    sink, state = attached(taken)
    assert state.make_request_output([1, 2], None, None, None) is None
    assert not sink.over.done()
    assert not sink.finished
    assert (
        state.make_request_output(
            new_token_ids=[3], pooling_output=None, finish_reason="length", stop_reason=None
        )
        is None
    )
    assert taken.steps == [base.Step([1, 2], None, 7), base.Step([3], "length", 7)]
    assert sink.over.result() is None
    assert sink.finished


async def test_what_was_queued_before_it_stood_in_comes_first() -> None:
    taken = Taken()
    early = SimpleNamespace(
        outputs=[SimpleNamespace(token_ids=[1], finish_reason=None)], num_cached_tokens=0
    )
    _, state = attached(taken, early)
    state.make_request_output([2], None, "stop", None)
    assert [step.ids for step in taken.steps] == [[1], [2]]


async def test_after_enough_nothing_is_taken_and_the_engine_is_not_done_with_it() -> None:
    taken = Taken(most=1)
    sink, state = attached(taken)
    state.make_request_output([1], None, None, None)
    state.make_request_output([2], None, None, None)
    assert len(taken.steps) == 1
    assert sink.over.done()
    assert not sink.finished  # so it is aborted
    state.make_request_output([], None, "abort", None)
    assert len(taken.steps) == 1
    assert sink.finished


async def test_a_failure_of_ours_ends_this_request_and_not_everybodys_loop() -> None:
    sink, state = attached(Taken(error=KeyError("ours")))
    state.make_request_output([1], None, None, None)
    assert isinstance(sink.over.exception(), KeyError)
    assert not sink.finished


async def test_a_request_that_failed_in_the_engine_may_be_tried_again() -> None:
    sink, state = attached(Taken())
    state.make_request_output([], None, "error", None)
    with pytest.raises(base.Transient):
        await sink.over


async def test_the_engines_death_ends_it_with_nothing_to_abort() -> None:
    sink, state = attached(Taken())
    state.queue.put(RuntimeError("dead"))
    with pytest.raises(RuntimeError, match="dead"):
        await sink.over
    assert sink.finished
