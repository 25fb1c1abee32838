"""Prompts that are too long, on the in-memory log (log rule §21)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tailrace.protocol import history, records, truncation
from tests.support import cases, memory_worker, waiting
from tests.support.memory_worker import Foreign, answer, cues, new_request
from tests.unit.worker.serving import test_response_task, test_serving_forks
from worker.engines import base, scripted
from worker.serving import truncation as worker_truncation
from worker.serving.outcome import Outcome

looks_often = test_response_task.looks_often
LENGTH = 400
TURN = "words " * 10


def dialogue(turns: int, *, instructions: str = "Be brief.") -> list[dict[str, Any]]:
    said: list[dict[str, Any]] = [{"role": "system", "content": instructions}]
    for n in range(turns):
        said.append({"role": "user", "content": f"{n} {TURN}"})
        said.append({"role": "assistant", "content": f"answer {n} {TURN}"})
    return [*said, {"role": "user", "content": "and now?"}]


def engine(length: int = LENGTH) -> scripted.Scripted:
    return scripted.Scripted(capacity=4, max_model_len=length)


async def tokens_of(request: records.Request, dropped: int) -> int:
    messages = truncation.without_dropped(request.messages, dropped)
    shown = msgspec.structs.replace(request, messages=messages)
    return len(await engine(1 << 20).encode(shown))


@cases.each("turns", [0, 1, 5, 30, 200])
@cases.each("room", [1, 40, 10_000])
async def test_as_few_messages_as_possible_are_left_out(turns: int, room: int) -> None:
    async with memory_worker.worker(engine=engine()) as worker:
        request = new_request(
            worker.memory,
            messages=dialogue(turns),
            truncate=True,
            sampling=records.Sampling(room),
            metadata=cues(20),
        )
        assert await worker.serve(request).outcome() is Outcome.DONE
        response = answer(worker.memory, request.rid)
        dropped = response.claims[0].dropped
        wanted = min(room, LENGTH // worker_truncation.ANSWER_SHARE)
        at = truncation.counts(request.messages).index(dropped)
        assert await tokens_of(request, dropped) + wanted <= LENGTH
        if at:
            fewer = truncation.counts(request.messages)[at - 1]
            assert await tokens_of(request, fewer) + wanted > LENGTH
        shown = truncation.without_dropped(request.messages, dropped)
        assert response.text == scripted.expected_text(shown, min(room, 20))
        assert response.ended.usage.input_tokens == await tokens_of(request, dropped)
        test_serving_forks.passes(worker.memory, request)


async def test_without_it_a_long_prompt_is_refused() -> None:
    async with memory_worker.worker(engine=engine()) as worker:
        request = new_request(worker.memory, messages=dialogue(30), metadata=cues(20))
        assert await worker.serve(request).outcome() is Outcome.DONE
        response = answer(worker.memory, request.rid)
        assert response.ended.error is not None
        assert response.ended.error[0] == "context_length_exceeded"
        assert response.claims[0].dropped == 0


async def test_what_must_stay_may_be_too_long() -> None:
    """Instructions and the last question: the error says how long they are."""
    async with memory_worker.worker(engine=engine()) as worker:
        messages = dialogue(3, instructions="law " * 400)
        request = new_request(worker.memory, messages=messages, truncate=True)
        assert await worker.serve(request).outcome() is Outcome.DONE
        response = answer(worker.memory, request.rid)
        assert response.ended.error is not None
        code, message = response.ended.error
        assert code == "context_length_exceeded"
        assert f"resulted in {await tokens_of(request, 6)} tokens" in message


async def test_an_answer_gets_what_is_left_where_all_else_is_left_out() -> None:
    """There is less room than wanted, and more cannot be left out."""
    async with memory_worker.worker(engine=engine()) as worker:
        messages = dialogue(3, instructions="law " * 320)
        request = new_request(worker.memory, messages=messages, truncate=True, metadata=cues(9))
        length = await tokens_of(request, 6)
        assert LENGTH * 3 // 4 < length < LENGTH
        assert await worker.serve(request).outcome() is Outcome.DONE
        response = answer(worker.memory, request.rid)
        assert (response.ended.status, response.claims[0].dropped) == ("completed", 6)


@pytest.mark.parametrize("frames", [0, 7])
async def test_a_takeover_has_the_prompt_that_the_first_claim_says(frames: int) -> None:
    """Also where it would leave out fewer messages itself."""
    async with memory_worker.worker(engine=engine(100_000)) as worker:
        request = new_request(worker.memory, messages=dialogue(5), truncate=True, metadata=cues(20))
        shown = truncation.without_dropped(request.messages, 4)
        other = Foreign(worker.memory, request)
        model = scripted.Scripted.model_rev, scripted.Scripted.tokenizer_digest
        at = (memory_worker.REQUESTS, 0, *model)
        other.write(
            records.Claim(
                request.rid, "a", None, request.owner, other.name, *at, 99, request.echo, dropped=4
            )
        )
        if frames:
            made = scripted.expected_ids(shown, frames)
            text = scripted.Detokenizer().push(made)
            other.write(records.Tok(request.rid, "a", 0, made, text, "0" * 16))
        await worker.caught_up()
        job = worker.serve(request)
        worker.time.advance(30)
        assert await job.outcome() is Outcome.DONE
        response = answer(worker.memory, request.rid)
        assert response.fold.ids == scripted.expected_ids(shown, 20)
        assert response.fold.dropped == 4
        assert [claim.dropped for claim in response.claims] == [4, 0]
        assert response.ended.usage.input_tokens == await tokens_of(request, 4)


async def test_another_first_claim_counts_after_the_prompt_was_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two workers make a prompt of the request; the one that claims later renders it again."""
    async with memory_worker.worker(engine=engine()) as worker:
        request = new_request(
            worker.memory, messages=dialogue(30), truncate=True, metadata=cues(20)
        )
        other = Foreign(worker.memory, request)
        encode = worker_truncation.encode
        said: list[int | None] = []

        async def late(of: base.Engine, asked: records.Request, first: int | None) -> Any:
            prompt = await encode(of, asked, first)
            if not said:
                other.write(
                    records.Claim(
                        request.rid,
                        "a",
                        None,
                        request.owner,
                        other.name,
                        memory_worker.REQUESTS,
                        0,
                        scripted.Scripted.model_rev,
                        scripted.Scripted.tokenizer_digest,
                        dropped=60,
                    )
                )
            said.append(first)
            return prompt

        monkeypatch.setattr(worker_truncation, "encode", late)
        job = worker.serve(request)

        def over() -> bool:
            worker.time.advance(5)
            return job.task.done()

        await waiting.eventually(over, "it took over", every_s=0.02)
        assert await job.outcome() is Outcome.DONE
        response = answer(worker.memory, request.rid)
        assert response.fold.dropped == 60
        assert said == [None, 60]
        assert response.fold.ids == scripted.expected_ids(
            truncation.without_dropped(request.messages, 60), 20
        )


