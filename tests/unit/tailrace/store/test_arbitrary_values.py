"""What lies in Redis may be anything. What cannot be decoded is absent; the rest is plausible."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import hypothesis
import hypothesis.strategies as st
import msgspec

from gateway import cache
from gateway.load import backlog, worker_registry
from gateway.responses import context
from tailrace import fair_queue
from tailrace.auth.principal import InvalidCredential, Principal
from tailrace.protocol import errors, ids, records
from tailrace.store import (
    answers,
    breakers,
    canaries,
    idempotency,
    limits,
    prefixes,
    queues,
    redis_store,
    sessions,
    tickets,
    workers,
)
from tests.support import cases

RID = ids.mint(ids.Address(b"abcd", 3, 7), b"0" * 11)
OWNER = records.Owner("https://tests", "alice")
PRINCIPAL = Principal("https://tests", "alice", None, frozenset(), 2_000_000_000)

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
# Bytes of any kind, JSON of any shape, and JSON that is nearly what belongs there.
SHAPED = {
    "role": st.sampled_from(["user", "assistant", "boss"]) | json_values,
    "content": st.text() | json_values,
}
almost: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {},
    optional={
        "owner": st.just({"issuer": OWNER.issuer, "subject": OWNER.subject}) | json_values,
        "messages": st.lists(st.fixed_dictionaries({}, optional=SHAPED), max_size=3) | json_values,
        "partition": st.integers() | json_values,
        "cached_tokens": st.integers() | json_values,
        "worker": st.text() | json_values,
        "issuer": st.text() | json_values,
        "subject": st.text() | json_values,
        "tenant": st.none() | st.text() | json_values,
        "scopes": st.lists(st.text(), max_size=2) | json_values,
        "expires_at": st.integers() | json_values,
        "origin": st.none() | json_values,
        "state": st.sampled_from(["ready", "loading"]) | json_values,
        "detail": st.text() | json_values,
        "queued": st.integers() | st.floats(allow_nan=False) | json_values,
        "tokens_per_s": st.floats(min_value=0, max_value=1e-300) | json_values,
    },
)
VALUES = st.binary(max_size=64) | st.builds(msgspec.json.encode, json_values | almost)
anything = VALUES | st.none()
ANSWERS = anything | st.integers() | st.lists(anything | st.integers() | st.text(), max_size=4)


class Fixed:
    """A Redis that answers everything alike."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    async def execute(self, *_command: Any, patient: bool = False) -> Any:
        return self.answer


def store_of(answer: Any) -> redis_store.RedisStore:
    return Fixed(answer)  # type: ignore[return-value]


@hypothesis.given(st.lists(ANSWERS, max_size=6) | ANSWERS)
@hypothesis.example([b"\xff", b"9" * 400, b'{"by":"g","opened":1,"reason":"failed"}'])
@hypothesis.example([b"p", b"1e+15", b'{"by":"g","opened":1,"reason":"failed"}'])
@hypothesis.example([b"p", b"1000", b'{"by":"g","opened":1,"reason":"<b>now</b>"}'])
async def test_an_open_breaker_has_a_plain_reason_and_a_bounded_time(answer: Any) -> None:
    for found in (await breakers.Breakers(store_of(answer)).list_open()).values():
        assert 0 <= found.for_s <= breakers.MOST_S
        assert found.reason.replace("_", "a").isalpha()
        assert 1 <= found.opened <= 1_000
    for returned in (await canaries.Canaries(store_of(answer)).list_returned()).values():
        assert 0 <= returned.for_s <= canaries.MOST_S
        assert returned.reason.replace("_", "a").isalpha()


@hypothesis.given(ANSWERS)
@hypothesis.example(b"\xff")
@hypothesis.example(b"resp_" + b"!" * 32)
async def test_an_idempotency_key_leads_to_a_response_id_or_is_free(answer: Any) -> None:
    held = await idempotency.IdempotencyKeys(store_of(answer)).claim_key("p", "k", RID, 1.0)
    ids.parse(held)


@hypothesis.given(ANSWERS)
@hypothesis.example(b'{"owner":{"issuer":"https://tests","subject":"alice"},"messages":[{}]}')
async def test_a_session_is_absent_or_continues(answer: Any) -> None:
    found = context.decode(await sessions.Sessions(store_of(answer)).get_turn(RID), OWNER)
    for message in context.last_turns(found or []):
        assert message["role"] in ("system", "user", "assistant")
        assert isinstance(message["content"], str)


@hypothesis.given(ANSWERS)
async def test_a_ticket_is_refused_or_a_principal(answer: Any) -> None:
    try:
        found = await tickets.Tickets(store_of(answer)).consume_ticket("x" * 22, None)
    except InvalidCredential:
        return
    assert found.issuer
    assert found.subject
    assert 0 < found.expires_at < 2**53


@hypothesis.given(ANSWERS)
@hypothesis.example([b"0123456789ab 5 1\n" * 3, b"0123456789ab 999999999 1", None, "x"])
async def test_what_workers_hold_is_a_number_of_tokens(answer: Any) -> None:
    found = await prefixes.Prefixes(store_of(answer)).held("p", ["d"] * 4)
    assert all(0 < tokens <= prefixes.MAX_TOKENS for tokens in found.values())


