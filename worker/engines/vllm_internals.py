"""The only module that uses private parts of vLLM, and the check that they are as expected.

It provides three things:

- `run` reads a request's output where vLLM's output loop makes it (`OutputHook`). The public way,
  `vllm_public.run`, costs an object, an event and a wake-up per token.
- `one_process_executor` and `core_binding` run the model in the scheduler's process on a machine
  without a GPU. By itself vLLM gives the model a process of its own there. The two then wait for
  each other by spinning, which takes a core.
- `reasoning_is_over` and `skip_reasoning` read and set a parser's place. There is no public way.

`PARTS` lists what the first two use, and `private_parts.changes` compares it with the installed
vLLM. A difference turns both off (`allowed`), so that there are two arrangements and not four.
`PARSER_PARTS` is compared by itself: a difference turns tools and reasoning off (`vllm_parsers`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any, Final

from tailrace import telemetry
from tailrace.private_parts import Part
from worker.engines import base, vllm_public

WRITTEN_FOR: Final = "0.32"


_OUTPUT: Final = "vllm.v1.engine.output_processor"
_ASYNC_LLM: Final = "vllm.v1.engine.async_llm"
_CORES: Final = "vllm.utils.ompmultiprocessing"

PARTS: Final = (
    Part(_ASYNC_LLM, "AsyncLLM.__init__", names=("output_processor",)),
    Part(_ASYNC_LLM, "AsyncLLM.add_request", ("self", "request_id", "prompt", "params")),
    Part(_OUTPUT, "OutputProcessor.__init__", names=("request_states",)),
    Part(
        _OUTPUT,
        "OutputProcessor.process_outputs",
        names=("request_states", "make_request_output", "queue"),
    ),
    Part(
        _OUTPUT, "RequestState.__init__", names=("queue", "num_cached_tokens", "logprobs_processor")
    ),
    Part(
        "vllm.v1.engine.logprobs", "LogprobsProcessor._update_sample_logprobs", names=("logprobs",)
    ),
    Part(
        _OUTPUT,
        "RequestState.make_request_output",
        ("self", "new_token_ids", "pooling_output", "finish_reason"),
    ),
    Part(_OUTPUT, "RequestOutputCollector.__init__", names=("request_id",)),
    Part(_OUTPUT, "RequestOutputCollector.get_nowait", ("self",)),
    Part(_OUTPUT, "RequestOutputCollector.put", ("self", "output")),
)
CPU_PARTS: Final = (
    Part("vllm.v1.executor.uniproc_executor", "UniProcExecutor"),
    Part(_CORES, "OMPProcessManager.__init__", ("self", "config")),
    Part(_CORES, "OMPProcessManager.configure_omp_envs", ("self", "rank", "local_rank")),
)
_PARSER: Final = "vllm.parser.abstract_parser"
_STATE: Final = ("_stream_state",)
PARSER_PARTS: Final = (
    Part(_PARSER, "StreamState.__init__", names=("reasoning_ended", "prompt_reasoning_checked")),
    Part(_PARSER, "Parser.__init__", names=_STATE),
    Part(
        _PARSER,
        "DelegatingParser.parse_delta",
        ("self", "delta_text", "delta_token_ids", "request", "prompt_token_ids"),
        (*_STATE, "reasoning_ended", "prompt_reasoning_checked"),
    ),
    Part("vllm.parser.engine.parser_engine", "ParserEngine.__init__", names=_STATE),
)


def usable(version: str, changes: Sequence[str], *, public_api: bool) -> bool:
    """Whether this module may be used: the operator did not ask for the public API, and nothing
    changed. A change is logged in one line that names it."""
    if public_api:
        telemetry.log(telemetry.Action.ENGINE_FALLBACK, because="TAILRACE_VLLM_PUBLIC_API is set")
    elif changes:
        because = f"vLLM {version} is not as {WRITTEN_FOR}: its public API is used, which is slower"
        telemetry.log(telemetry.Action.ENGINE_FALLBACK, because=because, changed=list(changes))
    return not public_api and not changes


# ---- a parser's place ----------------------------------------------------------------------------


def reasoning_is_over(parser: Any) -> bool:
    """Whether the parser's next input is after the reasoning."""
    return bool(parser._stream_state.reasoning_ended)


def skip_reasoning(parser: Any) -> None:
    """Make a parser that has read nothing treat all input as text and calls."""
    parser._stream_state.reasoning_ended = True
    parser._stream_state.prompt_reasoning_checked = True


