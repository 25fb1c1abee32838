"""What is found out of a chat template about images, and how messages with images are put to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models

from tailrace.prompts import chat_template
from tailrace.protocol import records
from tests.support import cases
from worker.engines import detokenizer, vllm, vllm_template

IMAGE = {"type": "image", "sha256": "00", "media": "image/png", "width": 1, "height": 1, "data": ""}
TEXT = {"type": "text", "text": "?"}


def with_parts(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join("<image>" if part["type"] == "image" else part["text"] for part in content)


def texts_of_parts(content: Any) -> str:
    return content if isinstance(content, str) else "".join(p.get("text", "") for p in content)


class Tokenizer:
    """With a template that is a function of a message's content."""

    chat_template = ""

    def __init__(self, template: Callable[[Any], str]) -> None:
        self._template = template

    def encode(self, text: str, **_options: Any) -> list[int]:
        return list(text.encode())

    def apply_chat_template(self, messages: list[dict[str, Any]], **_options: Any) -> str:
        return "".join(f"<{m['role']}>" + self._template(m["content"]) for m in messages)


@cases.each(
    ("template", "takes"),
    [
        (with_parts, True),
        (texts_of_parts, False),
        (lambda content: "" + content, False),  # raises for anything but a text
        (str, False),  # writes parts out as they are
    ],
)
def test_a_template_takes_images_if_it_marks_them(
    template: Callable[[Any], str], takes: bool
) -> None:
    assert vllm_template.Template(Tokenizer(template)).takes_images is takes


class OfUsersOnly(Tokenizer):
    """Its template shows the model only texts of what a tool says."""

    def apply_chat_template(self, messages: list[dict[str, Any]], **options: Any) -> str:
        shown = [
            m if m["role"] == "user" else {**m, "content": texts_of_parts(m["content"])}
            for m in messages
        ]
        return super().apply_chat_template(shown, **options)


@pytest.mark.parametrize(("tokenizer", "takes"), [(Tokenizer, True), (OfUsersOnly, False)])
def test_images_of_tools_are_another_question(tokenizer: type[Tokenizer], takes: bool) -> None:
    template = vllm_template.Template(tokenizer(with_parts))
    assert (template.takes_images, template.takes_tool_images) == (True, takes)


def test_messages_have_markers_for_images_and_texts_otherwise() -> None:
    messages = chat_template.messages(
        [
            {"role": "user", "content": [TEXT, TEXT]},
            {"role": "user", "content": [TEXT, IMAGE]},
            {"role": "assistant", "content": "a cat"},
        ]
    )
    assert [m["content"] for m in messages] == ["??", [TEXT, {"type": "image"}], "a cat"]


@pytest.mark.parametrize("name", ["config.json", "preprocessor_config.json"])
def test_what_is_made_of_images_is_part_of_a_models_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("{}")
    before = vllm.revision(str(tmp_path))
    (tmp_path / name).write_text('{"size": 56}')
    assert vllm.revision(str(tmp_path)) != before


class Written:
    """A template that does with texts what some do, and a tokenizer whose ids are characters."""

    chat_template = ""

    def __init__(self, change: Callable[[str], str] = str.strip) -> None:
        self._change = change

    def apply_chat_template(
        self,
        messages: list[dict[str, Any]],
        *,
        tokenize: bool,
        add_generation_prompt: bool,
        **_options: Any,
    ) -> Any:
        text = "".join(f"<{m['role']}>{self._change(m['content'])}</>" for m in messages)
        text += "<assistant>" if add_generation_prompt else ""
        return self.encode(text, add_special_tokens=False) if tokenize else text

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return list(map(ord, ("^" if add_special_tokens else "") + text))


def dialogue(text: str, *, continued: bool) -> records.Request:
    said = [{"role": "user", "content": "q"}, {"role": "assistant", "content": text}]
    owner = records.Owner("i", "s")
    return records.Request("r", owner, "m", said, records.Sampling(1), {}, continue_final=continued)


@cases.each("text", ["one two", " spaces \n", "", "q", "tailrace-continues-here"])
def test_a_text_that_is_continued_ends_the_prompt_as_it_is(text: str) -> None:
    template = vllm_template.Template(Written())
    assert template.continues
    ids = template.render(dialogue(text, continued=True))
    assert "".join(map(chr, ids)) == f"<user>q</><assistant>{text}"
    said = dialogue(text, continued=True)
    said.messages[0]["content"] = "say tailrace-continues-here"
    ids = template.render(said)
    assert "".join(map(chr, ids)) == f"<user>say tailrace-continues-here</><assistant>{text}"
    closed = "".join(map(chr, template.render(dialogue(text, continued=False))))
    assert closed == f"<user>q</><assistant>{text.strip()}</><assistant>"


@cases.each("change", [lambda _: "", lambda text: text * 2, str.upper])
def test_a_template_that_shows_another_text_continues_none(change: Callable[[str], str]) -> None:
    assert not vllm_template.Template(Written(change)).continues


def test_a_text_that_is_continued_keeps_the_space_that_begins_a_word() -> None:
    """Some tokenizers take the space at the beginning of a text for their own."""
    words = {"▁Hello": 0, "▁world": 1, "<unk>": 2}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.decoder = decoders.Metaspace()
    assert detokenizer.Detokenizer(tokenizer).push([1]) == "world"
    assert detokenizer.Detokenizer(tokenizer, prefix_ids=[0]).push([1]) == " world"
