"""Uploaded files: their calls, and requests that name them, over a log in memory."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.files import uploads as gateway_uploads
from tailrace.log import files as log_files
from tailrace.protocol import files, images, records, topics
from tests.support import cases, gateway_process, log_contract, memory_log, pictures
from tests.unit.gateway.test_app import Service, serving

PICTURE = pictures.png(1)
LARGE = pictures.png(2) + random.Random(2).randbytes(1_200_000)  # three chunks
NOTES = "Größe: 5\n".encode()


@pytest.fixture
def keys(tmp_path: Path) -> gateway_process.Keys:
    return gateway_process.Keys.make(tmp_path)


async def upload(
    client: httpx.AsyncClient, data: bytes = NOTES, name: str = "notes.md", **fields: str
) -> dict[str, Any]:
    answer = await client.post(
        "/v1/files", data={"purpose": "user_data", **fields}, files={"file": (name, data)}
    )
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def user(*content: dict[str, Any]) -> dict[str, Any]:
    return {"input": [{"role": "user", "content": list(content)}]}


async def post_and_request(
    service: Service, client: httpx.AsyncClient, body: dict[str, Any]
) -> records.Request:
    """The request record that a body makes."""
    before = len(service.requests())
    path = "/v1/chat/completions" if "messages" in body else "/v1/responses"
    task = asyncio.ensure_future(client.post(path, json=body))
    await log_contract.until(lambda: len(service.requests()) > before or task.done(), 5)
    if task.done():
        raise AssertionError((await task).text)
    request = service.requests()[-1]
    service.answer(request, "ok")
    assert (await task).status_code == 200
    return request


async def test_a_file_is_there_as_it_was_sent(keys: gateway_process.Keys) -> None:
    async with serving(keys) as service, service.client() as client:
        file = await upload(client, LARGE, "photo.png", purpose="vision")
        assert file["object"] == "file"
        assert file["id"].startswith("file-")
        assert (file["bytes"], file["filename"], file["purpose"], file["status"]) == (
            len(LARGE),
            "photo.png",
            "vision",
            "processed",
        )
        assert file["expires_at"] - file["created_at"] == topics.UPLOAD_S
        assert (await client.get(f"/v1/files/{file['id']}")).json() == file
        content = await client.get(f"/v1/files/{file['id']}/content")
        assert content.content == LARGE
        assert content.headers["x-content-type-options"] == "nosniff"
        assert content.headers["content-disposition"].startswith("attachment")
        assert content.headers["content-type"] == "application/octet-stream"


async def test_lists_are_paged_and_the_callers_own(keys: gateway_process.Keys) -> None:
    async with serving(keys) as service, service.client() as client, service.client("bob") as bob:
        file_id = [(await upload(client, f"{n}".encode()))["id"] for n in range(4)]
        image_id = (await upload(client, PICTURE, purpose="vision"))["id"]
        await upload(bob)
        everything = (await client.get("/v1/files")).json()
        assert [each["id"] for each in everything["data"]] == [image_id, *file_id[::-1]]
        query: dict[str, Any] = {"purpose": "user_data", "order": "asc", "limit": 3}
        first = (await client.get("/v1/files", params=query)).json()
        assert ([each["id"] for each in first["data"]], first["has_more"]) == (file_id[:3], True)
        rest = (await client.get("/v1/files", params={**query, "after": first["last_id"]})).json()
        assert ([each["id"] for each in rest["data"]], rest["has_more"]) == (file_id[3:], False)
        assert (await client.get("/v1/files", params={"limit": 0})).status_code == 400


async def test_another_users_file_is_as_unknown_as_an_unknown_one(
    keys: gateway_process.Keys,
) -> None:
    async with serving(keys) as service, service.client() as alice, service.client("bob") as bob:
        file_id = (await upload(alice))["id"]
        unknown = file_id[:-4] + "AAAA"
        answers = []
        for name in (file_id, unknown):
            for method, path in (
                ("GET", f"/v1/files/{name}"),
                ("GET", f"/v1/files/{name}/content"),
                ("DELETE", f"/v1/files/{name}"),
            ):
                answer = await bob.request(method, path)
                answers.append((answer.status_code, answer.text.replace(name, "ID")))
            body = user({"type": "input_file", "file_id": name})
            answer = await bob.post("/v1/responses", json=body)
            answers.append((answer.status_code, answer.text.replace(name, "ID")))
        assert answers[:4] == answers[4:]
        assert [status for status, _ in answers[:4]] == [404, 404, 404, 400]
        assert (await alice.get(f"/v1/files/{file_id}")).status_code == 200
        assert service.requests() == []


async def test_a_deleted_file_is_gone_on_every_gateway_at_once(
    keys: gateway_process.Keys,
) -> None:
    broker = memory_log.MemoryLog("one", 1)
    async with (
        serving(keys, broker) as one,
        serving(keys, broker) as other,
        one.client() as here,
        other.client() as there,
    ):
        file_id = (await upload(here))["id"]
        assert (await there.get(f"/v1/files/{file_id}")).status_code == 200
        body = (await there.delete(f"/v1/files/{file_id}")).json()
        assert body == {"id": file_id, "object": "file", "deleted": True}
        assert (await here.get(f"/v1/files/{file_id}")).status_code == 404
        assert (await here.get("/v1/files")).json()["data"] == []
        assert (await there.delete(f"/v1/files/{file_id}")).status_code == 404


async def test_a_request_shows_an_uploaded_image_as_one_of_its_own(
    keys: gateway_process.Keys,
) -> None:
    async with serving(keys, TAILRACE_RECORDS_VERSION="2") as service, service.client() as client:
        file_id = (await upload(client, LARGE, "a.png", purpose="vision"))["id"]
        count_before = len(service.broker.appended)
        by_id = {"type": "input_image", "file_id": file_id, "detail": "low"}
        request = await post_and_request(
            service, client, user({"type": "input_text", "text": "What?"}, by_id)
        )
        (part,) = images.parts(request.messages)
        assert part["sha256"] == files.digest(LARGE)
        assert part["detail"] == "low"
        chunks = [r for r in service.broker.appended[count_before:] if r.topic == topics.FILES]
        assert chunks == []  # the chunks of the upload are named
        place = files.parse_place(part["file"])
        assert await log_files.read(service.broker.replays(), part["sha256"], place) == LARGE
        rid = request.rid
        items = (await client.get(f"/v1/responses/{rid}/input_items")).json()["data"]
        assert items[0]["content"][1]["image_url"] == pictures.url(LARGE)


@pytest.mark.parametrize("api", ["responses", "chat"])
async def test_a_request_tells_an_uploaded_text(keys: gateway_process.Keys, api: str) -> None:
    async with serving(keys) as service, service.client() as client:
        file_id = (await upload(client))["id"]
        text = {"type": "input_text" if api == "responses" else "text", "text": "Sum up:"}
        if api == "responses":
            body = user(text, {"type": "input_file", "file_id": file_id})
        else:
            file_part = {"type": "file", "file": {"file_id": file_id}}
            body = {"messages": [{"role": "user", "content": [text, file_part]}]}
        request = await post_and_request(service, client, body)
        told = "Sum up:File notes.md:\nGröße: 5\n\n"
        assert request.messages == [{"role": "user", "content": told}]
        text_part, of_file = request.input[0]["content"]
        assert text_part == {"type": "input_text", "text": "Sum up:"}
        whole = "File notes.md:\nGröße: 5\n\n"
        assert of_file == {"type": "input_text", "text": whole, "filename": "notes.md"}


async def test_a_tool_may_answer_with_a_file(keys: gateway_process.Keys) -> None:
    async with serving(keys, TAILRACE_RECORDS_VERSION="2") as service, service.client() as client:
        file_id = (await upload(client))["id"]
        call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
        output = {
            "type": "function_call_output",
            "call_id": "c",
            "output": [{"type": "input_file", "file_id": file_id}],
        }
        request = await post_and_request(service, client, {"input": [call, output]})
        assert request.messages[-1]["content"] == "File notes.md:\nGröße: 5\n\n"


async def test_files_that_cannot_be_shown_are_refused_by_place(
    keys: gateway_process.Keys,
) -> None:
    async with serving(keys) as service, service.client() as client:
        file_id = (await upload(client))["id"]
        for part, message in (
            ({"type": "input_image", "file_id": file_id}, "not an image"),
            ({"type": "input_file", "file_id": "file-x"}, "not found"),
            ({"type": "input_file", "file_id": "resp_" + file_id[5:]}, "not found"),
        ):
            answer = await client.post("/v1/responses", json=user(part))
            error = answer.json()["error"]
            assert (answer.status_code, error["param"]) == (400, "input[0].content[0].file_id")
            assert message in error["message"]
        assert service.requests() == []


async def test_the_texts_of_files_fit_into_a_record(keys: gateway_process.Keys) -> None:
    async with serving(keys) as service, service.client() as client:
        file_id = (await upload(client, b"x" * 200_000))["id"]
        body = user(*[{"type": "input_file", "file_id": file_id}] * 6)
        answer = await client.post("/v1/responses", json=body)
        assert answer.status_code == 400
        many = [(await upload(client, f"{n}".encode()))["id"] for n in range(33)]
        body = user(*[{"type": "input_file", "file_id": each} for each in many])
        answer = await client.post("/v1/responses", json=body)
        assert (answer.status_code, "at most 32" in answer.text) == (400, True)
        assert service.requests() == []


async def test_a_socket_names_files_too(keys: gateway_process.Keys) -> None:
    async with serving(keys, TAILRACE_RECORDS_VERSION="2") as service, service.client() as client:
        file_id = (await upload(client, LARGE, "a.png"))["id"]
        async with service.socket() as socket:
            body = user({"type": "input_image", "file_id": file_id})
            await socket.send(json.dumps({"type": "response.create", **body}))
            request = await service.asked()
            assert [p["sha256"] for p in images.parts(request.messages)] == [files.digest(LARGE)]


@cases.each(
    ("body", "kind", "status"),
    [
        (b"", "multipart/form-data; boundary=x", 400),
        (b"{}", "application/json", 400),
        (b"--x\r\n" * 50, "multipart/form-data; boundary=x", 400),
        (b" " * 6_400_000, "multipart/form-data; boundary=x", 413),
    ],
)
async def test_forms_that_are_none_leave_nothing(
    keys: gateway_process.Keys, body: bytes, kind: str, status: int
) -> None:
    async with serving(keys) as service, service.client() as client:
        answer = await client.post("/v1/files", content=body, headers={"content-type": kind})
        assert answer.status_code == status
        assert answer.json()["error"]["type"] == "invalid_request_error"
        topics_before = {r.topic for r in service.broker.appended}
        assert not topics_before & {topics.FILES, topics.UPLOADS}


async def test_an_idempotency_key_makes_an_upload_that_may_be_sent_again(
    keys: gateway_process.Keys,
) -> None:
    async with serving(keys) as service, service.client() as client:

        async def post(key: str, data: bytes = NOTES) -> httpx.Response:
            return await client.post(
                "/v1/files",
                data={"purpose": "user_data"},
                files={"file": ("notes.md", data)},
                headers={"Idempotency-Key": key},
            )

        first, again, other = [await post(key) for key in ("a", "a", "b")]
        assert first.status_code == 200
        assert first.json() == again.json()
        assert first.json()["id"] != other.json()["id"]
        assert len((await client.get("/v1/files")).json()["data"]) == 2
        answer = await post("a", b"other")
        assert (answer.status_code, answer.json()["error"]["code"]) == (
            409,
            "idempotency_key_reused",
        )
        assert answer.headers["x-should-retry"] == "false"
        assert (await post("k" * 513)).json()["error"]["param"] == "Idempotency-Key"
        await client.delete(f"/v1/files/{first.json()['id']}")
        assert (await post("a")).json()["error"]["code"] == "file_deleted"


async def test_one_user_has_so_many_and_another_one_still_may(
    keys: gateway_process.Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_uploads, "MAX_FILES", 2)
    async with serving(keys) as service, service.client() as client, service.client("bob") as bob:
        for n in range(2):
            file = await upload(client, f"{n}".encode())
        await client.delete(f"/v1/files/{file['id']}")  # its chunks are in the log all the same
        answer = await client.post(
            "/v1/files", data={"purpose": "vision"}, files={"file": ("a", b"x")}
        )
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "too_many_files")
        assert int(answer.headers["retry-after"]) > 3_600
        await upload(bob)
