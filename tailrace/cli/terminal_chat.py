"""A chat in the terminal. Asks in background mode, watches by SSE, and resumes after a lost
connection from the last event that it has."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

from tailrace.protocol import events

RETRY_FIRST_S = 0.25
RETRY_LONGEST_S = 5.0
GIVE_UP_S = 600.0
SILENCE_S = 45.0  # the services send a comment well within this time

# Statuses to retry: the service drains, is away, or limits the rate.
TRANSIENT = {408, 425, 429, 500, 502, 503, 504}


class ChatError(Exception):
    """The chat cannot go on. The text is for the user."""


def sse_events(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The JSON objects of a server-sent event stream (WHATWG HTML §9.2: data lines add up, a blank
    line dispatches, ":" is a comment)."""
    data: list[str] = []
    for line in lines:
        if line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif line == "" and data:
            text, data = "\n".join(data), []
            if text == "[DONE]":
                return
            event = json.loads(text)
            if isinstance(event, dict):
                yield event


@dataclass(slots=True)
class Answer:
    """What was received of one response (pure).

    Attributes:
        last: the resume position, the sequence number of the newest event; -1 before the first.
        text: the text so far.
        status: how the response ended; empty before the end.
        error: the error message; empty without one.
        usage: token counts of the terminal event; empty before it.
    """

    response_id: str
    last: int = -1
    text: str = ""
    status: str = ""
    error: str = ""
    usage: dict[str, Any] = field(default_factory=dict)

    def apply(self, event: dict[str, Any]) -> str:
        """Add an event. Returns the text to show; empty for an event that is known already.

        Raises:
            ChatError: an event is missing before this one.
        """
        number = event.get("sequence_number")
        if not isinstance(number, int):
            return ""
        if number <= self.last:
            return ""
        if number != self.last + 1:
            raise ChatError(f"the service left out events {self.last + 1} to {number - 1}")
        self.last = number
        kind = event.get("type")
        if kind == "response.output_text.delta":
            self.text += event["delta"]
            return str(event["delta"])
        if kind in events.TERMINAL_TYPES:
            response = event.get("response") or {}
            self.status = str(response.get("status") or kind.removeprefix("response."))
            self.usage = response.get("usage") or {}
            self.error = str((response.get("error") or {}).get("message") or "")
        return ""


