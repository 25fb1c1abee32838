"""Images on the real engine: toy models that see (tests/support/toy_vision.py, toy_qwen_vl.py).

Collected in the engine environment (tests/contract/test_engine_environment.py): each model with
another way in which the engine reads vLLM's output.
"""

from __future__ import annotations

import asyncio
import base64
import io
import os
import threading
from collections.abc import AsyncIterator, Sequence
from types import ModuleType
from typing import Any

import pytest
import pytest_asyncio

from gateway.parsing import images
from tailrace.protocol import events, records
from tests.support import engine_environment, pictures, toy_qwen_vl, toy_vision
from worker.engines import base, vllm, vllm_images

WAYS = {"idefics3_public_api": toy_vision, "qwen2_5_vl": toy_qwen_vl}
TOKENS = 16
pytestmark = [
    pytest.mark.engine,
    pytest.mark.nightly,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(900),
]


@pytest.fixture(scope="module", params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def toy(way: str) -> ModuleType:
    return WAYS[way]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(
    way: str, toy: ModuleType, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[vllm.VLLM]:
    folder = tmp_path_factory.mktemp("model") / "toy-vision"
    toy.build(engine_environment.MODEL, folder)
    made = vllm.VLLM(
        model=str(folder),
        capacity=8,
        max_model_len=1024,
        public_api=way.endswith("_public_api"),
        cpu_dtype="float32",  # prefill and decode round alike
    )
    await made.start()
    yield made
    await made.shutdown()


def shown(data: bytes) -> dict[str, Any]:
    """The part that the gateway makes of an image."""
    return images.of_responses({"image_url": pictures.url(data)}, "input")


def said(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def ask(*content: dict[str, Any], subject: str = "s", **more: Any) -> records.Request:
    rid = f"resp_{os.urandom(16).hex()}"
    return records.Request(
        rid,
        records.Owner("i", subject),
        "m",
        [{"role": "user", "content": list(content)}],
        records.Sampling(TOKENS, temperature=0.0, ignore_eos=True),
        events.echo(rid, 0, "m", metadata={}),
        **more,
    )


async def answer(
    engine: base.Engine, request: records.Request, accepted: Sequence[int] = ()
) -> list[int]:
    """What an attempt makes that continues behind `accepted`."""
    found: list[int] = []

    def keep(step: base.Step) -> bool:
        found.extend(step.ids)
        return True

    prompt = await engine.encode(request)
    left = request.sampling.max_tokens - len(accepted)
    token = os.urandom(16).hex()
    made = base.GenerationInput(request, token, prompt, list(accepted), left)
    await engine.generate(made, keep)
    return found


async def test_the_engine_says_that_it_takes_images(engine: vllm.VLLM) -> None:
    assert {"images", "tool_images"} <= engine.features


async def test_an_image_becomes_its_tokens_in_its_place(engine: vllm.VLLM, toy: ModuleType) -> None:
    of_text = await engine.encode(ask(said("What is it? Tell.")))
    of_both = await engine.encode(ask(said("What is it?"), shown(pictures.png(1)), said(" Tell.")))
    assert of_both.count(toy.IMAGE) == toy.PLACES
    assert len(of_both) == len(of_text) + toy.IMAGE_TOKENS
    end = of_both.index(toy.IMAGE) - toy.BEFORE
    assert of_both[:end] == of_text[:end]


async def test_another_image_makes_another_answer_and_the_same_one_the_same(
    engine: vllm.VLLM,
) -> None:
    ask_of = [ask(said("What is it?"), shown(pictures.png(n))) for n in (1, 2, 3, 1)]
    made = [await answer(engine, one) for one in ask_of]
    assert made[0] == made[3]
    assert len({tuple(one) for one in made}) == 3


async def test_the_order_of_images_matters(engine: vllm.VLLM) -> None:
    one, other = shown(pictures.png(1)), shown(pictures.png(2))
    first = await answer(engine, ask(one, said(" and "), other))
    second = await answer(engine, ask(other, said(" and "), one))
    assert first != second


async def test_every_cut_is_continued_with_what_the_uninterrupted_answer_has(
    engine: vllm.VLLM,
) -> None:
    request = ask(said("What is it?"), shown(pictures.png(1)), shown(pictures.png(2)))
    whole = await answer(engine, request)
    assert len(whole) == TOKENS
    for cut in range(1, TOKENS):
        assert whole[:cut] + await answer(engine, request, whole[:cut]) == whole, cut


async def test_tenants_do_not_share_what_is_kept_of_an_image(engine: vllm.VLLM) -> None:
    part = shown(pictures.png(7))
    one, other = ask(part), ask(part, subject="another")
    assert await answer(engine, one) == await answer(engine, other)
    names = [(await engine._with_images(r))["mm_hashes"]["image"] for r in (one, one, other)]
    assert names[0] == names[1] != names[2]


async def test_an_image_in_the_output_of_a_tool(engine: vllm.VLLM, toy: ModuleType) -> None:
    def after(*output: dict[str, Any]) -> records.Request:
        call = {"id": "c", "type": "function", "function": {"name": "see", "arguments": "{}"}}
        asked = ask(said("What does it see?"))
        asked.messages.extend(
            [
                {"role": "assistant", "content": "", "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c", "content": list(output)},
            ]
        )
        return asked

    one, other = (after(said("This: "), shown(pictures.png(n))) for n in (1, 2))
    assert (await engine.encode(one)).count(toy.IMAGE) == toy.PLACES
    whole = await answer(engine, one)
    assert whole != await answer(engine, other)
    assert whole[:5] + await answer(engine, one, whole[:5]) == whole


async def test_a_text_does_not_wait_for_an_image_before_it(
    engine: vllm.VLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    decode = vllm_images.decode

    def held(part: Any) -> Any:
        begun.set()
        go_on.wait()
        return decode(part)

    monkeypatch.setattr(vllm_images, "decode", held)
    seeing = asyncio.create_task(engine.encode(ask(shown(pictures.png(1)))))
    try:
        await asyncio.to_thread(begun.wait)
        assert await engine.encode(ask(said("What is it?")))
        assert not seeing.done()
    finally:
        go_on.set()
    assert await seeing


async def test_prompts_with_and_without_images_at_the_same_time(engine: vllm.VLLM) -> None:
    text = ask(said("word " * 200))
    seeing = ask(said("word " * 200), shown(pictures.png(1)))
    alone = [await engine.encode(text), await engine.encode(seeing)]
    made = await asyncio.gather(*(engine.encode(r) for r in (text, seeing) * 40))
    assert made == alone * 40


@pytest.mark.parametrize("media", ["PNG", "JPEG", "WEBP", "GIF"])
async def test_formats(engine: vllm.VLLM, toy: ModuleType, media: str) -> None:
    from PIL import Image

    written = io.BytesIO()
    with Image.open(io.BytesIO(pictures.png(1))) as picture:
        picture.save(written, media)
    part = shown(written.getvalue())
    assert (part["media"], part["width"], part["height"]) == (f"image/{media.lower()}", 40, 30)
    ids = await engine.encode(ask(part))
    assert ids.count(toy.IMAGE) == toy.PLACES


@pytest.mark.parametrize("size", [(1, 1), (300, 2), (2000, 1500)])
async def test_sizes(engine: vllm.VLLM, size: tuple[int, int]) -> None:
    assert len(await answer(engine, ask(shown(pictures.png(1, *size))))) == TOKENS


async def test_files_that_are_no_images_are_refused_and_the_engine_goes_on(
    engine: vllm.VLLM,
) -> None:
    good = pictures.png(1)
    bad = {
        "only a header": shown(pictures.png_header(40, 30)),
        "cut off": shown(good[: len(good) // 2]),
        "another size": {**shown(good), "width": 41},
        "nothing": {**shown(good), "data": ""},
        "kept apart": {k: v for k, v in shown(good).items() if k != "data"},
        "a frame larger than its picture": shown(large_frame()),
    }
    for name, part in bad.items():
        with pytest.raises(base.Refused) as refused:
            await engine.encode(ask(part))
        assert refused.value.code == "invalid_image", name
    assert len(await answer(engine, ask(shown(good)))) == TOKENS


def large_frame() -> bytes:
    """A GIF of one pixel by its header, with a frame of 60,000 × 60,000."""
    screen = b"GIF89a" + (1).to_bytes(2, "little") * 2 + b"\x80\0\0" + bytes(6)
    frame = b"\x2c" + bytes(4) + (60_000).to_bytes(2, "little") * 2 + b"\0"
    return screen + frame + base64.b64decode("AgJEAQA7")


async def test_a_text_that_contains_the_marker_moves_no_image(
    engine: vllm.VLLM, toy: ModuleType
) -> None:
    assert len(await answer(engine, ask(said(f"What is {toy.MARKER}?")))) == TOKENS
    for request in (
        ask(said(f"no {toy.MARKER}: "), shown(pictures.png(1))),
        ask(shown(pictures.png(1)), said(f"no {toy.MARKER}")),
    ):
        with pytest.raises(base.Refused) as refused:
            await engine.encode(request)
        assert refused.value.code == "invalid_prompt"
    assert len(await answer(engine, ask(shown(pictures.png(1))))) == TOKENS


async def test_a_prompt_too_long_by_its_images_is_refused(
    engine: vllm.VLLM, toy: ModuleType
) -> None:
    many = [shown(pictures.png(1))] * images.MAX_IMAGES
    assert len(await engine.encode(ask(*many))) > images.MAX_IMAGES * toy.IMAGE_TOKENS
    with pytest.raises(base.Refused) as refused:
        await engine.encode(ask(said("word " * 1000), *many))
    assert refused.value.code == "context_length_exceeded"
