"""A request that no worker claims ends all the same."""

from __future__ import annotations

from gateway.requests import expiry
from tailrace.protocol import records, topics
from tests.support import gateway_parts, log_contract
from tests.support.gateway_parts import ALICE, create

LATER_S = 600.0 + expiry.GRACE_S


class Time:
    """Seconds that only a test advances."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


async def test_a_request_of_a_pool_that_nobody_serves_expires_for_every_reader() -> None:
    """It was queued for ever, once its gateway had let go of it; also one that the log has lost, or
    that no worker can read."""
    time = Time()
    async with gateway_parts.running() as parts:
        ends = expiry.Expiry(parts.delivery, parts.operations, clock=time)
        with await parts.submission.submit(create(), ALICE) as stream:
            await ends.check()
            time.now += LATER_S - 1
            await ends.check()
            assert parts.tokens(records.Cancel) == []
            parts.broker.delete_below(topics.requests("default", "interactive"), 0, 1)
            time.now += 1
            await ends.check()
            await gateway_parts.all_events(stream)
            assert stream.final is not None
            assert (stream.final["status"], stream.final["error"]["code"]) == ("failed", "expired")
            await ends.check()
        async with gateway_parts.running(parts.broker) as other:
            snapshot = await other.delivery.find(stream.rid, stream.owner)
            assert snapshot.response == stream.final
        (cancel,) = parts.tokens(records.Cancel)
        assert isinstance(cancel, records.Cancel)
        assert cancel.failed == "expired"


async def test_a_request_that_another_gateway_took_and_forgot_expires_where_it_is_looked_up() -> (
    None
):
    time = Time()
    async with gateway_parts.running() as parts:
        with await parts.submission.submit(create(), ALICE) as stream:
            async with gateway_parts.running(parts.broker) as other:
                ends = expiry.Expiry(other.delivery, other.operations, clock=time)
                await other.delivery.find(stream.rid, stream.owner)
                await ends.check()
                time.now += LATER_S
                await ends.check()
            await log_contract.until(lambda: parts.tokens(records.Cancel))


async def test_a_request_that_a_worker_has_claimed_does_not_expire() -> None:
    time = Time()
    async with gateway_parts.running() as parts:
        ends = expiry.Expiry(parts.delivery, parts.operations, clock=time)
        with await parts.submission.submit(create(store=False), ALICE) as stream:
            await ends.check()
            parts.answer(stream.rid, "half", end=False)
            await log_contract.until(lambda: stream.subscription.state.next)
            time.now += LATER_S
            await ends.check()
            assert parts.tokens(records.Cancel) == []