def _error_text(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return answer.text[:300]


class Client:
    """One user at one gateway. `credential` returns a valid credential at every call."""

    def __init__(
        self,
        url: str,
        credential: Callable[[], str],
        *,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._url = url.rstrip("/")
        self._credential = credential
        self._tell = tell
        self._http = httpx.Client(timeout=httpx.Timeout(10.0, read=SILENCE_S))
        self._watch_urls = [self._url]  # push services first; the gateway can always be asked

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._credential()}"}

    def configure(self) -> str:
        """Read the push services' addresses. Returns the default model.

        Raises:
            ChatError: no gateway answers.
        """
        try:
            answer = self._http.get(f"{self._url}/config.json")
            answer.raise_for_status()
            settings = answer.json()
        except (httpx.HTTPError, ValueError) as error:
            raise ChatError(
                f"no gateway at {self._url} ({error}): start one with `tailrace up`"
            ) from error
        self._watch_urls = [*settings.get("push_urls", []), self._url]
        return str(settings.get("default_model") or "")

    def ask(self, model: str, text: str, previous: str | None) -> str:
        """Create a response and return its id.

        Raises:
            ChatError: the gateway refused or did not answer. There is no retry, because the request
                may have been accepted before the connection broke.
        """
        body = {
            "model": model,
            "input": text,
            "background": True,
            "store": True,
            "previous_response_id": previous,
        }
        try:
            answer = self._http.post(
                f"{self._url}/v1/responses", json=body, headers=self._headers()
            )
        except httpx.HTTPError as error:
            raise ChatError(
                f"the gateway did not answer ({error or type(error).__name__})"
            ) from error
        if answer.status_code != 200:
            raise ChatError(_error_text(answer))
        return str(answer.json()["id"])

    def cancel(self, response_id: str) -> None:
        try:
            self._http.post(
                f"{self._url}/v1/responses/{response_id}/cancel", headers=self._headers()
            )
        except httpx.HTTPError as error:
            self._tell(f"(could not be stopped: {error})")

    def watch(self, response_id: str) -> Iterator[tuple[Answer, str]]:
        """Yield the answer so far and the text to show, over as many connections as it needs.

        Raises:
            ChatError: the service refuses, leaves out an event, or is away for GIVE_UP_S.
        """
        answer = Answer(response_id)
        pause, lost_at, attempt = RETRY_FIRST_S, 0.0, 0
        while not answer.status:
            try:
                before = answer.last
                for shown in self._watch_once(
                    answer, self._watch_urls[attempt % len(self._watch_urls)]
                ):
                    if lost_at:
                        self._tell("(connected again)")
                    pause, lost_at = RETRY_FIRST_S, 0.0
                    yield answer, shown
                if answer.last > before:
                    continue  # the service drains: the next request resumes
            except (httpx.HTTPError, ConnectionResetError) as error:
                if not lost_at:
                    self._tell(f"(connection lost: {error or type(error).__name__}; resuming)")
            attempt += 1
            lost_at = lost_at or time.monotonic()
            if time.monotonic() - lost_at > GIVE_UP_S:
                raise ChatError(
                    f"no service answers for {GIVE_UP_S:.0f} s; the answer goes on "
                    f"without us: {response_id}"
                )
            time.sleep(pause)
            pause = min(pause * 2, RETRY_LONGEST_S)

    def _watch_once(self, answer: Answer, base: str) -> Iterator[str]:
        parameters: dict[str, str | int] = {"stream": "true"}
        if answer.last >= 0:
            parameters["starting_after"] = answer.last
        address = f"{base.rstrip('/')}/v1/responses/{answer.response_id}"
        with self._http.stream(
            "GET", address, params=parameters, headers=self._headers()
        ) as stream:
            if stream.status_code in TRANSIENT:
                raise httpx.RemoteProtocolError(f"status {stream.status_code}")
            if stream.status_code != 200:
                stream.read()
                raise ChatError(_error_text(stream))
            for event in sse_events(stream.iter_lines()):
                shown = answer.apply(event)
                yield shown
                if answer.status:
                    return


def _show_answer(client: Client, model: str, question: str, previous: str | None) -> str | None:
    """Ask and show the answer. Returns the id of the response that the next question follows."""
    began = time.monotonic()
    response_id = client.ask(model, question, previous)
    first: float | None = None
    answer = Answer(response_id)
    try:
        for answer, text in client.watch(response_id):  # noqa: B007 - read after the loop
            if text:
                first = first or time.monotonic() - began
                sys.stdout.write(text)
                sys.stdout.flush()
    except KeyboardInterrupt:
        client.cancel(response_id)
        print("\n(stopped)", file=sys.stderr)
        return response_id
    print()
    if answer.error or answer.status != "completed":
        print(f"({answer.status}{f': {answer.error}' if answer.error else ''})", file=sys.stderr)
    elif first is not None:
        tokens = answer.usage.get("output_tokens", 0)
        passed = max(time.monotonic() - began - first, 1e-3)
        print(
            f"({tokens} tokens, first after {first * 1000:.0f} ms, {tokens / passed:.0f} tokens/s)",
            file=sys.stderr,
        )
    return response_id if answer.status in ("completed", "incomplete", "cancelled") else previous


def run(url: str, credential: Callable[[], str], model: str, question: str) -> int:
    """One question, or a dialogue until end of input. Returns an exit code."""

    def tell(text: str) -> None:
        print(f"\n{text}", file=sys.stderr)

    with Client(url, credential, tell=tell) as client:
        try:
            model = model or client.configure()
            if question:
                return 0 if _show_answer(client, model, question, None) else 1
        except ChatError as error:
            print(f"chat: {error}", file=sys.stderr)
            return 1
        return _dialogue(client, model)


def _dialogue(client: Client, model: str) -> int:
    print(f"{model}. An empty line or Ctrl-D ends; Ctrl-C stops an answer.", file=sys.stderr)
    previous: str | None = None
    while True:
        try:
            question = input("> ").strip()
        except (EOFError, KeyboardInterrupt):
            print(file=sys.stderr)
            return 0
        if not question:
            return 0
        try:
            previous = _show_answer(client, model, question, previous)
        except ChatError as error:
            print(f"chat: {error}", file=sys.stderr)