@hypothesis.given(ANSWERS)
@hypothesis.example(b'{"rid":"resp_a","ids":[1,-1],"prompt_tokens":1,"made_by":""}')
@hypothesis.example(b'{"rid":"resp_a","ids":[4294967296],"prompt_tokens":1,"made_by":""}')
@hypothesis.example(b'{"rid":"","ids":[1],"prompt_tokens":1,"made_by":""}')
async def test_an_answer_is_absent_or_has_ids(answer: Any) -> None:
    found = await answers.Answers(store_of(answer)).find("p", "d")
    if found is not None:
        assert found.rid
        assert 0 < len(found.ids) <= answers.MAX_IDS
        assert all(0 <= each < 2**32 for each in found.ids)


@hypothesis.given(ANSWERS)
async def test_a_token_bucket_answers_with_numbers_or_not_at_all(answer: Any) -> None:
    charged = await cache.Cache(store_of(answer)).consume_tokens("p", 1.0, 1.0, 10.0, "requests")
    if charged is not None:
        assert isinstance(charged, limits.Verdict)
        assert math.isfinite(charged.retry_after_s)
        errors.rate_limit_exceeded(charged.retry_after_s, "requests")


def batch_wait(principal: str, *beats: Mapping[str, Any]) -> float | None:
    """Of a request behind nine of alice's at each worker, which these do not count."""
    placements = backlog.Placements()
    for beat in beats * 9:
        placements.add(str(beat.get("incarnation", "")), "alice", 1)
    return backlog.from_heartbeats(beats, placements).wait_s("batch", principal)


@hypothesis.given(st.lists(anything, max_size=8) | anything)
@hypothesis.example(
    [
        b"w",
        b"1000",
        b'{"state":"ready","waiting_tokens":[1000,"x"],"drain_rate":1e-200,"capacity":[1]}',
    ]
)
@hypothesis.example([b"w", b"1000", b'{"state":"ready","waiting_tokens":[1000],"drain_rate":true}'])
@hypothesis.example(
    [b"w", b"1000", b'{"state":"ready","waiting_tokens":[1,9],"drain_rate":5,"batch_share":1e-300}']
)
async def test_heartbeats_yield_a_state_and_a_wait_that_a_client_can_be_told(answer: Any) -> None:
    beats = await workers.Workers(store_of(answer)).list_workers("p")
    msgspec.json.encode(worker_registry.engine_state(beats))
    wait = batch_wait("alice", *beats)
    if wait is not None:
        told = errors.deadline_not_met(wait, 600)
        assert 1 <= int(told.headers["retry-after"]) <= errors.MAX_WAIT_S
        assert len(told.message) < 200


FIGURES = st.floats() | st.integers() | st.none() | st.booleans() | st.text(max_size=2)


@hypothesis.given(st.lists(FIGURES, max_size=4), st.lists(FIGURES, max_size=4), FIGURES)
@hypothesis.example([1e308], [1e308, 1e308, 1], 1e-300)
@hypothesis.example([5e-324], [math.inf, 1, math.inf], 5)
def test_waits_of_principals_yield_a_wait_that_a_client_can_be_told(
    waits: Any, others: Any, rate: Any
) -> None:
    beat = {"state": "ready", "waiting_tokens": [50, 100], "drain_rate": rate, "waits_s": others}
    beat |= {"waits_of": [fair_queue.waits_of("alice"), *waits], "batch_waits_s": waits}
    beat |= {"interactive_waits_s": others, "incarnation": waits and waits[0]}
    beats = [beat, {**beat, "drain_rate": 10}]
    for principal in ("alice", "bob"):
        wait = batch_wait(principal, *beats)
        if wait is not None:
            assert int(errors.deadline_not_met(wait, 600).headers["retry-after"]) >= 1


@cases.each("seconds", [math.nan, math.inf, -math.inf, 1e209, -3.0, 0.0])
def test_a_client_is_told_a_time_within_a_day(seconds: float) -> None:
    for told in (
        errors.overloaded(seconds),
        errors.rate_limit_exceeded(seconds),
        errors.too_many_look_ups(seconds),
        errors.unavailable(retry_after_s=seconds),
    ):
        assert 1 <= int(told.headers["retry-after"]) <= errors.MAX_WAIT_S
        assert 1 <= int(told.headers["retry-after-ms"]) <= errors.MAX_WAIT_S * 1000


PLACES = st.lists(anything | st.sampled_from([b"3 -", b"3 1.5", b"3 nan", b"-1 2.0"]), max_size=4)


@hypothesis.given(PLACES | anything)
@hypothesis.example([b"1 inf"])
@hypothesis.example([b"1 -1.0"])
@hypothesis.example([b"99999999999999999999 1.0"])
async def test_a_place_in_the_queue_is_absent_or_one_that_a_client_can_be_told(
    answer: Any,
) -> None:
    for place in (await queues.Queues(store_of(answer)).read("p", ["a", "b", "c"])).values():
        assert 0 <= place.position <= queues.MAX_POSITION
        assert place.eta_s is None or 0 <= place.eta_s <= queues.MAX_ETA_S
        json.dumps(place.member(), allow_nan=False)
