"""An answer as text: what a terminal gets, and what a pipe."""

from __future__ import annotations

import re

import pytest

from tailrace.cli import chat_client, transcript
from tailrace.cli.transcript import DIM, PLAIN, Piece, Transcript
from tests.support import cases, page_events, toy_parser


def printed(name: str, width: int = 0, *, dims: bool = True) -> str:
    """What a whole series of events prints."""
    answer, text = chat_client.Answer("resp_1"), Transcript(width, dims=dims)
    shown = (answer.apply(event) for event in page_events.made()[name])
    return "".join(text.feed(each) for each in shown if each) + text.end()


CALLS = '→ weather({"city":"Zürich"})\n→ weather({"city":"Łódź"})\n'


def test_a_terminal_gets_reasoning_dimmed_and_each_call_on_a_line() -> None:
    assert printed("items", 80) == f"{DIM}I think 天気.{PLAIN}\nLet me < see.\n{CALLS}So."


def test_a_pipe_gets_messages_and_calls_and_no_escapes() -> None:
    assert printed("items") == f"Let me < see.\n{CALLS}So."
    assert printed("thoughts") == ""


def test_a_terminal_that_cannot_dim_is_told_in_words() -> None:
    assert printed("items", 80, dims=False).startswith("(thinking) I think 天気.\nLet me")


@cases.each("width", [0, 12, 80])
def test_a_plain_answer_is_printed_as_ever(width: int) -> None:
    wanted = {0: "One two three.", 12: "One two\nthree.", 80: "One two three."}
    assert printed("plain", width) == wanted[width]


def test_a_call_that_was_cut_off_shows_it() -> None:
    assert printed("cut") == '→ geo.weather({"city": "Zür …'


@pytest.mark.parametrize("width", [0, 200])
def test_names_and_input_stay_one_line_and_cannot_command_the_terminal(width: int) -> None:
    evil = "a\x1b[31m\r\n\u2028b\x9b2J"
    text = Transcript(width)
    out = text.feed(Piece("call", name=evil)) + text.feed(Piece("call", evil))
    out += text.feed(Piece("call", ends=True))
    assert not re.search(r"[\x00-\x1f\x7f-\x9f\u2028]", out)
    assert printed("custom", width) == "→ shell(ls -la echo <b>done</b>)"


def test_a_note_in_the_middle_of_reasoning_is_not_dimmed_and_loses_no_letter() -> None:
    text = Transcript(30)
    out = text.feed(Piece("reasoning", "I am thin"))
    out += text.interrupt() + "(a note)\n"
    out += text.feed(Piece("reasoning", "king.")) + text.end()
    assert out == f"{DIM}I am{PLAIN}\n(a note)\n{DIM}thinking.{PLAIN}"
    assert Transcript(0).interrupt() == ""


def test_it_is_the_same_however_the_answer_was_divided() -> None:
    for size in (1, 2, 7, 99):
        found = page_events.answered(toy_parser.ANSWER, size=size)
        answer, text = chat_client.Answer("r"), Transcript(40)
        shown = (answer.apply(event) for event in found)
        out = "".join(text.feed(each) for each in shown if each) + text.end()
        assert out == printed("items", 40)
    assert transcript.ARROW in printed("items")
