"""A request whose images are kept apart is served with them, or refused, never without."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import pytest

from tailrace.protocol import files, records, topics
from tests.support import cases, memory_worker, pictures
from tests.support.memory_log import MemoryLog
from tests.support.memory_worker import answer, new_request
from worker.serving import response_state
from worker.serving.outcome import Outcome

DATA = pictures.png(1) + bytes(range(256)) * 3_000  # two chunks


@pytest.fixture(autouse=True)
def again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_state, "RETRY_S", 0.005)


def put(memory: MemoryLog, data: bytes = DATA) -> dict[str, Any]:
    """The file in the log, with another one's chunk between its own; where it is."""
    offsets = []
    for piece in files.chunks(data):
        offsets.append(memory.put(topics.FILES, 3, b"k", piece).offset)
        memory.put(topics.FILES, 3, b"other", b"other")
    return files.Place(3, tuple(offsets), len(data), 1).member()


def asks(memory: MemoryLog, file: dict[str, Any], **more: Any) -> records.Request:
    part = {"type": "image", "sha256": files.digest(DATA), "media": "image/png"}
    shown = {**part, "width": 40, "height": 30, "file": file}
    content = [{"type": "text", "text": "What is it?"}, shown]
    return new_request(memory, messages=[{"role": "user", "content": content}], **more)


async def test_the_engine_sees_the_file() -> None:
    async with memory_worker.worker() as worker:
        request = asks(worker.memory, put(worker.memory))
        assert await worker.serve(request).outcome() is Outcome.DONE
        text = answer(worker.memory, request.rid).text
        assert f"with images {hashlib.sha256(DATA).hexdigest()[:8]}" in text
        assert "data" not in request.messages[0]["content"][1]  # it is not held for longer


@cases.each("change", ["gone", "another", "no place"])
async def test_a_file_that_is_not_there_ends_the_response_as_failed(change: str) -> None:
    async with memory_worker.worker() as worker:
        file = put(worker.memory)
        if change == "gone":
            worker.memory.delete_below(topics.FILES, 3, 1)
        elif change == "another":
            file |= {"at": [file["at"][0], file["at"][1] + 1]}
        else:
            file |= {"at": []}
        request = asks(worker.memory, file)
        assert await worker.serve(request).outcome() is Outcome.DONE
        ended = answer(worker.memory, request.rid).ended
        assert ended.error is not None
        assert (ended.status, ended.error[0]) == ("failed", "file_lost")
        # Once for the prompt and once for the history: what is gone stays gone.
        assert len([r for r in worker.memory.reads if r[0] == topics.FILES]) <= 2


async def test_a_log_that_does_not_answer_is_asked_again() -> None:
    async with memory_worker.worker() as worker:
        request = asks(worker.memory, put(worker.memory))
        failing = iter([True])

        class Ranges:
            def read(self, *args: Any) -> Any:
                from tailrace import log

                if next(failing, False):
                    raise log.LogUnavailable("away")
                return real.read(*args)

        real, worker.context.ranges = worker.context.ranges, Ranges()  # type: ignore[assignment]
        assert await worker.serve(request).outcome() is Outcome.DONE
        ended = answer(worker.memory, request.rid).ended
        assert ended.status == "completed"
        text = answer(worker.memory, request.rid).text
        assert base64.b16encode(hashlib.sha256(DATA).digest()).decode().lower()[:8] in text
