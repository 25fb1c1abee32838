"""A chat in the terminal: asks in the background, watches by SSE, and after a lost connection
watches on from the last event it has."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

from tailrace.protocol import events

RETRY_FIRST_SECONDS = 0.25
RETRY_LONGEST_SECONDS = 5.0
GIVE_UP_SECONDS = 600.0
SILENCE_SECONDS = 45.0  # the services send a comment well within this time

# What may pass by itself: the service drains or is away, or is asked too often.
TRANSIENT = {408, 425, 429, 500, 502, 503, 504}


class ChatError(Exception):
    """The text is for the user."""


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
    """What was received of one response (pure). `last` is the resume position: the sequence number
    of the newest event."""

    response_id: str
    last: int = -1
    text: str = ""
    status: str = ""  # empty until the end
    error: str = ""
    usage: dict[str, Any] = field(default_factory=dict)

    def take(self, event: dict[str, Any]) -> str:
        """Returns the text to show. Events that are known already have no effect, a gap is an
        error: neither may reach the eye."""
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
    """One user at one gateway. `credential` gives a current one at every call."""

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
        self._http = httpx.Client(timeout=httpx.Timeout(10.0, read=SILENCE_SECONDS))
        self._watch_urls = [self._url]  # push services first; the gateway can always be asked

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._credential()}"}

    def configure(self) -> str:
        """Learn push services and the default model. Raises ChatError when nothing answers."""
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
        """Returns the response id. Raises ChatError. A connection that broke before the answer is
        not retried: it may have been taken."""
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
        """The answer as it grows, with the text to show, through as many connections as it takes.
        Raises ChatError."""
        answer = Answer(response_id)
        pause, lost_at, attempt = RETRY_FIRST_SECONDS, 0.0, 0
        while not answer.status:
            try:
                before = answer.last
                for shown in self._watch_once(
                    answer, self._watch_urls[attempt % len(self._watch_urls)]
                ):
                    if lost_at:
                        self._tell("(connected again)")
                    pause, lost_at = RETRY_FIRST_SECONDS, 0.0
                    yield answer, shown
                if answer.last > before:
                    continue  # the service ended the stream in good order, to be asked again
            except (httpx.HTTPError, ConnectionResetError) as error:
                if not lost_at:
                    self._tell(f"(connection lost: {error or type(error).__name__}; resuming)")
            attempt += 1
            lost_at = lost_at or time.monotonic()
            if time.monotonic() - lost_at > GIVE_UP_SECONDS:
                raise ChatError(
                    f"no service answers for {GIVE_UP_SECONDS:.0f} s; the answer goes on "
                    f"without us: {response_id}"
                )
            time.sleep(pause)
            pause = min(pause * 2, RETRY_LONGEST_SECONDS)

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
                shown = answer.take(event)
                yield shown
                if answer.status:
                    return


def _show_answer(client: Client, model: str, question: str, previous: str | None) -> str | None:
    """Returns the response id to go on from, None when the answer is not to be built on."""
    began = time.monotonic()
    response_id = client.ask(model, question, previous)
    first: float | None = None
    answer = Answer(response_id)
    try:
        for answer, text in client.watch(response_id):  # noqa: B007 - the last one is looked at below
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
