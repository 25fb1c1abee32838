"""Work of aiokafka's clients within a deadline. aiokafka swallows cancellations while it closes."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

# What has not ended yet. Held here, because an event loop holds its tasks only weakly.
_leftovers: set[asyncio.Task[Any]] = set()


async def finishes_within(
    work: Coroutine[Any, Any, Any], deadline_s: float, *, cancel: bool = True
) -> bool:
    """Whether the work ends well within the deadline.

    Otherwise it is cancelled and left alone: `wait_for` would wait for it without limit. With
    `cancel=False` it runs on in the background. When the caller is cancelled, the work still has
    its time: what it closes would stay open.
    """
    task = asyncio.create_task(work)
    _leftovers.add(task)
    task.add_done_callback(_leftovers.discard)
    task.add_done_callback(lambda t: t.cancelled() or t.exception())
    if cancel:
        timer = asyncio.get_running_loop().call_later(deadline_s, task.cancel)
        task.add_done_callback(lambda _: timer.cancel())
    await asyncio.wait({task}, timeout=deadline_s)
    return task.done() and not task.cancelled() and task.exception() is None


async def start_client(client: Any, deadline_s: float = float("inf")) -> None:
    """Start a client of aiokafka.

    A client that is cancelled while it makes a connection leaves that connection open. It may
    finish first, for a moment.

    Raises:
        TimeoutError: not within the deadline.
        ConnectionAbortedError: the client cancelled its own start.
    """
    starting = asyncio.create_task(client.start())
    try:
        await asyncio.wait({starting}, timeout=deadline_s if deadline_s < float("inf") else None)
        if not starting.done():
            raise TimeoutError
    except BaseException:
        await asyncio.wait({starting}, timeout=1.0)
        starting.cancel()
        await asyncio.wait({starting}, timeout=1.0)
        raise
    if starting.cancelled():  # by the client itself, not by the caller
        raise ConnectionAbortedError("the client gave up its start")
    starting.result()
