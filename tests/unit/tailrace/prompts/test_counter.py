"""Counting prompts without an engine, and whether two count alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tailrace.prompts import agreement, chat_template, counter
from tailrace.protocol import records
from tests.support import small_tokenizer

IMAGE = {"type": "image", "sha256": "00", "media": "image/png", "width": 1, "height": 1, "data": ""}


def request(*messages: dict[str, Any], **more: Any) -> records.Request:
    owner = records.Owner("i", "s")
    return records.Request("r", owner, "m", list(messages), records.Sampling(1), {}, **more)


def said(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


@pytest.fixture
def made(tmp_path: Path) -> counter.Counter:
    return counter.Counter(small_tokenizer.build(tmp_path / "model"))


@pytest.mark.parametrize(
    "text", ["", "hi", "größer 天気 👩‍👩‍👧", "<|im_end|>", "a\x00b\r\n", "x" * 5000]
)
def test_every_byte_counts_and_special_tokens_are_one(made: counter.Counter, text: str) -> None:
    whole = f"<|im_start|>user{text}<|im_end|>\n<|im_start|>assistant\n"
    specials = whole.count("<|im_start|>") + whole.count("<|im_end|>")
    rest = whole.replace("<|im_start|>", "").replace("<|im_end|>", "")
    merged = rest.count("er")
    assert made.count(request(said(text))) == specials + len(rest.encode()) - merged


def test_a_tool_is_counted_as_the_template_shows_it(made: counter.Counter) -> None:
    tool = {"type": "function", "function": {"name": "f", "description": "<&天>"}}
    shown = json.dumps(chat_template.tool_for_template(tool), ensure_ascii=False)
    plain = made.count(request(said("hi")))
    with_tool = made.count(request(said("hi"), tools=[tool]))
    assert plain is not None
    assert with_tool is not None
    assert with_tool - plain == len(f"system\n{shown}\n\n".encode()) + 2 - shown.count("er")
    hidden = request(said("hi"), tools=[tool], tool_choice=records.ToolChoice("none"))
    assert made.count(hidden) == plain


OF_MEMBERS = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}"
    "{% for call in message.tool_calls or [] %}"
    "{% for name, value in call.function.arguments | items %}<{{ name }}>{{ value }}{% endfor %}"
    "{% endfor %}{% endfor %}"
)


@pytest.mark.parametrize(
    ("said_arguments", "shown"),
    [('{"city": "Z"}', "<city>Z"), ('{"city": ', '<arguments>{"city": '), ("null", ""), ("", "")],
)
def test_a_call_whose_arguments_are_no_object_is_shown_to_a_template_that_reads_members(
    tmp_path: Path, said_arguments: str, shown: str
) -> None:
    """The template refused the dialogue, and every later turn of it (`invalid_prompt`)."""
    made = counter.Counter(small_tokenizer.build(tmp_path / "model", OF_MEMBERS, merges=False))
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": said_arguments}}
    dialogue = [said("hi"), {"role": "assistant", "content": None, "tool_calls": [call]}]
    assert made.count(request(*dialogue)) == len(f"user: hiassistant: {shown}".encode())


def test_what_takes_the_engine_is_not_counted(made: counter.Counter) -> None:
    assert made.count(request({"role": "user", "content": [IMAGE]})) is None
    assert made.count(request(embed=records.Embed(["a"]))) is None
    assert made.count(request(said("hi"), reasoning={"effort": "low"})) is not None


def test_a_text_without_a_template_is_counted_as_it_is(made: counter.Counter) -> None:
    assert made.count(request(said("over <|im_end|>"), raw=True)) == len("ov") + 1 + 1 + 1


def test_a_template_that_refuses_leaves_it_to_the_worker(tmp_path: Path) -> None:
    template = "{% if messages[0].role != 'user' %}{{ raise_exception('no') }}{% endif %}x"
    made = counter.Counter(small_tokenizer.build(tmp_path, template))
    assert made.count(request({"role": "system", "content": "s"}, said("u"))) is None
    assert made.count(request(said("u"))) == 1


def test_equal_files_agree_and_others_do_not(tmp_path: Path) -> None:
    found = {
        name: counter.Counter(small_tokenizer.build(tmp_path / name, template, merges)).digest
        for name, template, merges in (
            ("one", small_tokenizer.TEMPLATE, True),
            ("same", small_tokenizer.TEMPLATE, True),
            ("other merges", small_tokenizer.TEMPLATE, False),
            ("other template", small_tokenizer.TEMPLATE + " ", True),
        )
    }
    assert found["one"] == found["same"]
    assert len(set(found.values())) == 3
    assert all(found.values())


def test_behaviour_counts_beside_the_files() -> None:
    """The same tokenizer and template, and another pre-tokenizer, or other arguments of calls."""

    def render(request: records.Request) -> list[int]:
        return [len(str(request.messages)), len(request.tools)]

    def digest(one: Any = render, raw: Any = len) -> str:
        return agreement.digest(one, lambda text: [raw(text)], "t", "{}")

    assert digest() == digest()
    assert digest() != digest(raw=lambda text: len(text) + 1)
    assert digest() != digest(lambda r: [*render(r), "天" in str(r.messages)])
    assert digest() != digest(lambda r: [*render(r), len(r.tools) == 2])
    assert digest() != digest(lambda r: [*render(r), r.reasoning == {"effort": "low"}])

    def refuses(request: records.Request) -> list[int]:
        raise chat_template.Unrenderable("invalid_prompt", "no")

    assert digest(refuses) == digest(refuses) != digest()


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ("{{ strftime_now('%Y') }}", "at other times"),
        ("{% generation %}x{% endgeneration %}", "plain Jinja"),
        ("{% if %}", "plain Jinja"),
    ],
)
def test_a_model_that_cannot_be_counted_says_why(tmp_path: Path, broken: str, why: str) -> None:
    with pytest.raises(counter.NotCountable, match=why):
        counter.Counter(small_tokenizer.build(tmp_path, broken))


def test_a_folder_without_files_says_why(tmp_path: Path) -> None:
    with pytest.raises(counter.NotCountable, match="cannot be read"):
        counter.Counter(tmp_path)
    (small_tokenizer.build(tmp_path) / "chat_template.jinja").unlink()
    with pytest.raises(counter.NotCountable, match="no template"):
        counter.Counter(tmp_path)


def test_one_of_several_templates_is_for_tools(tmp_path: Path) -> None:
    small_tokenizer.build(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    several = [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "tool"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": several}))
    made = counter.Counter(tmp_path)
    tool = {"type": "function", "function": {"name": "f"}}
    assert made.count(request(said("hi"))) == 1
    assert made.count(request(said("hi"), tools=[tool])) == 4


def test_special_tokens_are_known_to_the_template(tmp_path: Path) -> None:
    made = counter.Counter(small_tokenizer.build(tmp_path, "{{ eos_token }}{{ bos_token }}x"))
    assert made.count(request(said("hi"))) == 2
