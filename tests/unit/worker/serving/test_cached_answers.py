"""Answers that are given again, on the in-memory log (log rule §24)."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from tailrace import log, settings
from tailrace.protocol import equal_requests, events, ids, records, topics
from tailrace.store.answers import MAX_IDS, Answer, Answers
from tests.support import cases, memory_worker
from tests.support.memory_log import MemoryLog
from tests.support.memory_redis import MemoryRedis
from tests.support.memory_worker import ENDLESS, POOL, Foreign, Time, Worker, answer, cues
from tests.support.waiting import eventually
from tests.unit.worker.serving import test_response_task, test_serving_items
from tests.unit.worker.serving.test_response_task import metered
from tests.unit.worker.serving.test_serving_fallback import judged, responses
from worker.engines import scripted
from worker.serving import cached_answers, replays
from worker.serving.attempt import Stop
from worker.serving.cached_answers import CachedAnswers
from worker.serving.outcome import Outcome
from worker.text.generation import Detokenizer

looks_often = test_response_task.looks_often
GREEDY = records.Sampling(1_000, temperature=0.0)


@contextlib.asynccontextmanager
async def worker(
    redis: MemoryRedis | None = None, ttl_s: float = 60.0, **options: Any
) -> AsyncIterator[Worker]:
    async with memory_worker.worker(**options) as node:
        node.context.answers = CachedAnswers(Answers(redis or MemoryRedis()), POOL, lambda: ttl_s)
        yield node


def asking(made: Worker, n: int = 20, **more: Any) -> records.Request:
    fields: dict[str, Any] = {"sampling": GREEDY, "metadata": cues(n), **more}
    return memory_worker.new_request(made.memory, **fields)


def key(request: records.Request, engine: scripted.Scripted) -> tuple[str | None, str | None]:
    return equal_requests.digest(request), cached_answers.answer_maker(request, engine)


async def served(made: Worker, request: records.Request) -> memory_worker.Answer:
    assert await made.serve(request).outcome() is Outcome.DONE
    await made.context.answers.stop()  # what is kept is there
    return answer(made.memory, request.rid)


def kept(memory: MemoryLog) -> list[log.Record]:
    return [r for r in memory.appended if r.topic == topics.HISTORY]


def given(found: memory_worker.Answer) -> str:
    return found.claims[0].answer_of


async def test_the_same_request_is_answered_once_more_without_the_engine() -> None:
    price = settings.Price(1, 1)
    async with worker(price=lambda _model: price) as node:
        first, second = asking(node), asking(node)
        expected = await served(node, first)
        response = await served(node, second)
        assert node.engine.attempts == 1
        assert (given(expected), given(response)) == ("", first.rid)
        assert (response.text, response.fold.ids) == (expected.text, expected.fold.ids)
        assert response.ended.usage == expected.ended.usage
        assert response.ended.usage.output_tokens == 20
        assert (response.ended.reason, response.ended.status) == ("stop", "completed")
        assert [each.answer_of for each in metered(node.memory)] == ["", first.rid]
        tokens = expected.ended.usage.input_tokens + 20
        assert [each.cost_nano for each in metered(node.memory)] == [1_000 * tokens, 0]
        assert given(await served(node, asking(node))) == first.rid  # not the second's
        judged(node.memory, "L1", "L2", "L5", "L6", "L9", "L16")


async def test_the_response_says_so_and_nothing_else_of_the_other_one() -> None:
    async with worker() as node:
        first, second = asking(node), asking(node)
        await served(node, first)
        await served(node, second)
        assert all(events.CACHED_ANSWER not in each for each in responses(node.memory, first))
        created, *later = responses(node.memory, second)
        assert events.CACHED_ANSWER not in created
        assert [each[events.CACHED_ANSWER] for each in later] == [True] * len(later)
        assert first.rid not in msgspec.json.encode(later).decode()


async def test_it_needs_no_slot() -> None:
    async with worker(capacity=1) as node:
        await served(node, asking(node))
        busy = memory_worker.new_request(node.memory, "busy", metadata=ENDLESS)
        node.serve(busy)
        await test_response_task.tokens(node.memory, busy.rid, 1)
        assert given(await served(node, asking(node)))


async def test_a_request_that_has_waited_is_looked_up_again() -> None:
    """Of equal requests that came together not all are generated."""
    time = Time()
    async with worker(capacity=1, memory=MemoryLog(clock=time), time=time) as node:
        busy = memory_worker.new_request(node.memory, "busy", metadata=ENDLESS)
        running = node.serve(busy)
        await test_response_task.tokens(node.memory, busy.rid, 1)
        requests = [asking(node) for _ in range(3)]
        waiting = [node.serve(each) for each in requests]
        turns = [each.serving.response for each in waiting]
        await eventually(lambda: all(each.turn for each in turns), "all wait")
        time.advance(5.0)
        Foreign(node.memory, busy).cancel()
        for each in (running, *waiting):
            assert await each.outcome() is Outcome.DONE
        named = [given(answer(node.memory, each.rid)) for each in requests]
        assert (named[0], bool(named[2])) == ("", True)


UNREPEATABLE: list[dict[str, Any]] = [
    {"sampling": records.Sampling(1_000)},
    {"sampling": records.Sampling(1_000, temperature=0.01)},
    {"sampling": records.Sampling(1_000, top_k=1)},
    {"sampling": records.Sampling(1_000, seed=1)},
    {"sampling": records.Sampling(1_000, temperature=0.0, logprobs=0)},
    {"cached_answers": False},
    {"generate": False},
    {"fork": records.Fork("resp_x", 1)},
    {"continue_final": True},
    {"embed": records.Embed(["x"])},
]


@cases.each("changed", UNREPEATABLE, ids=str)
async def test_what_must_be_generated(changed: dict[str, Any]) -> None:
    async with worker() as node:
        assert equal_requests.digest(asking(node, **changed)) is None


OTHERS: list[dict[str, Any]] = [
    {"text": "another"},
    {"model": "another"},
    {"owner": records.Owner("https://tests", "bob")},
    {"sampling": records.Sampling(1_000, temperature=0.0, stop=("x",))},
    {"sampling": records.Sampling(1_000, temperature=0.0, seed=1)},
    {"sampling": records.Sampling(1_000, temperature=0.0, logit_bias={"1": 1.0})},
    {"tools": [test_serving_items.TOOL]},
    {"format": {"type": "json_object"}},
    {"reasoning": {"effort": "low"}},
    {"truncate": True},
    {"raw": True},
    {"metadata": cues(21)},
    {"metadata": cues(20, script_sampling="1")},
]


@cases.each("changed", OTHERS, ids=str)
async def test_another_request_has_another_key(changed: dict[str, Any]) -> None:
    async with worker() as node:
        engine = node.engine
        one, other = asking(node), asking(node, **changed)
        assert key(one, engine) == key(asking(node), engine)
        assert key(one, engine) != key(other, engine)


async def test_the_key_is_of_the_engine_too() -> None:
    async with worker() as node:
        request, found = asking(node), set()
        for name, value in (("model_rev", "b"), ("tokenizer_digest", "b"), ("max_model_len", 9)):
            other = scripted.Scripted(capacity=1, max_model_len=8_192)
            setattr(other, name, value)
            found.add(cached_answers.answer_maker(request, other))
        found.add(cached_answers.answer_maker(request, node.engine))
        assert len(found) == 4
        assert None not in found


async def test_a_tenant_shares_its_answers() -> None:
    async with worker() as node:
        alice, bob = (records.Owner("https://tests", name, "shop") for name in ("alice", "bob"))
        first = asking(node, owner=alice)
        await served(node, first)
        response = await served(node, asking(node, owner=bob))
        assert given(response) == first.rid
        assert not given(
            await served(node, asking(node, owner=records.Owner("other", "bob", "shop")))
        )
        judged(node.memory, "L16")


async def test_an_answer_of_another_revision_is_not_given() -> None:
    redis = MemoryRedis()
    async with worker(redis) as node:
        await served(node, asking(node))
        node.engine.model_rev = "scripted-2"
        assert not given(await served(node, asking(node)))
        assert given(await served(node, asking(node)))


@cases.each(
    "first",
    [
        {"store": False},
        {"cached_answers": False},
        {"sampling": records.Sampling(10, temperature=0.0)},  # it is cut short
        {"metadata": cues(MAX_IDS + 1), "sampling": records.Sampling(10_000, temperature=0.0)},
    ],
    ids=str,
)
async def test_what_is_not_kept(first: dict[str, Any]) -> None:
    async with worker() as node:
        await served(node, asking(node, **first))
        sampling = records.Sampling(10_000, temperature=0.0)
        later = {**first, "store": True, "cached_answers": True, "sampling": sampling}
        assert not given(await served(node, asking(node, **later)))


async def test_an_answer_is_given_only_within_the_bound_of_the_request() -> None:
    async with worker() as node:
        await served(node, asking(node))
        short, long = (records.Sampling(n, temperature=0.0) for n in (20, 21))
        cut = await served(node, asking(node, sampling=short))
        assert (given(cut), cut.ended.reason) == ("", "length")
        whole = await served(node, asking(node, sampling=long))
        assert given(whole)
        assert whole.ended.reason == "stop"


async def test_nothing_is_given_where_the_pool_does_not_say_so() -> None:
    redis = MemoryRedis()
    async with worker(redis, ttl_s=0.0) as node:
        await served(node, asking(node))
        assert not given(await served(node, asking(node)))
        assert redis.values == {}


async def test_without_redis_every_answer_is_generated() -> None:
    redis = MemoryRedis()
    async with worker(redis) as node:
        await served(node, asking(node))
        redis.away = True
        assert not given(await served(node, asking(node)))
        redis.away = False
        redis.values.clear()  # emptied
        assert not given(await served(node, asking(node)))
        assert node.engine.attempts == 3
        assert given(await served(node, asking(node)))


@cases.each(
    "value",
    [b"", b"{", b"[]", b'{"rid":"resp_a","ids":[],"prompt_tokens":1}', b'{"rid":"resp_a"}'],
    ids=str,
)
async def test_garbage_in_redis_is_no_answer(value: bytes) -> None:
    redis = MemoryRedis()
    async with worker(redis) as node:
        await served(node, asking(node))
        redis.values = dict.fromkeys(redis.values, value)
        assert not given(await served(node, asking(node)))


class Picky(scripted.Scripted):
    """Does not know all ids."""

    def detokenizer(self, behind: Sequence[int] = ()) -> Detokenizer:
        class Knows(scripted.Detokenizer):
            def push(self, ids: Any) -> str:
                if 7 in ids:
                    raise ValueError("unknown id")
                return super().push(ids)

        return Knows()


async def test_an_answer_that_cannot_be_read_is_generated() -> None:
    redis = MemoryRedis()
    async with worker(redis, engine=Picky(capacity=1, max_model_len=8_192)) as node:
        expected = await served(node, asking(node))
        request = asking(node)
        digest, by = key(request, node.engine)
        assert digest is not None
        assert by is not None
        await Answers(redis).store(POOL, digest, Answer("resp_x", [7], 1, by), 60.0)
        response = await served(node, request)
        assert [claim.answer_of for claim in response.claims] == ["resp_x", ""]
        assert (response.fold.answer_of, response.fold.ids) == ("", expected.fold.ids)
        shown = responses(node.memory, request)
        assert events.CACHED_ANSWER not in shown[-1]
        judged(node.memory, "L1", "L6", "L9", "L16")


async def test_a_worker_that_leaves_yields_what_it_has_not_written() -> None:
    async with worker() as node:
        first, second = asking(node), asking(node)
        expected = await served(node, first)
        whole, serving = replays.Replays(), node.serve(second)

        class Slow:
            async def run(self, *arguments: Any) -> None:
                serving.serving.interrupt(Stop.DRAIN)
                node.context.replays = whole
                await whole.run(*arguments)

        node.context.replays = Slow()  # type: ignore[assignment]
        assert await serving.outcome() is Outcome.DONE
        response = answer(node.memory, second.rid)
        assert response.kinds[:2] == ["Claim", "Yield"]
        assert (given(response), response.fold.answer_of) == (first.rid, "")
        assert (response.text, response.fold.ids) == (expected.text, expected.fold.ids)
        judged(node.memory, "L1", "L6", "L9", "L16")


async def test_a_worker_that_takes_over_generates_the_rest() -> None:
    async with worker() as node:
        first, second = asking(node), asking(node)
        expected = await served(node, first)
        lost = Foreign(node.memory, second)
        claim = msgspec.structs.replace(
            expected.claims[0], rid=second.rid, own="lost", worker=lost.name, answer_of=first.rid
        )
        lost.write(msgspec.structs.replace(claim, echo=second.echo))
        lost.tokens("lost", 8)
        lost.yield_("lost")
        await node.caught_up()
        response = await served(node, second)
        assert node.engine.attempts == 2
        assert [each.answer_of for each in response.claims] == [first.rid, ""]
        assert (response.fold.answer_of, response.fold.ids) == (first.rid, expected.fold.ids)
        assert metered(node.memory)[-1].answer_of == first.rid
        judged(node.memory, "L1", "L6", "L9", "L16")


async def test_items_are_those_of_the_new_response() -> None:
    async with worker() as node:
        fields: dict[str, Any] = {
            "tools": [test_serving_items.TOOL],
            "reasoning": {"effort": "low"},
        }
        first, second = (
            asking(node, text=test_serving_items.QUESTION, metadata={}, **fields) for _ in range(2)
        )
        await served(node, first)
        response = await served(node, second)
        assert given(response) == first.rid
        shown = [test_serving_items.items(node.memory, each.rid) for each in (first, second)]
        assert shown[0] == shown[1]
        assert [kind for kind, _, _ in shown[0]] == ["r", "m", "c", "c"]
        called = test_serving_items.call_ids(node.memory, second.rid)
        assert called == [ids.call_id(second.rid, n) for n in range(2)]
        assert response.ended.usage.reasoning_tokens == response.fold.reasoning > 0
        judged(node.memory, "L1", "L5", "L6", "L9", "L16")


class Reader(scripted.Scripted):
    """Its parsers read the prompt: of a model that reasons, it says where that has ended.

    Attributes:
        prompts: what they read.
        longer: prompts have so many tokens more from now on.
    """

    def __init__(self) -> None:
        super().__init__(capacity=4, max_model_len=8_192)
        self.prompts: list[list[int]] = []
        self.longer = 0

    async def encode(self, request: records.Request) -> list[int]:
        return await super().encode(request) + [1] * self.longer

    async def item_parser(self, request: records.Request, prompt_ids: Sequence[int]) -> Any:
        self.prompts.append(list(prompt_ids))
        return await super().item_parser(request, prompt_ids)


async def test_a_parser_reads_the_prompt_of_an_answer_that_is_given_again() -> None:
    engine = Reader()
    async with worker(engine=engine) as node:
        tools: dict[str, Any] = {"tools": [test_serving_items.TOOL]}
        await served(node, asking(node, **tools))
        response = await served(node, asking(node, **tools))
        assert given(response)
        assert engine.prompts[0] == engine.prompts[1] != []
        assert response.claims[0].prompt_tokens == response.ended.usage.input_tokens
        engine.longer = 1  # as with a template that was changed
        assert not given(await served(node, asking(node, **tools)))
        assert len(engine.prompts[-1]) == len(engine.prompts[0]) + 1


async def test_a_stop_string_ends_it_at_the_same_place() -> None:
    async with worker() as node:
        text = (await served(node, asking(node))).text
        sampling = records.Sampling(1_000, temperature=0.0, stop=(text[30:36],))
        expected = await served(node, asking(node, sampling=sampling))
        response = await served(node, asking(node, sampling=sampling))
        assert given(response)
        assert response.text == expected.text == text[: text.index(text[30:36])]
        judged(node.memory, "L1", "L5", "L6", "L16")


async def test_another_pools_worker_gives_no_answers() -> None:
    async with worker() as node:
        await served(node, asking(node))
        node.context.models = frozenset(["small"])
        node.context.model, node.context.stands_in_for = "small", frozenset([memory_worker.MODEL])
        for n in (20, 21, 21):  # nor are they kept
            response = await served(node, asking(node, n))
            assert (given(response), response.fold.served) == ("", "small")
