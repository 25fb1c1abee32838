"""Serving responses that continue the text of others, on the in-memory log (log rule §23)."""

from __future__ import annotations

import msgspec
import pytest

from tailrace.protocol import records
from tests.support import cases, memory_worker
from tests.support.memory_log import MemoryLog
from tests.support.memory_worker import Foreign, answer, cues, new_request
from tests.unit.worker.serving import test_response_task
from tests.unit.worker.serving.test_serving_forks import done, judged
from worker.engines import scripted
from worker.serving.outcome import Outcome

looks_often = test_response_task.looks_often
TOKENS = 40


def continued(cut: records.Request, memory: MemoryLog, text: str) -> records.Request:
    """A continuation as a gateway makes it."""
    rid = new_request(memory).rid
    return msgspec.structs.replace(
        cut,
        rid=rid,
        echo={**cut.echo, "id": rid},
        messages=[*cut.messages, {"role": "assistant", "content": text}],
        sampling=records.Sampling(100_000),
        continue_final=True,
        previous=cut.rid,
        input=[],
    )


@pytest.mark.parametrize("bound", range(1, 32, 3))
@pytest.mark.parametrize("metadata", [cues(TOKENS), {}], ids=["tokens", "readable"])
async def test_both_texts_together_are_the_whole_answer(
    bound: int, metadata: dict[str, str]
) -> None:
    async with memory_worker.worker() as worker:
        cut = new_request(
            worker.memory, metadata=metadata, sampling=records.Sampling(max_tokens=bound)
        )
        first = await done(worker, cut)
        said = first.text.rstrip("\ufffd")
        rest = continued(cut, worker.memory, said)
        second = await done(worker, rest)
        whole = scripted.readable_text(cut.messages)
        if metadata:
            whole = scripted.expected_text(cut.messages, TOKENS)
        assert said + second.text == whole
        assert second.ended.reason == "stop"
        passed = judged(worker.memory, cut, rest)
        assert passed.failed() == []
        assert passed.results["L15"].count == 1


async def test_a_text_that_is_no_beginning_is_a_part_of_the_prompt() -> None:
    async with memory_worker.worker() as worker:
        cut = new_request(worker.memory, metadata=cues(TOKENS))
        rest = continued(cut, worker.memory, "Something else.")
        response = await done(worker, rest)
        assert response.text == scripted.expected_text(rest.messages, TOKENS)


@cases.each("cut_at", [0, 1, 7])
async def test_a_takeover_goes_on_behind_the_same_text(cut_at: int) -> None:
    async with memory_worker.worker() as worker:
        cut = new_request(
            worker.memory, metadata=cues(TOKENS), sampling=records.Sampling(max_tokens=12)
        )
        said = (await done(worker, cut)).text.rstrip("\ufffd")
        rest = continued(cut, worker.memory, said)
        expected = list(scripted.answer(rest))
        other = Foreign(worker.memory, rest)
        engine = scripted.Scripted(capacity=1, max_model_len=8_192)
        other.claim("a", prompt_tokens=len(await engine.encode(rest)))
        if cut_at:
            text = scripted.Detokenizer().push(expected[:cut_at])
            state = answer(worker.memory, rest.rid).fold
            other.write(records.Tok(rest.rid, "a", 0, expected[:cut_at], text, state.h))
        await worker.caught_up()
        job = worker.serve(rest)
        worker.time.advance(30)
        assert await job.outcome() is Outcome.DONE
        response = answer(worker.memory, rest.rid)
        assert response.fold.epoch == 2
        assert response.fold.ids == expected
        assert said + response.text == scripted.expected_text(cut.messages, TOKENS)
        assert judged(worker.memory, cut, rest).failed() == []


async def test_an_engine_that_cannot_continue_text_refuses_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        scripted.Scripted, "features", scripted.Scripted.features - {"continuation"}
    )
    async with memory_worker.worker() as worker:
        rest = continued(new_request(worker.memory), worker.memory, "You")
        response = await done(worker, rest)
        assert response.ended.error is not None
        assert response.ended.error[0] == "unsupported_parameter"
