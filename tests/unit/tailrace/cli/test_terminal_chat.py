"""The dialogue on a terminal: commands, Ctrl-C, and what is said while nothing arrives."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from typing import Any

import pytest

from tailrace.cli import terminal_chat
from tailrace.cli.chat_client import Answer, ChatError
from tailrace.cli.transcript import Piece
from tailrace.local.console import Console
from tests.support import waiting


class Scripted:
    """A client whose answers are given. An exception among the texts is raised there."""

    def __init__(self, *texts: Any, state: str = "ready") -> None:
        self.texts: tuple[Any, ...] = texts
        self.state = state
        self.asked: list[tuple[str, str, str | None]] = []
        self.cancelled: list[str] = []
        self.report: Any = None

    def send(self, model: str, text: str, previous: str | None) -> str:
        self.asked.append((model, text, previous))
        return f"resp_{len(self.asked)}"

    def watch(self, response_id: str) -> Iterator[tuple[Answer, Piece | None]]:
        answer = Answer(response_id, status="completed", usage={"output_tokens": 2})
        for text in self.texts:
            if isinstance(text, BaseException):
                raise text
            if callable(text):
                text()
            else:
                yield answer, text if isinstance(text, Piece) else Piece("message", text)

    def cancel(self, response_id: str) -> None:
        self.cancelled.append(response_id)

    def engine_state(self) -> str:
        return self.state

    def models(self) -> list[str]:
        return ["small", "large"]


def chat_of(client: Scripted) -> tuple[terminal_chat.Chat, io.StringIO]:
    notes = io.StringIO()
    return terminal_chat.Chat(client, "small", Console(notes)), notes  # type: ignore[arg-type]


def on_a_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    """Answers go to a terminal of this width."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))


def typed(monkeypatch: pytest.MonkeyPatch, *lines: Any) -> None:
    """What the user types; an exception class stands for Ctrl-C or Ctrl-D."""
    left = iter(lines)

    def read(_prompt: str) -> str:
        line = next(left)
        if isinstance(line, type):
            raise line
        return str(line)

    monkeypatch.setattr("builtins.input", read)


def dialogue(
    monkeypatch: pytest.MonkeyPatch, client: Scripted, *lines: Any
) -> tuple[terminal_chat.Chat, str]:
    typed(monkeypatch, *lines)
    notes = io.StringIO()
    console = Console(notes)
    chat = terminal_chat.Chat(client, "small", console)  # type: ignore[arg-type]
    assert terminal_chat.dialogue(chat, console) == 0
    return chat, notes.getvalue()


def test_questions_follow_each_other_until_a_new_conversation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client = Scripted("yes", "!")
    dialogue(monkeypatch, client, "one", "", "two", "/new", "/model large", "three", "/quit")
    assert client.asked == [
        ("small", "one", None),
        ("small", "two", "resp_1"),
        ("large", "three", None),
    ]
    assert capsys.readouterr().out == "yes!\n" * 3


@pytest.mark.parametrize("line", ["/help", "/what"])
def test_help_names_every_command(monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    _, said = dialogue(monkeypatch, Scripted(), line, EOFError)
    for command in ("/help", "/new", "/model", "/quit", "Ctrl-C", "Ctrl-D"):
        assert command in said
    assert ("there is no /what" in said) == (line == "/what")


def test_a_model_that_is_not_offered_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    chat, said = dialogue(monkeypatch, Scripted(), "/model huge", EOFError)
    assert chat.model == "small"
    assert "there is no model huge" in said
    assert "* small" in said
    assert "  large" in said


def test_ctrl_c_stops_the_answer_and_a_second_one_leaves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = Scripted("half", KeyboardInterrupt())
    chat, said = dialogue(monkeypatch, client, "one", KeyboardInterrupt)
    assert client.cancelled == ["resp_1"]
    assert "(stopped; Ctrl-C again leaves)" in said
    assert chat.previous == "resp_1"


def test_at_the_prompt_ctrl_c_twice_leaves_but_not_with_a_question_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = Scripted("yes")
    _, said = dialogue(
        monkeypatch, client, KeyboardInterrupt, "one", KeyboardInterrupt, KeyboardInterrupt
    )
    assert len(client.asked) == 1
    assert said.count("(Ctrl-C again or Ctrl-D leaves)") == 2


def test_a_refusal_ends_the_answer_and_not_the_dialogue(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Scripted(ChatError("too long"))
    _, said = dialogue(monkeypatch, client, "one", "two", EOFError)
    assert said.count("chat: too long") == 2


def test_an_engine_that_loads_is_told_while_nothing_arrives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(terminal_chat, "ENGINE_POLL_S", 0.01)
    notes = io.StringIO()

    def told() -> None:
        waiting.eventually_blocking(lambda: "(engine loading;" in notes.getvalue(), "it is told")

    client = Scripted(told, "yes", state="loading")
    chat = terminal_chat.Chat(client, "small", Console(notes))  # type: ignore[arg-type]
    assert chat.send("one")
    assert notes.getvalue().count("the answer begins when it is ready") == 1


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_the_place_in_the_queue_stands_on_the_status_line_until_the_answer_begins() -> None:
    notes, answers = Terminal(), [Answer("resp_1", waits=words) for words in ("3 before", "")]

    class Waiting(Scripted):
        def watch(self, response_id: str) -> Iterator[tuple[Answer, Piece | None]]:
            for answer in answers:
                yield answer, None
            yield from super().watch(response_id)

    chat = terminal_chat.Chat(Waiting("yes"), "small", Console(notes))  # type: ignore[arg-type]
    assert chat.send("one")
    assert notes.getvalue().startswith("\r\x1b[K(3 before)\r\x1b[K")


def test_a_note_in_the_middle_of_an_answer_begins_a_line_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on_a_terminal(monkeypatch, 20)
    client = Scripted()
    client.texts = (
        "the first words ",
        lambda: client.report("(connection lost, retrying)"),
        "and",
    )
    chat, notes = chat_of(client)
    assert chat.send("one")
    assert "(connection lost, retrying)" in notes.getvalue()
    assert capsys.readouterr().out == "the first words\nand\n"


def test_what_dims_the_terminal_never_outlives_the_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on_a_terminal(monkeypatch, 20)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    client = Scripted("yes")
    for ending in (KeyboardInterrupt(), ChatError("gone")):
        client.texts = (Piece("reasoning", "I was thin"), ending)
        chat, _ = chat_of(client)
        with contextlib.suppress(ChatError):
            chat.send("one")
        out = capsys.readouterr().out
        assert out.strip("\n") == "\x1b[2mI was thin\x1b[0m"
