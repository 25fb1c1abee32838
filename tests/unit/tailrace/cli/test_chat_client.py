"""The chat's client: what it makes of a stream, and how it goes on after a lost connection."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tailrace.cli import chat_client
from tailrace.cli.transcript import Piece
from tests.support import page_events


def delta(number: int, text: str) -> dict[str, Any]:
    return {"type": "response.output_text.delta", "sequence_number": number, "delta": text}


def end(number: int, status: str = "completed") -> dict[str, Any]:
    return {
        "type": f"response.{status}",
        "sequence_number": number,
        "response": {"status": status, "usage": {"output_tokens": 3}},
    }


def frame(event: dict[str, Any]) -> str:
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"


class TestEvents:
    def test_the_objects_before_the_end_of_the_stream_are_events(self) -> None:
        stream = b': keep-alive\n\ndata: {"a": 1}\n\ndata: 7\n\ndata: [DONE]\n\ndata: {"c": 3}\n\n'
        assert list(chat_client.sse_events([stream])) == [{"a": 1}]


class TestAnswer:
    def test_text_is_what_the_deltas_add_up_to(self) -> None:
        answer = chat_client.Answer("resp_1")
        shown = [
            answer.apply(event)
            for event in (
                {"type": "response.created", "sequence_number": 0},
                delta(1, "a"),
                delta(2, "b"),
                end(3),
            )
        ]
        assert shown == [None, Piece("message", "a"), Piece("message", "b"), None]
        assert (answer.text, answer.status, answer.last, answer.usage) == (
            "ab",
            "completed",
            3,
            {"output_tokens": 3},
        )

    def test_what_is_known_already_is_not_shown_again(self) -> None:
        answer = chat_client.Answer("resp_1", last=4)
        assert answer.apply(delta(4, "again")) is None
        assert answer.text == ""

    def test_a_place_in_the_queue_is_told_in_words_until_the_next_event(self) -> None:
        answer = chat_client.Answer("resp_1")
        place = {"type": "response.queued", "sequence_number": 0}
        answer.apply({"type": "response.created", "sequence_number": 0})
        for queue, words in (
            ({"position": 12, "eta_s": 8.4}, "12 requests before yours, about 8 s"),
            ({"position": 1, "eta_s": 0.2}, "1 request before yours, about 1 s"),
            ({"position": 0}, "no request before yours"),
            ({"position": 2000, "at_least": True}, "at least 2000 requests before yours"),
            ({"position": "x"}, ""),
        ):
            assert answer.apply({**place, "queue": queue}) is None
            assert (answer.waits, answer.last) == (words, 0)
        answer.apply({**place, "queue": {"position": 1}})
        answer.apply(delta(1, "a"))
        assert (answer.waits, answer.text) == ("", "a")

    def test_a_gap_is_an_error_and_not_a_hole_in_the_text(self) -> None:
        answer = chat_client.Answer("resp_1", last=4)
        with pytest.raises(chat_client.ChatError, match="left out events 5 to 6"):
            answer.apply(delta(7, "x"))

    def test_items_begin_grow_and_end_each_as_what_it_is(self) -> None:
        answer = chat_client.Answer("resp_1")
        found = [answer.apply(event) for event in page_events.made()["cut"]]
        shown = [each for each in found if each]
        assert [(each.kind, each.name) for each in shown if each.name] == [("call", "geo.weather")]
        assert [each for each in shown if each.ends] == [
            Piece("reasoning", ends=True),
            Piece("call", ends=True, cut=True),
        ]
        assert "".join(each.text for each in shown) == 'Short.{"city": "Zür'
        assert (answer.text, answer.status) == ("", "incomplete")


class Cut(httpx.SyncByteStream):
    """A body that breaks off with a connection error after what it has."""

    def __init__(self, text: str, *, whole: bool) -> None:
        self._text, self._whole = text, whole

    def __iter__(self) -> Iterator[bytes]:
        yield self._text.encode()
        if not self._whole:
            raise httpx.ReadError("connection reset")


def client_of(
    answers: list[Any], monkeypatch: pytest.MonkeyPatch
) -> tuple[chat_client.Client, list[httpx.Request], list[str]]:
    """A client whose requests are answered one after the other by `answers`."""
    asked: list[httpx.Request] = []
    told: list[str] = []

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        answer = answers[len(asked) - 1]
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, httpx.Response)
        return answer

    monkeypatch.setattr(chat_client, "RETRY_FIRST_S", 0.0)
    transport = httpx.MockTransport(handle)
    client = chat_client.Client("http://gateway", lambda: "credential", transport)
    client.report = told.append
    return client, asked, told


def test_a_lost_connection_is_resumed_after_the_last_event_and_nothing_is_shown_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    created = {"type": "response.created", "sequence_number": 0}
    answers = [
        httpx.Response(200, stream=Cut(frame(created) + frame(delta(1, "one ")), whole=False)),
        httpx.ConnectError("refused"),
        httpx.Response(503, text="draining"),
        httpx.Response(200, stream=Cut(frame(delta(2, "two")) + frame(end(3)), whole=True)),
    ]
    client, asked, told = client_of(answers, monkeypatch)
    texts = [shown.text for _, shown in client.watch("resp_1") if shown]
    assert "".join(texts) == "one two"
    assert [request.url.params.get("starting_after") for request in asked] == [None, "1", "1", "1"]
    assert told == ["(connection lost, retrying)", "(connected again)"]


def test_ends_of_lines_that_only_unicode_knows_are_shown_as_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They ended the chat with a traceback, because the HTTP client's lines end there."""
    text = "a\u2028b\u2029c\u0085d"
    body = "".join(
        f"data: {json.dumps(event, ensure_ascii=False)}\n\n"
        for event in ({"type": "response.created", "sequence_number": 0}, delta(1, text), end(2))
    ).encode()
    pieces = [body[n : n + 1] for n in range(len(body))]  # cut within characters, too
    client, _, _ = client_of([httpx.Response(200, content=iter(pieces))], monkeypatch)
    assert [shown.text for _, shown in client.watch("resp_1") if shown] == [text]


