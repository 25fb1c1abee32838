"""What is asked again, for how long, and what never."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from pipelines import gateway
from pipelines.gateway import Gateway, Rejected

RESPONSE: dict[str, Any] = {
    "id": "resp_1",
    "status": "completed",
    "model": "m",
    "output": [
        {"type": "reasoning"},
        {"type": "message", "content": [{"type": "output_text", "text": "He"}]},
        {"type": "message", "content": [{"type": "output_text", "text": "llo"}]},
    ],
    "usage": {"input_tokens": 5, "output_tokens": 2},
}


def refusal(status: int, code: str, **headers: str) -> httpx.Response:
    error = {"code": code, "message": f"because of {code}"}
    return httpx.Response(status, json={"error": error}, headers=headers)


class Asked:
    """A gateway that gives these answers in turn, and a clock that only sleeping moves."""

    def __init__(self, folder: Path, answers: list[httpx.Response | Exception]) -> None:
        self.requests: list[httpx.Request] = []
        self.slept: list[float] = []
        self.now = 0.0
        self.credential = folder / "credential"
        self.credential.write_text("one\n")
        self._answers = answers
        self.gateway = Gateway(
            "http://gateway",
            self.credential,
            "p",
            transport=httpx.MockTransport(self._answer),
            clock=lambda: self.now,
            sleep=self._sleep,
        )

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def _sleep(self, seconds: float) -> None:
        if seconds > 0:
            self.slept.append(seconds)
            self.now += seconds


@pytest.fixture
def asked(tmp_path: Path) -> Callable[..., Asked]:
    return lambda *answers: Asked(tmp_path, list(answers))


async def test_an_answer_is_read(asked: Callable[..., Asked]) -> None:
    it = asked(httpx.Response(200, json=RESPONSE))
    ended = await it.gateway.ask({"input": "x"}, "key")
    assert ended == gateway.Ended("resp_1", "completed", "Hello", "", "m", 5, 2)
    (request,) = it.requests
    assert request.headers["idempotency-key"] == "key"
    assert request.headers["authorization"] == "Bearer one"
    assert json.loads(request.content) == {"input": "x"}
    assert it.slept == []


WAITS: list[httpx.Response | Exception] = [
    httpx.ConnectError("refused"),
    httpx.ReadTimeout("slow"),
    httpx.Response(502, text="<html>"),
    httpx.Response(200, text="<html>"),
    httpx.Response(200, json={"id": "x"}),
    httpx.Response(200, json=[]),
    refusal(503, "outcome_unknown"),
    refusal(401, "invalid_credential"),
    refusal(403, "insufficient_scope"),
    refusal(404, "model_not_found"),
    refusal(429, "rate_limit_exceeded"),
]


@pytest.mark.parametrize("answer", WAITS, ids=repr)
async def test_what_may_pass_is_asked_again_under_the_same_key(
    asked: Callable[..., Asked], answer: httpx.Response | Exception
) -> None:
    it = asked(answer, answer, httpx.Response(200, json=RESPONSE))
    assert (await it.gateway.ask({}, "key")).response == "resp_1"
    assert [request.headers["idempotency-key"] for request in it.requests] == ["key"] * 3
    assert it.slept[0] >= gateway.FIRST_PAUSE_S
    assert it.slept[1] >= 2 * gateway.FIRST_PAUSE_S


@pytest.mark.parametrize("status", [400, 409, 413, 422])
async def test_what_is_wrong_with_the_request_is_not(
    asked: Callable[..., Asked], status: int
) -> None:
    it = asked(refusal(status, "some_code"))
    with pytest.raises(Rejected, match="because of some_code") as rejected:
        await it.gateway.ask({}, "key")
    assert rejected.value.code == "some_code"
    assert it.slept == []


async def test_the_wait_that_a_gateway_tells_is_that_of_every_row(
    asked: Callable[..., Asked],
) -> None:
    it = asked(
        refusal(429, "rate_limit_exceeded", **{"retry-after": "7"}),
        httpx.Response(200, json=RESPONSE),
        httpx.Response(200, json=RESPONSE),
    )
    await it.gateway.ask({}, "one")
    assert it.now >= 7
    it.now = 3.0
    await it.gateway.ask({}, "two")
    assert it.now >= 7, "who asks meanwhile waits, too"


async def test_a_credential_may_be_renewed(asked: Callable[..., Asked]) -> None:
    it = asked(refusal(401, "invalid_credential"), httpx.Response(200, json=RESPONSE))
    told = it.gateway._sleep

    async def renewed(seconds: float) -> None:
        it.credential.write_text("two")
        await told(seconds)

    it.gateway._sleep = renewed
    await it.gateway.ask({}, "key")
    assert it.requests[-1].headers["authorization"] == "Bearer two"


async def test_pauses_grow_up_to_a_bound(asked: Callable[..., Asked]) -> None:
    it = asked(*[httpx.ConnectError("no")] * 20, httpx.Response(200, json=RESPONSE))
    await it.gateway.ask({}, "key")
    assert max(it.slept) <= gateway.MOST_PAUSE_S * 1.3