async def test_calls_and_their_outputs_are_left_out_together() -> None:
    """Of one long turn: its question stays, and the last call with its output."""
    calls: list[dict[str, Any]] = []
    for n in range(12):
        call = {"id": f"c{n}", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        calls.append({"role": "assistant", "content": TURN, "tool_calls": [call]})
        calls.append({"role": "tool", "tool_call_id": f"c{n}", "content": TURN})
    async with memory_worker.worker(engine=engine()) as worker:
        messages = [{"role": "user", "content": "work"}, *calls]
        request = new_request(worker.memory, messages=messages, truncate=True, metadata=cues(5))
        assert await worker.serve(request).outcome() is Outcome.DONE
        response = answer(worker.memory, request.rid)
        dropped = response.claims[0].dropped
        assert 0 < dropped < 23
        assert dropped % 2 == 0
        shown = [messages[0], *messages[1 + dropped :]]
        assert response.text == scripted.expected_text(shown, 5)


async def test_history_says_what_was_left_out() -> None:
    async with memory_worker.worker(engine=engine()) as worker:
        request = new_request(
            worker.memory, messages=dialogue(30), truncate=True, metadata=cues(20)
        )
        assert await worker.serve(request).outcome() is Outcome.DONE
        written = answer(worker.memory, request.rid)
        of = history.from_records(request, written.records, 1)
        again = history.decode(history.encode(of))
        assert again is not None
        assert again.dropped == written.fold.dropped > 0
        claims = [r for r in history.to_records(again) if isinstance(r, records.Claim)]
        assert [c.dropped for c in claims] == [again.dropped]


async def test_other_refusals_are_told_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the prompt without its oldest messages could be served."""
    async with memory_worker.worker(engine=engine()) as worker:
        request = new_request(worker.memory, messages=dialogue(30), truncate=True)
        encode = worker.engine.encode

        async def refuse(asked: records.Request) -> list[int]:
            if asked.messages == request.messages:
                raise base.Refused("invalid_prompt", "no")
            return await encode(asked)

        monkeypatch.setattr(worker.engine, "encode", refuse)
        assert await worker.serve(request).outcome() is Outcome.DONE
        assert answer(worker.memory, request.rid).ended.error == ("invalid_prompt", "no")


async def test_a_prompt_that_lacks_messages_is_not_what_its_digests_name() -> None:
    async with memory_worker.worker(engine=engine()) as worker:
        for turns in (30, 1):
            messages = dialogue(turns)
            digests = [str(n) for n, _ in enumerate(messages)]
            request = new_request(
                worker.memory, messages=messages, prefix=digests, truncate=True, metadata=cues(2)
            )
            assert await worker.serve(request).outcome() is Outcome.DONE
            dropped = answer(worker.memory, request.rid).claims[0].dropped
            table = worker.context.prefixes.table(worker.time.now)
            assert (dropped > 0, bool(table)) == (turns == 30, turns == 1)
