"""What the clients of a drill make of a stream over SSE."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from tests.faults import crowd, feeds

TEXT = "a\u2028b\u2029c\u0085d"


class Bytes(httpx.AsyncByteStream):
    """A body that arrives byte by byte."""

    def __init__(self, *datas: Any) -> None:
        frames = [json.dumps(each, ensure_ascii=False) for each in datas]
        self._body = "".join(f"data: {each}\n\n" for each in frames).encode()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for n in range(len(self._body)):
            yield self._body[n : n + 1]


def transport(*datas: Any) -> httpx.MockTransport:
    return httpx.MockTransport(lambda _: httpx.Response(200, stream=Bytes(*datas)))


async def test_a_watcher_reads_the_ends_of_lines_that_only_unicode_knows_as_text() -> None:
    lines: list[dict[str, Any]] = []
    delta = {"type": "response.output_text.delta", "sequence_number": 0, "delta": TEXT}
    async with httpx.AsyncClient(transport=transport(delta)) as http:
        scribe = SimpleNamespace(line=lambda **line: lines.append(line))
        crowd_: Any = SimpleNamespace(http=http, scribe=scribe, _headers=lambda user: {})
        asked: Any = SimpleNamespace(user="ann", rid="resp_1")
        watcher = crowd.Watcher(crowd_, asked, "w", ["http://gateway"], "sse", -1)
        assert await watcher._stream(1, "http://gateway") == "cut"
    assert [event[2] for line in lines for event in line["events"]] == [TEXT]


async def test_a_device_reads_the_ends_of_lines_that_only_unicode_knows_as_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    event = {"type": "conversation.changed", "position": "p1", "title": TEXT}
    client = httpx.AsyncClient
    monkeypatch.setattr(httpx, "AsyncClient", lambda **_: client(transport=transport(event)))
    stage = SimpleNamespace(of=lambda _: [SimpleNamespace(url="http://gateway")])
    drill: Any = SimpleNamespace(stage=stage, crowd=SimpleNamespace(_headers=lambda user: {}))
    device = feeds.Device(drill, "ann", rng=random.Random(1))
    async with asyncio.timeout(5):
        await device._read()
    assert device.position == "p1"
