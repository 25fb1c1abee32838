"""Uploaded files on real parts: two gateways, one of which is killed; Redis is emptied; OpenAI's
own client."""

from __future__ import annotations

import asyncio
import hashlib
import io
import random
from pathlib import Path

import httpx
import openai
import pytest
import redis.asyncio as redis

from tests.support import gateway_process as gp
from tests.support import pictures
from tests.support import sdk as sdk_client

PHOTOGRAPH = pictures.png(7) + random.Random(7).randbytes(5_000_000)
NAME = hashlib.sha256(PHOTOGRAPH).hexdigest()[:8]


def said(response: dict[str, object]) -> str:
    """The whole answer."""
    output = response["output"]
    assert isinstance(output, list), response
    return str(output[0]["content"][0]["text"])


def shows(file_id: str) -> dict[str, object]:
    part = {"type": "input_image", "file_id": file_id}
    return {"model": gp.MODEL, "input": [{"role": "user", "content": [part]}]}


async def test_openais_client_uploads_names_and_deletes(gateway: gp.Gateway) -> None:
    # People whom no other test knows: what is listed are all files of one.
    async with (
        sdk_client.of(gateway, "uploader") as client,
        sdk_client.of(gateway, "stranger") as stranger,
    ):
        made = await client.files.create(
            file=("photo.png", PHOTOGRAPH),
            purpose="vision",
            expires_after={"anchor": "created_at", "seconds": 3_600},
        )
        assert (made.bytes, made.filename, made.status) == (
            len(PHOTOGRAPH),
            "photo.png",
            "processed",
        )
        assert made.expires_at == made.created_at + 3_600
        assert await client.files.wait_for_processing(made.id) == made
        notes = await client.files.create(file=Path(__file__), purpose="user_data")
        assert [each.id async for each in client.files.list()] == [notes.id, made.id]
        assert [each async for each in stranger.files.list()] == []
        assert (await client.files.content(made.id)).content == PHOTOGRAPH
        seen = await client.responses.create(
            model=gp.MODEL,
            input=[
                {
                    "role": "user",
                    "content": [
                        {"type": "input_text", "text": "What are they?"},
                        {"type": "input_image", "file_id": made.id, "detail": "auto"},
                        {"type": "input_file", "file_id": notes.id},
                    ],
                }
            ],
        )
        assert f"with images {NAME}" in seen.output_text
        chatted = await client.chat.completions.create(
            model=gp.MODEL,
            messages=[
                {"role": "user", "content": [{"type": "file", "file": {"file_id": made.id}}]}
            ],
        )
        assert f"with images {NAME}" in str(chatted.choices[0].message.content)
        with pytest.raises(openai.BadRequestError, match="was not found"):
            await stranger.responses.create(**shows(made.id))  # type: ignore[call-overload]
        for each in (made, notes):
            assert (await client.files.delete(each.id)).deleted
        with pytest.raises(openai.NotFoundError):
            await client.files.retrieve(made.id)
        with pytest.raises(openai.BadRequestError, match="no PDF"):
            await client.files.create(file=io.BytesIO(b"%PDF-1.7"), purpose="user_data")


async def test_another_gateway_knows_it_with_redis_empty(
    gateway: gp.Gateway,
    client: httpx.AsyncClient,
    tmp_path: Path,
    kafka: str,
    redis_url: str,
    pool: str,
) -> None:
    sent = {"files": {"file": ("a.png", PHOTOGRAPH)}, "data": {"purpose": "vision"}}
    made = (await client.post("/v1/files", **sent)).json()["id"]  # type: ignore[arg-type]
    async with redis.from_url(redis_url) as store:
        await store.flushdb()
    with gp.gateway(tmp_path, kafka, redis_url, pool, gateway.keys, "gateway-2") as second:
        async with second.client() as there:
            answer = await there.post("/v1/responses", json=shows(made), timeout=60)
            assert f"with images {NAME}" in said(answer.json())
            again = await there.post("/v1/files", **sent)  # type: ignore[arg-type]
            found = [each["id"] for each in (await client.get("/v1/files")).json()["data"]]
            assert found[:2] == [again.json()["id"], made]
            assert (await client.delete(f"/v1/files/{made}")).status_code == 200
            assert (await there.get(f"/v1/files/{made}")).status_code == 404
            refused = await there.post("/v1/responses", json=shows(made))
            assert refused.status_code == 400


async def test_a_gateway_killed_in_an_upload_leaves_nothing_that_can_be_read(
    gateway: gp.Gateway, tmp_path: Path, kafka: str, redis_url: str, pool: str
) -> None:
    with gp.gateway(tmp_path, kafka, redis_url, pool, gateway.keys, "gateway-3") as third:
        async with third.client("carol") as client, gateway.client("carol") as here:
            uploads = [
                asyncio.ensure_future(
                    client.post(
                        "/v1/files",
                        files={"file": (f"{n}.png", PHOTOGRAPH + bytes([n]))},
                        data={"purpose": "vision"},
                    )
                )
                for n in range(6)
            ]
            done, _ = await asyncio.wait(uploads, return_when=asyncio.FIRST_COMPLETED, timeout=60)
            third.kill()
            ended = await asyncio.gather(*uploads, return_exceptions=True)
            taken = {a.json()["id"] for a in ended if isinstance(a, httpx.Response)}
            assert len(done) <= len(taken) < 6
            found = (await here.get("/v1/files")).json()["data"]
            # One may have been taken whose answer was lost. What is shown can be read.
            assert taken <= {each["id"] for each in found}
            assert len(found) <= len(taken) + 1
            for each in found:
                content = (await here.get(f"/v1/files/{each['id']}/content")).content
                assert content[:-1] == PHOTOGRAPH
