"""Which passages a prompt has, and how."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.files import passage_prompt
from gateway.parsing import responses_api
from tailrace import settings
from tailrace.protocol import file_search
from tailrace.settings.shapes import Pool
from tests.support import cases

TOOL = {"type": "file_search", "vector_store_ids": ["vs_1"]}
INCLUDE = ["file_search_call.results"]


def hit(text: str, name: str = "a.txt", **attributes: str) -> passage_prompt.Hit:
    return passage_prompt.Hit("file-1", name, 0.5, text, {**attributes})


def prompt_of(
    *hits: passage_prompt.Hit, context: int = 1_000_000, **body: Any
) -> passage_prompt.PassagePrompt:
    catalog = settings.Catalog((Pool("p", ("m",), context, 100),))
    create = responses_api.parse({"input": "why?", "tools": [TOOL], **body}, catalog, searches=True)
    assert create.search is not None
    return passage_prompt.with_passages(create, create.search, create.input, ["why?"], hits)


def names(prompt: passage_prompt.PassagePrompt) -> list[str]:
    return [source.name for source in prompt.search.sources]


def test_passages_are_numbered_without_gaps_as_the_echo_says() -> None:
    prompt = prompt_of(hit("x" * 70_000), hit("one", "b.txt"), hit("two", "c.txt"))
    text = prompt.messages[-1]["content"]
    assert text.endswith("\n\n[1] b.txt\none\n\n[2] c.txt\ntwo")
    assert names(prompt) == ["b.txt", "c.txt"]
    assert text[: -prompt.search.characters] == "why?"
    assert prompt.search.results is None


@pytest.mark.parametrize("letter", ["x", "\u5929"])
def test_they_are_bounded_in_bytes_with_what_a_client_is_shown(letter: str) -> None:
    hits = [hit(letter * 900, f"{n}.txt", a="y" * 500) for n in range(50)]
    bodies: tuple[dict[str, Any], ...] = ({}, {"include": INCLUDE})
    for body in bodies:
        prompt = prompt_of(*hits, **body)
        each = 900 * len(letter.encode()) + len("\n\n[10] 10.txt\n")
        each += len('{"a":""}') + 500 if body else 0
        assert len(names(prompt)) == min(50, passage_prompt.MAX_BYTES // each)
    assert prompt.search.results is not None
    assert [each["filename"] for each in prompt.search.results] == names(prompt)


def test_they_leave_room_for_the_prompt_and_the_answer() -> None:
    hits = [hit("x" * 400, f"{n}.txt") for n in range(50)]
    most = len(names(prompt_of(*hits, context=3_000)))
    assert 15 < most < 25
    assert len(names(prompt_of(*hits, context=3_000, max_output_tokens=1_700))) < most / 2
    long = [{"role": "user", "content": "y" * 6_000}]
    assert len(names(prompt_of(*hits, context=3_000, input=long))) < most / 2
    none = prompt_of(*hits, context=300)
    assert (none.search.sources, none.search.characters) == ((), 0)
    assert none.messages == [{"role": "user", "content": "why?"}]


def test_what_may_be_left_out_of_a_prompt_makes_room() -> None:
    turns = [
        {"role": "user", "content": "y" * 6_000},
        {"role": "assistant", "content": "z"},
        {"role": "user", "content": "why?"},
    ]
    hits = [hit("x" * 400, f"{n}.txt") for n in range(50)]
    whole = prompt_of(*hits, context=3_000, input=turns)
    prompt = prompt_of(*hits, context=3_000, input=turns, truncation="auto")
    assert len(names(whole)) < len(names(prompt)) / 2


def test_no_more_than_citations_can_name() -> None:
    prompt = prompt_of(*(hit("x", f"{n}.txt") for n in range(60)))
    assert len(names(prompt)) == file_search.MAX_PASSAGES


def test_a_name_stays_on_its_line() -> None:
    prompt = prompt_of(hit("x", "a\n\n[7] b\x07.txt"), hit("y", "n" * 999))
    assert names(prompt) == ["a [7] b .txt", "n" * 256]


@cases.each(
    ("messages", "question"),
    [
        ([], None),
        ([{"role": "system", "content": "s"}], None),
        ([{"role": "user", "content": " \n"}], None),
        ([{"role": "user", "content": " a "}, {"role": "assistant", "content": "b"}], "a"),
        (
            [
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "a"}, {"type": "image", "sha256": "0"}],
                }
            ],
            "a",
        ),
    ],
)
def test_the_question_is_the_last_one_of_a_user(
    messages: list[dict[str, Any]], question: str | None
) -> None:
    assert passage_prompt.question(messages) == question
