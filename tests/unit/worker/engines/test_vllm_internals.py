"""One request's end of vLLM's output loop, and the choice of its public API, without vLLM.
tests/contract/test_engines.py has the real one."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tailrace import telemetry
from worker.engines import base, vllm_internals


class Handled:
    """Handles steps; wants at most `most`, or fails."""

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
    """vLLM's per-request queue, with what came before the hook was attached."""

    def __init__(self, early: Any = None) -> None:
        self.request_id = "internal-1"
        self._early = early

    def get_nowait(self) -> Any:
        if isinstance(self._early, Exception):
            raise self._early
        return self._early


def new_state() -> SimpleNamespace:
    return SimpleNamespace(
        num_cached_tokens=7,
        make_request_output=None,
        queue=None,
        logprobs_processor=SimpleNamespace(logprobs=None),
    )


def output(ids: list[int], finish: str | None = None, cached: int = 0) -> SimpleNamespace:
    made = SimpleNamespace(token_ids=ids, finish_reason=finish, logprobs=None)
    return SimpleNamespace(outputs=[made], num_cached_tokens=cached)


def attached(on_step: base.OnStep, early: Any = None) -> tuple[vllm_internals.OutputHook, Any]:
    state = new_state()
    hook = vllm_internals.OutputHook(on_step, asyncio.get_running_loop().create_future())
    hook.attach(Queue(early), state)
    return hook, state


class TestOutputHook:
    async def test_steps_come_one_by_one_and_the_finish_is_the_last(self) -> None:
        handler = Handled()
        hook, state = attached(handler)
        assert state.make_request_output([1, 2], None, None, None) is None
        assert not hook.over.done()
        assert not hook.finished
        assert (
            state.make_request_output(
                new_token_ids=[3], pooling_output=None, finish_reason="length", stop_reason=None
            )
            is None
        )
        assert handler.steps == [base.Step([1, 2], None, 7), base.Step([3], "length", 7)]
        assert hook.over.result() is None
        assert hook.finished

    async def test_output_queued_before_it_was_attached_comes_first(self) -> None:
        handler = Handled()
        _, state = attached(handler, output([1]))
        state.make_request_output([2], None, "stop", None)
        assert [step.ids for step in handler.steps] == [[1], [2]]

    async def test_output_that_is_put_into_the_queue_all_the_same_is_read(self) -> None:
        handler = Handled()
        hook, state = attached(handler)
        state.queue.put(output([1]))
        state.queue.put(output([2], "stop", 5))
        assert handler.steps == [base.Step([1], None, 0), base.Step([2], "stop", 5)]
        assert hook.over.result() is None

    async def test_when_no_more_is_wanted_the_engine_still_has_to_abort(self) -> None:
        handler = Handled(most=1)
        hook, state = attached(handler)
        state.make_request_output([1], None, None, None)
        state.make_request_output([2], None, None, None)
        assert len(handler.steps) == 1
        assert hook.over.done()
        assert not hook.finished
        state.make_request_output([], None, "abort", None)
        assert len(handler.steps) == 1
        assert hook.finished

    async def test_a_failing_callback_ends_its_request_and_not_vllms_output_loop(self) -> None:
        hook, state = attached(Handled(error=KeyError("a defect")))
        state.make_request_output([1], None, None, None)
        assert isinstance(hook.over.exception(), KeyError)
        assert not hook.finished

    async def test_output_after_detaching_does_not_fail_in_vllms_output_loop(self) -> None:
        handler = Handled()
        hook, state = attached(handler)
        hook.detach()
        state.make_request_output([1], None, None, None)
        assert handler.steps == []

    @pytest.mark.parametrize("reason", ["error", "abort"])
    async def test_a_request_that_vllm_gave_up_may_be_tried_again(self, reason: str) -> None:
        hook, state = attached(Handled())
        state.make_request_output([], None, reason, None)
        with pytest.raises(base.Transient):
            await hook.over

    async def test_the_engines_death_leaves_nothing_to_abort(self) -> None:
        hook, state = attached(Handled())
        state.queue.put(RuntimeError("dead"))
        with pytest.raises(RuntimeError, match="dead"):
            await hook.over
        assert hook.finished


class Llm:
    """AsyncLLM's surface that `run` uses. It gives `early` before the hook is attached."""

    def __init__(self, early: Any = None) -> None:
        self.state = new_state()
        self.queue = Queue(early)
        self.output_processor = SimpleNamespace(request_states={self.queue.request_id: self.state})
        self.added = asyncio.Event()
        self.aborted: list[str] = []

    async def add_request(self, key: str, prompt: Any, sampling: Any) -> Queue:
        self.added.set()
        return self.queue

    async def abort(self, key: str) -> None:
        self.aborted.append(key)


class TestRun:
    async def test_a_finished_request_is_not_aborted(self) -> None:
        llm, handler = Llm(output([1], "stop")), Handled()
        await vllm_internals.run(llm, {}, None, "k", handler)
        assert [step.finish for step in handler.steps] == ["stop"]
        assert llm.aborted == []

    async def test_a_cancelled_task_aborts_its_request(self) -> None:
        llm = Llm()
        running = asyncio.create_task(vllm_internals.run(llm, {}, None, "k", Handled()))
        await llm.added.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert llm.aborted == ["k"]

    async def test_wanting_no_more_aborts_the_request(self) -> None:
        llm = Llm(output([1]))
        await vllm_internals.run(llm, {}, None, "k", Handled(most=1))
        assert llm.aborted == ["k"]


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    def record(action: telemetry.Action, **fields: Any) -> None:
        found.append({"action": action, **fields})

    monkeypatch.setattr(telemetry, "log", record)
    return found


class TestAllowed:
    def test_an_unchanged_version_uses_the_internals_and_says_nothing(
        self, lines: list[dict[str, Any]]
    ) -> None:
        assert vllm_internals.usable("0.32.0", [], public_api=False)
        assert lines == []

    def test_a_changed_version_falls_back_with_one_line_that_names_the_changes(
        self, lines: list[dict[str, Any]]
    ) -> None:
        assert not vllm_internals.usable("0.33.1", ["m has no A", "B takes (x)"], public_api=False)
        (line,) = lines
        assert line["action"] is telemetry.Action.ENGINE_FALLBACK
        assert "0.33.1" in line["because"]
        assert line["changed"] == ["m has no A", "B takes (x)"]

    @pytest.mark.parametrize("found", [[], ["m has no A"]])
    def test_the_setting_wins_over_the_check(
        self, lines: list[dict[str, Any]], found: list[str]
    ) -> None:
        assert not vllm_internals.usable("0.32.0", found, public_api=True)
        (line,) = lines
        assert "TAILRACE_VLLM_PUBLIC_API" in line["because"]