def test_a_question_without_an_answer_is_asked_again_as_the_same_question(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A request whose acceptance was lost must not run twice."""
    answers = [
        httpx.ConnectError("refused"),
        httpx.Response(503, json={"error": {"message": "The log cannot be written."}}),
        httpx.ReadError("reset"),
        httpx.Response(200, json={"id": "resp_1"}),
    ]
    client, asked, told = client_of(answers, monkeypatch)
    assert client.send("m", "hello", None) == "resp_1"
    assert len({request.headers["idempotency-key"] for request in asked}) == 1
    assert told == ["(connection lost, retrying)", "(connected again)"]


def test_an_outage_that_lasts_ends_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    client, _, _ = client_of([httpx.ConnectError("refused")] * 2, monkeypatch)
    monkeypatch.setattr(chat_client, "GIVE_UP_S", -1.0)
    with pytest.raises(chat_client.ChatError, match="no gateway answers at http://gateway"):
        client.send("m", "hello", None)


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (httpx.Response(503, json={"ready": False, "engine": {"state": "loading"}}), "loading"),
        (httpx.Response(200, json=[]), ""),
        (httpx.ConnectError("refused"), ""),
    ],
)
def test_the_state_of_the_engine_is_asked_and_never_an_error(
    answer: Any, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, _, _ = client_of([answer], monkeypatch)
    assert client.engine_state() == state


def test_a_refusal_is_told_and_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = httpx.Response(404, json={"error": {"message": "No such response."}})
    client, asked, _ = client_of([refusal], monkeypatch)
    with pytest.raises(chat_client.ChatError, match="No such response"):
        list(client.watch("resp_1"))
    assert len(asked) == 1


def test_the_credential_travels_in_the_header_only(monkeypatch: pytest.MonkeyPatch) -> None:
    client, asked, _ = client_of([httpx.Response(200, json={"id": "resp_1"})], monkeypatch)
    assert client.send("m", "hello", None) == "resp_1"
    assert asked[0].headers["authorization"] == "Bearer credential"
    assert "credential" not in str(asked[0].url)
    assert json.loads(asked[0].content)["background"] is True
