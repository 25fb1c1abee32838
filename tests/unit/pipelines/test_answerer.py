"""From a row to an answer, through attempts, schemas and judges."""

from __future__ import annotations

from typing import Any, cast

import pytest
import yaml

from pipelines import answerer, definition
from pipelines.gateway import Gateway, ModelResponse, Rejected
from pipelines.rows import Answer, Refusal, Row, Rows
from tailrace.log import Record
from tests.support import cases

TOLD: dict[str, Any] = {
    "name": "small-one",
    "version": 3,
    "input": {"topic": "in"},
    "prompt": {"user": "Rate {{ record.text }}"},
    "answer": {
        "type": "object",
        "properties": {"good": {"type": "boolean"}},
        "required": ["good"],
        "additionalProperties": False,
    },
    "output": {"topic": "out"},
    "dead_letters": {"topic": "dead"},
}


class Answers:
    """A gateway that answers by key or in turn, and remembers what it was asked."""

    def __init__(self, *answers: ModelResponse | Exception) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[dict[str, Any], str]] = []

    async def ask(self, body: dict[str, Any], key: str) -> ModelResponse:
        self.asked.append((body, key))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def ended(
    text: str, status: str = "completed", code: str = "", rid: str = "resp_1"
) -> ModelResponse:
    return ModelResponse(rid, status, text, code, "m", 10, 4)


def made(answers: Answers, **changes: Any) -> tuple[answerer.Answerer, Row, definition.Pipeline]:
    pipeline = definition.parse(yaml.safe_dump({**TOLD, **changes}))
    rows = Rows(pipeline)
    row = rows.read(Record("in", 1, 7, 99, None, b'{"text": "it"}', ()))
    return answerer.Answerer(pipeline, rows, cast(Gateway, answers)), row, pipeline


async def outcome(answers: Answers, **changes: Any) -> Answer | Refusal:
    it, row, _ = made(answers, **changes)
    return await it.outcome(row)


async def test_a_row_is_asked_once_with_its_place_as_the_key() -> None:
    answers = Answers(ended('{"good": true}'))
    it, row, pipeline = made(answers, max_output_tokens=9, seed=4, metadata={"a": "b"})
    assert await it.outcome(row) == Answer({"good": True}, "resp_1", "m", 10, 4)
    ((body, key),) = answers.asked
    assert key == f"small-one/{pipeline.revision}/in/1/7/99/1"
    assert "model" not in body
    assert body["input"] == [{"role": "user", "content": "Rate it"}]
    assert (body["service_tier"], body["max_output_tokens"], body["seed"]) == ("flex", 9, 4)
    assert body["metadata"] == {"a": "b", "pipeline": "small-one"}
    assert body["text"]["format"]["schema"] == TOLD["answer"]
    assert body["text"]["format"]["strict"] is True


async def test_the_interactive_class_is_the_usual_tier() -> None:
    answers = Answers(ended('{"good": true}'))
    await outcome(answers, priority="interactive", model="big")
    assert (answers.asked[0][0]["service_tier"], answers.asked[0][0]["model"]) == ("auto", "big")


REFUSALS = [
    (ended("{"), "no_json", "resp_1"),
    (ended('{"good": tr', "incomplete", "max_output_tokens"), "incomplete", "resp_1"),
    (ended('{"good": 1}'), "schema", "resp_1"),
    (ended('{"good": true, "bad": 1}'), "schema", "resp_1"),
    (Rejected("context_length_exceeded", "too long"), "context_length_exceeded", ""),
]


@cases.each(("answer", "reason", "response"), REFUSALS, ids=[r[1] for r in REFUSALS])
async def test_what_is_no_answer_is_refused_with_the_reason(
    answer: ModelResponse | Exception, reason: str, response: str
) -> None:
    row_outcome = await outcome(Answers(answer))
    assert isinstance(row_outcome, Refusal)
    assert (row_outcome.reason, row_outcome.response) == (reason, response)
    assert row_outcome.detail


async def test_without_a_schema_any_text_is_an_answer() -> None:
    row_outcome = await outcome(
        Answers(ended("{ cut", "incomplete", "max_output_tokens")), answer=None
    )
    assert row_outcome == Answer("{ cut", "resp_1", "m", 10, 4, 1, incomplete=True)


async def test_a_response_that_failed_is_asked_for_under_the_next_key() -> None:
    answers = Answers(ended("", "failed", "server_error"), ended('{"good": true}', rid="resp_2"))
    row_outcome = await outcome(answers)
    assert row_outcome == Answer({"good": True}, "resp_2", "m", 10, 4, requests=2)
    assert [key.rsplit("/", 1)[1] for _, key in answers.asked] == ["1", "2"]


async def test_attempts_end() -> None:
    row_outcome = await outcome(Answers(*[ended("", "failed", "server_error")] * 3), attempts=3)
    assert isinstance(row_outcome, Refusal)
    assert (row_outcome.reason, row_outcome.requests) == ("server_error", 3)


