"""The engine over HTTP: when it counts as started."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from worker.engines import openai


class Server:
    """Answers each request with the next of these; None closes the connection without an answer."""

    def __init__(self, *answers: int | None) -> None:
        self.answers = list(answers)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            await reader.readuntil(b"\r\n\r\n")
            if (status := self.answers.pop(0)) is not None:
                head = f"HTTP/1.1 {status} x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
                writer.write(head.encode())
                await writer.drain()

    @contextlib.asynccontextmanager
    async def engine(self) -> AsyncIterator[openai.OpenAI]:
        async with await asyncio.start_server(self.serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            made = openai.OpenAI(url=f"http://127.0.0.1:{port}", model="m", capacity=1)
            try:
                yield made
            finally:
                await made.shutdown()


@pytest.mark.parametrize("loading", [None, 500, 503])
async def test_it_has_started_once_the_server_answers_without_a_failure_of_its_own(
    monkeypatch: pytest.MonkeyPatch, loading: int | None
) -> None:
    monkeypatch.setattr(openai, "PROBE_PAUSE_S", 0.0)
    server = Server(loading, loading, 200, 200)
    async with server.engine() as engine:
        await asyncio.wait_for(engine.start(), 10)
        assert server.answers == [200]


async def test_a_server_without_a_list_of_models_has_started_too() -> None:
    server = Server(404, 200)
    async with server.engine() as engine:
        await asyncio.wait_for(engine.start(), 10)
        assert server.answers == [200]
