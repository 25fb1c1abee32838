"""The bytes of requests that a process keeps are counted for their principal, and bounded."""

from __future__ import annotations

import pytest

from tailrace.delivery import kept_bytes
from tailrace.protocol import errors, records
from tailrace.settings.shapes import Limits
from tests.support import gateway_parts
from tests.support.gateway_parts import ALICE, BOB, create


def test_what_does_not_fit_is_refused_and_not_counted() -> None:
    kept = kept_bytes.KeptBytes(10)
    kept.reserve("alice", 10)
    with pytest.raises(errors.ApiError) as refused:
        kept.reserve("alice", 1)
    assert (refused.value.status, refused.value.code) == (429, "rate_limit_exceeded")
    kept.reserve("bob", 10)
    kept.release("alice", 10)
    assert (kept.of("alice"), kept.of("bob")) == (0, 10)


async def test_a_request_counts_while_it_runs_and_not_afterwards() -> None:
    async with gateway_parts.running() as parts:
        kept = parts.delivery.kept
        with await parts.submission.submit(create("x" * 500), ALICE) as stream:
            assert kept.of(ALICE.key) == len(records.encode(parts.requests()[0])) > 500
            parts.answer(stream.rid, "ho")
            await gateway_parts.all_events(stream)
        await parts.settled()
        assert kept.of(ALICE.key) == 0
        # What it was asked with is in the log.
        request = await parts.delivery.request_of(stream.rid, stream.owner)
        assert request.messages == [{"role": "user", "content": "x" * 500}]


async def test_over_the_bound_a_create_is_refused_and_nothing_is_written() -> None:
    kept = kept_bytes.KeptBytes(3000)
    async with gateway_parts.running(kept=kept) as parts:
        with await parts.submission.submit(create("x" * 500), ALICE) as first:
            with pytest.raises(errors.ApiError) as refused:
                await parts.submission.submit(create("x" * 500), ALICE)
            assert refused.value.status == 429
            assert [r.rid for r in parts.requests()] == [first.rid]
            with await parts.submission.submit(create("x" * 500), BOB) as other:
                parts.answer(other.rid)
            parts.answer(first.rid)
            await gateway_parts.all_events(first)
        with await parts.submission.submit(create("x" * 500), ALICE) as again:
            parts.answer(again.rid)


async def test_a_request_that_was_not_appended_counts_no_more() -> None:
    async with gateway_parts.running() as parts:
        parts.broker.fail_next_append()
        parts.broker.fail_next_append()
        with pytest.raises(errors.ApiError):
            await parts.submission.submit(create("x" * 500), ALICE)
        assert parts.delivery.kept.of(ALICE.key) == 0


async def test_a_client_that_follows_again_and_again_leaves_nothing_behind() -> None:
    async with gateway_parts.running() as parts:
        with await parts.submission.submit(create(), ALICE) as stream:
            for _ in range(20):
                followed = await parts.streams.follow(stream.rid, stream.owner)
                followed.release()
            assert parts.delivery.watchers(stream.rid) == 1
            assert not parts.tasks
            parts.answer(stream.rid)
            await gateway_parts.all_events(stream)


def test_the_default_of_the_setting_is_that_of_the_class() -> None:
    assert Limits().kept_bytes_per_principal == kept_bytes.MOST


def test_what_happens_to_an_account_after_its_end_counts_nowhere() -> None:
    kept = kept_bytes.KeptBytes()
    with kept.account("alice") as account:
        account.reserve(5)
    account.release(5)
    account.reserve(7)
    assert kept.of("alice") == 0
