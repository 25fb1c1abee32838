"""The engine's first token of a response that another worker owns, made without a claim (log rule
§26). It fills the engine's prefix cache, and shows that this worker is the faster one."""

from __future__ import annotations

import asyncio
import secrets
from typing import Final

from tailrace.protocol import fold, records
from worker.engines import base
from worker.log.tail_state import Entry
from worker.serving import takeover, truncation
from worker.serving.response_state import ResponseState
from worker.serving.worker_context import WorkerContext

POLL_S: Final = 0.02  # how often it is looked whether the owner was faster
STOP_S: Final = 5.0  # how long the engine may take to stop


def suits(engine: base.Engine, request: records.Request) -> bool:
    """Whether two workers may run it at once: it is generated here, and by this deployment's own
    engine. One at a URL costs money or quota for each run."""
    plain = request.generate and request.embed is None and request.fork is None
    return plain and engine.ids_are_tokens and not isinstance(engine, base.Remote)


def may(context: WorkerContext, response: ResponseState, state: fold.Fold) -> bool:
    """Whether this worker still races for the first token."""
    return (
        response.hedged
        and not context.leaving
        and suits(context.engine, response.request)
        and takeover.may_hedge(state, context.claimant(response))
    )


async def first_token(context: WorkerContext, response: ResponseState, entry: Entry) -> bool:
    """Run the engine until its first token. Returns whether the log still had none by then, and
    the same owner. Otherwise the engine is stopped.

    Raises:
        EngineError: the engine failed.
    """
    assert response.prompt_ids is not None
    owner, has_token = entry.fold.owner, False

    def on_step(step: base.Step) -> bool:
        nonlocal has_token
        has_token = has_token or bool(step.ids) or step.finish is not None
        return not has_token

    request = truncation.without_dropped(response.request, response.dropped)
    job = base.GenerationInput(
        *(request, secrets.token_hex(16), response.prompt_ids, (), request.sampling.max_tokens),
        load=context.with_files,
        rank=response.rank,
    )

    def racing() -> bool:
        return entry.fold.owner == owner and may(context, response, entry.fold)

    running = asyncio.create_task(context.engine.generate(job, on_step))
    try:
        while not running.done() and racing():
            await asyncio.wait((running,), timeout=POLL_S)
    finally:
        running.cancel()
        await asyncio.wait((running,), timeout=STOP_S)
    if not running.done():
        raise base.EngineDead("the engine does not stop when told to")
    if not running.cancelled() and (error := running.exception()) is not None:
        raise error
    return has_token and racing()
