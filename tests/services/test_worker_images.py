"""A worker with a model that sees is killed in the middle of an answer about an image. Real Kafka,
real engine, a toy model (tests/support/toy_vision.py)."""

from __future__ import annotations

import random
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.parsing import images
from tailrace.protocol import files, records, topics
from tests.support import engine_environment, pictures, workers

BOOT_S = 300.0
ANSWER_S = 90.0
TOKENS = 300
APART = 2  # the picture whose file is kept beside its request

pytestmark = [
    pytest.mark.engine,
    pytest.mark.nightly,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not workers.ENGINE_PYTHON.exists() or not engine_environment.MODEL.is_dir(),
        reason="vLLM is NOT tested: no engine environment or model (make install)",
    ),
]


@pytest.fixture
async def bench(kafka: str, redis_url: str, tmp_path: Path) -> AsyncIterator[workers.Bench]:
    async with workers.bench(kafka, redis_url, tmp_path) as made:
        yield made


@pytest.fixture
def model(tmp_path: Path) -> Path:
    program = (
        "import sys; from pathlib import Path; from tests.support import toy_vision; "
        "toy_vision.build(Path(sys.argv[1]), Path(sys.argv[2]))"
    )
    made = tmp_path / "toy-vision"
    python = str(workers.ENGINE_PYTHON)
    command = [python, "-c", program, str(engine_environment.MODEL), str(made)]
    subprocess.run(command, cwd=engine_environment.ROOT, check=True, capture_output=True)
    return made


async def written(bench: workers.Bench, data: bytes) -> dict[str, Any]:
    """Where a file is in the log from now on."""
    name = files.digest(data)
    chunks = [
        await bench.writer.append(topics.FILES, 0, files.key(name, n), piece)
        for n, piece in enumerate(files.chunks(data))
    ]
    place = files.Place(0, tuple(c.offset for c in chunks), len(data), chunks[0].timestamp)
    return place.member()


async def ask(bench: workers.Bench, picture: int, **more: Any) -> records.Request:
    data = pictures.png(picture)
    if picture == APART:
        data += random.Random(picture).randbytes(1_000_000)
    part = images.of_responses({"image_url": pictures.url(data)}, "input")
    if picture == APART:
        del part["data"]
        part["file"] = await written(bench, data)
    content = [{"type": "text", "text": "What is it?"}, part]
    return await bench.ask(
        messages=[{"role": "user", "content": content}],
        sampling=records.Sampling(TOKENS, temperature=0.0, ignore_eos=True),
        **more,
    )


async def test_what_a_killed_worker_said_of_an_image_is_continued_by_another(
    bench: workers.Bench, model: Path
) -> None:
    def start() -> workers.Worker:
        return bench.worker(
            engine="vllm",
            python=workers.ENGINE_PYTHON,
            session_ms=6000,
            TAILRACE_MODEL=str(model),
            TAILRACE_MAX_NUM_SEQS="8",
            TAILRACE_MAX_MODEL_LEN="1024",
        )

    first = start()
    await first.ready(BOOT_S)
    whole = [await bench.done((await ask(bench, n)).rid, ANSWER_S) for n in (1, 2)]
    assert [len(answer.fold.ids) for answer in whole] == [TOKENS, TOKENS]
    assert whole[0].fold.ids != whole[1].fold.ids

    asked = [await ask(bench, n, partition=p) for p, n in ((0, 1), (1, 2))]
    for request in asked:
        await bench.tokens(request.rid, 3, ANSWER_S)
    first.kill()
    second = start()
    await second.ready(BOOT_S)
    cut = []
    for request, uninterrupted in zip(asked, whole, strict=True):
        answer = await bench.done(request.rid, ANSWER_S)
        assert answer.fold.ids == uninterrupted.fold.ids
        assert answer.text == uninterrupted.text
        cut.append(answer.fold.epoch == 2)
    assert any(cut), "every answer was over before its worker was killed"
