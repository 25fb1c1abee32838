"""What is asked again, for how long, and what never."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.parsing import multipart, uploads
from pipelines import gateway
from pipelines.documents import Document
from pipelines.gateway import Gateway, Rejected, StoreFile

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
        self.on_sleep: Callable[[], object] = lambda: None
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
        self.on_sleep()
        if seconds > 0:
            self.slept.append(seconds)
            self.now += seconds


@pytest.fixture
def asked(tmp_path: Path) -> Callable[..., Asked]:
    return lambda *answers: Asked(tmp_path, list(answers))


async def test_an_answer_is_read(asked: Callable[..., Asked]) -> None:
    it = asked(httpx.Response(200, json=RESPONSE))
    ended = await it.gateway.ask({"input": "x"}, "key")
    assert ended == gateway.ModelResponse("resp_1", "completed", "Hello", "", "m", 5, 2)
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
    refusal(404, "vector_store_not_found"),
    refusal(404, "not_offered"),
    refusal(400, "vector_store_limit_reached"),
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
    with pytest.raises(Rejected, match="because of some_code") as error:
        await it.gateway.ask({}, "key")
    assert error.value.code == "some_code"
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
    it.on_sleep = lambda: it.credential.write_text("two")
    await it.gateway.ask({}, "key")
    assert it.requests[-1].headers["authorization"] == "Bearer two"


async def test_pauses_grow_up_to_a_bound(asked: Callable[..., Asked]) -> None:
    it = asked(*[httpx.ConnectError("no")] * 20, httpx.Response(200, json=RESPONSE))
    await it.gateway.ask({}, "key")
    assert max(it.slept) <= gateway.MOST_PAUSE_S * 1.3


async def test_citations_of_files_are_read_behind_a_search(asked: Callable[..., Asked]) -> None:
    cited = {"type": "file_citation", "file_id": "file-1", "filename": "a.md", "index": 4}
    url = {"type": "url_citation", "url": "http://x", "start_index": 0, "end_index": 1}
    output = [
        {"type": "file_search_call", "id": "fs_1", "status": "completed", "queries": ["q"]},
        {
            "type": "message",
            "content": [{"type": "output_text", "text": "Yes", "annotations": [cited, url]}],
        },
    ]
    it = asked(httpx.Response(200, json={**RESPONSE, "output": output}))
    ended = await it.gateway.ask({}, "key")
    assert ended.text == "Yes"
    assert ended.searched
    assert ended.citations == ({"file_id": "file-1", "filename": "a.md", "index": 4},)
    it = asked(httpx.Response(200, json={**RESPONSE, "output": [output[1], output[1]]}))
    ended = await it.gateway.ask({}, "key")
    assert not ended.searched
    assert [each["index"] for each in ended.citations] == [4, 7]  # behind `Yes`


DOCUMENT = Document("größe.md", "Größe: 5".encode(), {"n": 1})
STORE = "vs_" + "a" * 32


def in_store(name: str, status: str = "completed", **more: Any) -> dict[str, Any]:
    return {"id": name, "status": status, "last_error": None, **more}


async def test_a_document_is_uploaded_under_its_key(asked: Callable[..., Asked]) -> None:
    made = httpx.Response(200, json={"id": "file-1", "object": "file"})
    it = asked(httpx.ConnectError("no"), refusal(503, "service_unavailable"), made)
    assert await it.gateway.upload(DOCUMENT, "key") == "file-1"
    assert [request.headers["idempotency-key"] for request in it.requests] == ["key"] * 3
    request = it.requests[2]
    sent = await request.aread()
    assert (request.method, request.url.path) == ("POST", "/v1/files")
    form = multipart.parse(request.headers["content-type"], bytearray(sent), uploads.FILE)
    given = uploads.parse(form)
    assert (given.filename, given.data, given.purpose, given.lives_s) == (
        "größe.md",
        DOCUMENT.text,
        "assistants",
        gateway.UPLOAD_LIVES_S,
    )


async def test_a_file_is_attached_with_its_attributes(asked: Callable[..., Asked]) -> None:
    it = asked(
        httpx.Response(200, json=in_store("file-1", "in_progress")),
        httpx.Response(200, json=in_store("file-1", passages=3)),
        httpx.Response(
            200,
            json=in_store("file-1", "failed", last_error={"code": "invalid_file", "message": "no"}),
        ),
    )
    found = [await it.gateway.attach(STORE, "file-1", {"n": 1}) for _ in range(3)]
    assert found == [
        StoreFile("file-1", "in_progress"),
        StoreFile("file-1", "completed", 3),
        StoreFile("file-1", "failed", 0, "invalid_file", "no"),
    ]
    request = it.requests[0]
    assert (request.method, request.url.path) == ("POST", f"/v1/vector_stores/{STORE}/files")
    assert json.loads(request.content) == {"file_id": "file-1", "attributes": {"n": 1}}


async def test_what_is_at_fault_is_told(asked: Callable[..., Asked]) -> None:
    error = {"code": "invalid_value", "message": "no", "param": "file_id"}
    it = asked(httpx.Response(400, json={"error": error}))
    with pytest.raises(Rejected) as rejected:
        await it.gateway.attach(STORE, "file-1", {})
    assert (rejected.value.code, rejected.value.param) == ("invalid_value", "file_id")


def page(names: list[str], more: bool) -> httpx.Response:
    rows = [in_store(name) for name in names]
    return httpx.Response(200, json={"object": "list", "data": rows, "has_more": more})


async def test_files_are_looked_for_until_all_are_found(asked: Callable[..., Asked]) -> None:
    it = asked(page(["f9", "f8"], more=True), page(["f7", "f6"], more=True))
    files = await it.gateway.files_in_store(STORE, {"f8", "f7"})
    assert files == {name: StoreFile(name, "completed") for name in ("f8", "f7")}
    assert [request.url.params.get("after") for request in it.requests] == [None, "f8"]
    assert it.requests[0].url.params["limit"] == "100"
    it = asked(page(["f9", "f8"], more=True), page(["f7"], more=False))
    files = await it.gateway.files_in_store(STORE, {"f8", "f1"})
    assert (files["f8"].status, files["f1"].status) == ("completed", "gone")


async def test_a_look_whose_place_in_the_list_is_gone_begins_again(
    asked: Callable[..., Asked],
) -> None:
    lost = {"code": "invalid_value", "message": "no such item", "param": "after"}
    it = asked(
        page(["f9"], more=True),
        httpx.Response(400, json={"error": lost}),
        page(["f7", "f6"], more=False),
    )
    files = await it.gateway.files_in_store(STORE, {"f6"})
    assert files["f6"].status == "completed"


async def test_too_many_uploads_hold_back_uploads_only(asked: Callable[..., Asked]) -> None:
    it = asked(
        refusal(429, "too_many_files", **{"retry-after": "500"}),
        httpx.Response(200, json={"id": "file-1"}),
        httpx.Response(200, json=in_store("file-1")),
    )
    await it.gateway.upload(DOCUMENT, "key")
    assert it.now >= 500
    it.now = 3.0
    await it.gateway.attach(STORE, "file-1", {})
    assert it.now == 3.0