async def test_a_request_that_expired_is_no_attempt() -> None:
    expired = [ended("", "failed", "expired")] * (answerer.MOST_EXPIRED - 1)
    row_outcome = await outcome(Answers(*expired, ended('{"good": true}')), attempts=1)
    assert isinstance(row_outcome, Answer)
    assert row_outcome.requests == answerer.MOST_EXPIRED
    row_outcome = await outcome(Answers(*expired, expired[0]), attempts=1)
    assert isinstance(row_outcome, Refusal)
    assert row_outcome.reason == "expired"


RANK = {
    "rank": {"candidates": 3, "judge": {"user": "Of {{ candidates | tojson }}"}},
    "answer": None,
}


async def test_the_judge_names_the_best_candidate() -> None:
    answers = Answers(ended("a"), ended("b", rid="resp_b"), ended("c"), ended("I take 2."))
    row_outcome = await outcome(answers, **RANK, seed=10)
    assert row_outcome == Answer("b", "resp_b", "m", 40, 16, requests=4, candidates=3)
    keys = [key.split("/")[-2:] for _, key in answers.asked]
    assert keys == [["c1", "1"], ["c2", "1"], ["c3", "1"], ["judge", "1"]]
    assert [body.get("seed") for body, _ in answers.asked] == [10, 11, 12, 10]
    assert answers.asked[3][0]["input"][0]["content"] == 'Of ["a", "b", "c"]'


@cases.each("said", ["", "none of them", "0", "4", "99999999999999"])
async def test_a_judge_that_names_none_means_the_first(said: str) -> None:
    row_outcome = await outcome(Answers(ended("a"), ended("b"), ended("c"), ended(said)), **RANK)
    assert isinstance(row_outcome, Answer)
    assert row_outcome.value == "a"


async def test_a_candidate_that_is_refused_is_left_out() -> None:
    lost = Rejected("some_code", "no")
    answers = Answers(lost, ended("b"), ended("c"), ended("2"))
    row_outcome = await outcome(answers, **RANK)
    assert isinstance(row_outcome, Answer)
    assert (row_outcome.value, row_outcome.candidates) == ("c", 2)
    row_outcome = await outcome(Answers(lost, ended("b"), lost), **RANK)
    assert isinstance(row_outcome, Answer)
    assert (row_outcome.value, row_outcome.candidates) == ("b", 1)
    row_outcome = await outcome(Answers(lost, lost, lost), **RANK)
    assert isinstance(row_outcome, Refusal)
    assert row_outcome.reason == "some_code"


STORES = ["vs_" + "a" * 32, "vs_" + "b" * 32]


@pytest.mark.parametrize(
    ("told", "tool"),
    [
        ({}, {"max_num_results": 5}),
        (
            {
                "results": 9,
                "score": 0.25,
                "filters": {
                    "type": "or",
                    "filters": [
                        {"type": "eq", "key": "old", "value": False},
                        {"type": "in", "key": "n", "value": [1, "2"]},
                    ],
                },
            },
            {
                "max_num_results": 9,
                "ranking_options": {"score_threshold": 0.25},
                "filters": {
                    "type": "or",
                    "filters": [
                        {"type": "eq", "key": "old", "value": False},
                        {"type": "in", "key": "n", "value": [1, "2"]},
                    ],
                },
            },
        ),
    ],
)
async def test_the_gateway_is_told_what_to_retrieve(
    told: dict[str, Any], tool: dict[str, Any]
) -> None:
    answers = Answers(ended('{"good": true}')._replace(searched=True))
    assert isinstance(await outcome(answers, retrieve={"stores": STORES, **told}), Answer)
    ((body, _),) = answers.asked
    assert body["tools"] == [{"type": "file_search", "vector_store_ids": STORES, **tool}]


async def test_candidates_see_passages_and_the_judge_sees_none() -> None:
    cited = {"file_id": "file-1", "filename": "a.md", "index": 2}
    each = [ended(text)._replace(searched=True) for text in ("a", "b", "c")]
    answers = Answers(each[0], each[1]._replace(citations=(cited,)), each[2], ended("2"))
    row_outcome = await outcome(answers, **RANK, retrieve={"stores": STORES})
    assert isinstance(row_outcome, Answer)
    assert (row_outcome.value, row_outcome.citations) == ("b", (cited,))
    assert ["tools" in body for body, _ in answers.asked] == [True, True, True, False]


async def test_an_answer_without_a_search_is_none() -> None:
    row_outcome = await outcome(Answers(ended('{"good": true}')), retrieve={"stores": STORES})
    assert isinstance(row_outcome, Refusal)
    assert (row_outcome.reason, row_outcome.response, row_outcome.input_tokens) == (
        "not_searched",
        "resp_1",
        10,
    )


async def test_citations_are_passed_on() -> None:
    cited = {"file_id": "file-1", "filename": "a.md", "index": 2}
    row_outcome = await outcome(Answers(ended('{"good": true}')._replace(citations=(cited,))))
    assert isinstance(row_outcome, Answer)
    assert row_outcome.citations == (cited,)


async def test_without_stores_no_tool_is_named() -> None:
    answers = Answers(ended('{"good": true}'))
    await outcome(answers)
    assert "tools" not in answers.asked[0][0]


def test_a_schema_that_is_none_is_named() -> None:
    with pytest.raises(definition.Invalid, match="answer"):
        made(Answers(), answer={"type": "nonsense"})
