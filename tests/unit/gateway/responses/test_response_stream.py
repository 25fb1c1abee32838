"""A response as the connection that asked for it follows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gateway.responses import context, response_stream
from tailrace import telemetry
from tailrace.protocol import events, records

OWNER = records.Owner("i", "s")


class Subscription:
    """Gives what it was given."""

    def __init__(self, batches: list[list[events.Event]]) -> None:
        self.batches = batches

    async def next_events(self) -> list[events.Event]:
        return self.batches.pop(0) if self.batches else []


def event(delta: str | None = None, *, final: dict[str, Any] | None = None) -> events.Event:
    return events.Event(
        "t" if final is None else f"response.{final['status']}", 0, b"{}", delta, final
    )


def stream_of(
    batches: list[list[events.Event]],
    released: Callable[[response_stream.ResponseStream], None] | None = None,
    **more: Any,
) -> response_stream.ResponseStream:
    subscription: Any = Subscription(batches)
    return response_stream.ResponseStream(
        "resp_1", OWNER, {}, subscription, True, released or (lambda _stream: None), **more
    )


def counts(pool: str) -> list[float]:
    histograms = (telemetry.FIRST_TOKEN_SECONDS, telemetry.INTER_TOKEN_SECONDS)
    return [
        s.value
        for h in histograms
        for m in h.collect()
        for s in m.samples
        if s.name.endswith("_count") and s.labels["pool"] == pool
    ]


async def test_the_first_token_and_the_gaps_between_batches_are_measured_once_each() -> None:
    batches = [[event()], [event("a"), event("b")], [event()], [event("c")], [event("d"), event()]]
    run = stream_of(batches, pool="timed", awaited_since=1.0)
    while batches:
        await run.next_events()
    assert counts("timed") == [1, 2]


async def test_of_a_run_submitted_elsewhere_nothing_is_measured() -> None:
    batches = [[event("a")], [event("b")]]
    elsewhere = stream_of(batches, pool="untimed")
    while batches:
        await elsewhere.next_events()
    assert counts("untimed") in ([], [0, 0])


async def test_only_what_ended_well_is_remembered_with_its_answer() -> None:
    question = [{"role": "user", "content": "hi"}]
    request = records.encode(
        records.Request(
            "resp_1", records.Owner("i", "s"), "m", question, records.Sampling(1), {"id": "resp_1"}
        )
    )
    answer = {
        "status": "completed",
        "output": [
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "ho"}],
            }
        ],
    }
    well = stream_of([[event(final=answer)]], request=request)
    assert well.memory is None, "it has not ended"
    await well.next_events()
    assert well.memory is not None
    assert (well.memory.rid, context.unpack(well.memory.state)) == (
        "resp_1",
        [*question, {"role": "assistant", "content": "ho"}],
    )
    failed = stream_of([[event(final={"status": "failed", "output": []})]], request=request)
    await failed.next_events()
    assert failed.memory is None
    other_stream = stream_of([[event(final=answer)]])
    await other_stream.next_events()
    assert other_stream.memory is None, "a reader that only follows does not know the request"
