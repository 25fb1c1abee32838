"""Large images of a response that only the archive has."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from typing import Any

import httpx
import pytest

from tailrace.protocol import files, topics
from tests.support import archive_parts, pictures
from tests.support import gateway_process as gp

PHOTOGRAPHS = [pictures.png(n) + random.Random(n).randbytes(1_400_000 + n) for n in (1, 2)]
NAMES = ", ".join(hashlib.sha256(data).hexdigest()[:8] for data in PHOTOGRAPHS)


def said(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    assert found["status"] == "completed", found
    return str(found["output"][0]["content"][0]["text"])


def question() -> list[dict[str, Any]]:
    shown = [{"type": "input_image", "image_url": pictures.url(data)} for data in PHOTOGRAPHS]
    return [{"role": "user", "content": [{"type": "input_text", "text": "What?"}, *shown]}]


def messages() -> list[dict[str, Any]]:
    shown = [
        {"type": "image_url", "image_url": {"url": pictures.url(data)}} for data in PHOTOGRAPHS
    ]
    return [{"role": "user", "content": [{"type": "text", "text": "What?"}, *shown]}]


@pytest.mark.timeout(300)
@pytest.mark.nightly
async def test_images_that_the_log_lost_are_shown_and_continued(
    parts: archive_parts.Parts, client: httpx.AsyncClient, second: gp.Gateway, later: gp.Gateway
) -> None:
    assert min(map(len, PHOTOGRAPHS)) > files.APART_BYTES
    asked = await client.post("/v1/responses", json={"input": question()})
    assert f"with images {NAMES}" in said(asked)
    rid = asked.json()["id"]
    chat = await client.post("/v1/chat/completions", json={"messages": messages()})
    name = chat.json()["id"]
    items = (await client.get(f"/v1/responses/{rid}/input_items")).json()
    told = (await client.get(f"/v1/chat/completions/{name}/messages")).json()
    await archive_parts.archived(client, rid)
    assert [part["image_url"] for part in items["data"][0]["content"][1:]] == [
        pictures.url(data) for data in PHOTOGRAPHS
    ]
    await parts.retention(topics.FILES)
    async with later.client() as there, later.client("bob") as bob:
        assert (await there.get(f"/v1/responses/{rid}/input_items")).json() == items
        assert (await there.get(f"/v1/chat/completions/{name}/messages")).json() == told
        assert (await bob.get(f"/v1/responses/{rid}/input_items")).status_code == 410
        # Both at once: the chunks are written again, once.
        body = {"previous_response_id": rid, "input": "And now?"}
        more, further = await asyncio.gather(
            there.post("/v1/responses", json=body), there.post("/v1/responses", json=body)
        )
        assert f"“And now?” with images {NAMES}" in said(more) == said(further)
        # A turn behind it, and a fork of it, find them in the log.
        last = {"previous_response_id": more.json()["id"], "input": "And then?"}
        assert NAMES in said(await there.post("/v1/responses", json=last))
        of = {"response_id": more.json()["id"], "at": 3}
        assert said(await there.post("/v1/responses", json={"fork": of})) == said(more)
        # What was written again outlives the log again.
        again = more.json()["id"]
        seen = (await there.get(f"/v1/responses/{again}/input_items")).json()
        assert json.dumps(seen).count("And now?") == 1
        await archive_parts.archived(there, again)
    await parts.retention(topics.FILES)
    async with second.client() as elsewhere:
        last = {"previous_response_id": again, "input": "And at last?"}
        assert NAMES in said(await elsewhere.post("/v1/responses", json=last))
