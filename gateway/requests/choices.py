"""A request for several answers: one response for each, submitted all or none, followed as one."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from gateway.parsing import command
from gateway.requests import charging, submission
from gateway.requests.withdrawals import Withdrawals
from gateway.responses import response_stream
from tailrace.auth.principal import Principal
from tailrace.protocol import events, records

WITHDRAWAL_S: Final = 5.0  # a failed request waits at most this long for its withdrawals
_SEEDS: Final = 2**64
_SEED_LEAST: Final = -(2**63)


def nth(create: command.Create, index: int, among: int) -> command.Create:
    """The request for choice number `index` alone.

    Its number is part of its idempotency key, so that a repeated request finds each of its choices.
    `among` is its number among the choices of its prompt. It is added to the seed, so that these
    choices differ and other prompts change nothing (as in vLLM's server).
    """
    if not index:
        return create
    sampling, key = create.sampling, create.idempotency_key
    if sampling.seed is not None:
        seed = (sampling.seed + among - _SEED_LEAST) % _SEEDS + _SEED_LEAST
        sampling = msgspec.structs.replace(sampling, seed=seed)
    choice = create.choice
    return dataclasses.replace(
        create,
        choice=msgspec.structs.replace(choice, index=index) if choice is not None else None,
        sampling=sampling,
        idempotency_key=f"{key}\0choice {index}" if key is not None else None,
    )


def requests(
    create: command.Create, prompts: Sequence[command.Create] = ()
) -> list[command.Create]:
    """One request for each choice.

    Args:
        prompts: one request for each prompt, if `create` has several. The choices of the first
            prompt come first.
    """
    count = create.choices // max(1, len(prompts))
    each = [prompt for prompt in prompts or (create,) for _ in range(count)]
    return [nth(request, index, index % count) for index, request in enumerate(each)]


class Choices:
    """The streams of all choices: a context manager and a source of (index, event).

    Attributes:
        streams: one for each choice.
        rid: of the first choice.
        _waiting: the tasks that wait for the next events of each running choice.
    """

    def __init__(self, streams: Sequence[response_stream.ResponseStream]) -> None:
        self.streams = streams
        self._waiting: dict[int, asyncio.Task[list[events.Event]]] = {}
        self.rid = streams[0].rid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the answer, like `ResponseStream.headers`."""
        every = ", ".join(stream.rid for stream in self.streams)
        return {**self.streams[0].headers, "x-tailrace-response-id": every}

    @property
    def echoes(self) -> list[dict[str, Any]]:
        """The static parts of the Response objects."""
        return [stream.echo for stream in self.streams]

    @property
    def finals(self) -> list[dict[str, Any]]:
        """The final Response objects; empty until all choices have ended."""
        finals = [stream.final for stream in self.streams if stream.final is not None]
        return finals if len(finals) == len(self.streams) else []

    @property
    def ended(self) -> bool:
        """Whether no event follows: all choices have ended, or one has failed."""
        finals = [stream.final for stream in self.streams]
        failed = any(final is not None and final["status"] == "failed" for final in finals)
        return failed or None not in finals

    async def next_events(self) -> list[tuple[int, events.Event]]:
        """Wait for events of any choice. Returns and raises like `ResponseStream.next_events`."""
        for index, stream in enumerate(self.streams):
            if not stream.ended and index not in self._waiting:
                self._waiting[index] = asyncio.ensure_future(stream.next_events())
        if not self._waiting:
            return []
        await asyncio.wait(self._waiting.values(), return_when=asyncio.FIRST_COMPLETED)
        arrived = {i: task for i, task in self._waiting.items() if task.done()}
        for index, task in arrived.items():
            del self._waiting[index]
            charging.consume_exception(task)  # two may fail together, and one error is raised
        return [(index, event) for index, task in arrived.items() for event in task.result()]

    async def to_end(self) -> None:
        """Read all events. Raises like `next_events`."""
        await asyncio.gather(*(stream.to_end() for stream in self.streams))

    def keepalive(self) -> None:
        """Make a waiting `next_events` return."""
        for stream in self.streams:
            if not stream.ended:
                stream.keepalive()
                return

    def release(self) -> None:
        """Release all streams; idempotent."""
        for task in self._waiting.values():
            task.cancel()
        self._waiting = {}
        for stream in self.streams:
            stream.release()


async def submit(
    submitter: submission.Submission,
    withdrawals: Withdrawals,
    requests: Sequence[command.Create],
    principal: Principal,
) -> Choices:
    """Submit all choices of a request, or none: if one is refused or not written, the others are
    withdrawn before the client gets the error.

    Args:
        requests: one for each choice (`requests`).

    Raises:
        errors.ApiError: like `Submission.submit`.
    """
    if len(requests) == 1:
        return Choices([await submitter.submit(requests[0], principal)])
    tasks = [asyncio.ensure_future(submitter.submit(each, principal)) for each in requests]
    try:
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    except asyncio.CancelledError:
        # Pending submissions are cancelled; the streams of finished ones are released.
        for task in tasks:
            if task.done() and not task.cancelled() and task.exception() is None:
                task.result().release()
        raise
    streams = [each for each in outcomes if isinstance(each, response_stream.ResponseStream)]
    failures = [each for each in outcomes if isinstance(each, BaseException)]
    if not failures:
        return Choices(streams)
    for stream in streams:
        # A stream found by its idempotency key belongs to another request.
        request = records.decode_request(stream.request) if stream.submitted_here else None
        if request is not None:
            withdrawals.begin(request)
        stream.release()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(WITHDRAWAL_S):
            for stream in streams:
                await withdrawals.wait_for(stream.rid)
    raise failures[0]