# ---- one request's output ------------------------------------------------------------------------


class OutputHook:
    """Receives one request's outputs from vLLM's output loop. Replaces vLLM's per-request queue.

    Attributes:
        over: done when no more steps come or are wanted. Fails as the request fails.
        finished: vLLM has released this request.
        _state: vLLM's `RequestState` of the request. None before `attach` and after `detach`.
    """

    def __init__(
        self,
        on_step: base.OnStep,
        over: asyncio.Future[None],
        describe: vllm_public.Describe = vllm_public.nothing,
    ) -> None:
        self.over = over
        self.finished = False
        self._on_step = on_step
        self._describe = describe
        self._state: Any = None

    def attach(self, queue: Any, state: Any) -> None:
        """Replace `queue` from now on, and read what it already holds. `state` is None when vLLM
        has finished the request."""
        if state is not None:
            self._state = state
            state.make_request_output = self.make_request_output
            state.queue = self
        early = queue.get_nowait()  # raises the exception that the queue was given, if any
        if early is not None:
            self._read(early)

    def detach(self) -> None:
        """Drop the state. It refers to this hook, and the collector would have to find the
        cycle."""
        self._state = None

    def make_request_output(
        self,
        new_token_ids: list[int],
        pooling_output: Any,
        finish_reason: Any,
        *_more: Any,
        **_named: Any,
    ) -> None:
        """Stands in for `RequestState.make_request_output`, which vLLM calls once per step. It
        returns no output, so vLLM puts nothing into the queue."""
        del pooling_output
        if self._state is not None:
            reason = None if finish_reason is None else str(finish_reason)
            # All of the request so far; None where the request wants none.
            logprobs = self._state.logprobs_processor.logprobs
            if logprobs is not None:
                logprobs = logprobs[-len(new_token_ids) :] if new_token_ids else []
            self._step(new_token_ids, reason, self._state.num_cached_tokens, logprobs)

    def put(self, output: Any) -> None:
        """Stands in for `RequestOutputCollector.put`. vLLM puts an exception when the engine died;
        then there is nothing left to abort."""
        if isinstance(output, Exception):
            self.finished = True
            self._fail(output)
        else:
            self._read(output)

    def _read(self, output: Any) -> None:
        completion = output.outputs[0]
        self._step(
            completion.token_ids,
            completion.finish_reason,
            output.num_cached_tokens,
            completion.logprobs,
        )

    def _step(
        self, ids: Sequence[int], reason: str | None, cached_tokens: int | None, logprobs: Any
    ) -> None:
        """Never raises: the caller is the output loop of all requests."""
        self.finished = reason is not None
        if self.over.done():
            return
        try:
            step = vllm_public.to_step(ids, reason, cached_tokens, self._describe(ids, logprobs))
            more = self._on_step(step)
        except Exception as error:
            self._fail(error)
            return
        if step.finish is not None or not more:
            self.over.set_result(None)

    def _fail(self, error: Exception) -> None:
        if not self.over.done():
            self.over.set_exception(error)


async def run(
    llm: Any,
    prompt: dict[str, Any],
    sampling: Any,
    key: str,
    on_step: base.OnStep,
    describe: vllm_public.Describe = vllm_public.nothing,
    **further: Any,
) -> None:
    """Like `vllm_public.run`, but `on_step` is called in vLLM's output loop."""
    hook = OutputHook(on_step, asyncio.get_running_loop().create_future(), describe)
    try:
        queue = await llm.add_request(key, prompt, sampling, **further)
        hook.attach(queue, llm.output_processor.request_states.get(queue.request_id))
        await hook.over
    finally:
        try:
            if not hook.finished:
                await llm.abort(key)
        finally:
            hook.detach()


# ---- processes without a GPU ---------------------------------------------------------------------


def one_process_executor() -> Any:
    """The executor that runs the model in the scheduler's process. It is named by its class,
    because vLLM changes the name "uni" to "mp" on a CPU."""
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    return UniProcExecutor


def core_binding(config: Any) -> contextlib.AbstractContextManager[None]:
    """While it is entered, new processes get the OpenMP variables that vLLM intends for the model
    (all cores of a NUMA node but one, or VLLM_CPU_OMP_THREADS_BIND). OpenMP reads them once, at the
    start of a process. Has no effect on a GPU."""
    from vllm.utils.ompmultiprocessing import OMPProcessManager

    manager: contextlib.AbstractContextManager[None] = OMPProcessManager(config).configure_omp_envs(
        rank=0, local_rank=0
    )
    return manager
