"""The client under `tailrace chat`. Asks in background mode, watches by SSE, and resumes after a
lost connection from the last event that it has."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from tailrace.cli import event_reader
from tailrace.cli.transcript import Kind, Piece
from tailrace.protocol import events

RETRY_FIRST_S = 0.25
RETRY_LONGEST_S = 5.0
GIVE_UP_S = 600.0
SILENCE_S = 45.0  # the services send a comment well within this time

# Statuses to retry: the service drains, is away, or limits the rate.
TRANSIENT = {408, 425, 429, 500, 502, 503, 504}
AWAY = {502, 503, 504}  # for a question, whose other errors the user must see
READY_S = 2.0


_DELTAS: Final[dict[object, Kind]] = {
    "response.output_text.delta": "message",
    "response.reasoning_text.delta": "reasoning",
    "response.reasoning_summary_text.delta": "reasoning",
    "response.function_call_arguments.delta": "call",
    "response.custom_tool_call_input.delta": "call",
}
_ITEMS: Final[dict[object, Kind]] = {
    "message": "message",
    "reasoning": "reasoning",
    "function_call": "call",
    "custom_tool_call": "call",
}


class ChatError(Exception):
    """The chat cannot continue. The text is for the user."""


def sse_events(pieces: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The JSON objects of a server-sent event stream, up to its `[DONE]`.

    Raises:
        ValueError: the data of an event is no JSON.
    """
    for data in event_reader.data_of(pieces):
        if data == "[DONE]":
            return
        event = json.loads(data)
        if isinstance(event, dict):
            yield event


@dataclass(slots=True)
class Answer:
    """What was received of one response (pure).

    Attributes:
        last: the resume position, the sequence number of the newest event; -1 before the first.
        text: the text of its messages so far.
        status: how the response ended; empty before the end.
        error: the error message; empty without one.
        usage: token counts of the terminal event; empty before it.
        waits: the request's place in the queue, in words; empty once it has begun, and if the
            service does not report it.
    """

    response_id: str
    last: int = -1
    text: str = ""
    status: str = ""
    error: str = ""
    usage: dict[str, Any] = field(default_factory=dict)
    waits: str = ""

    def apply(self, event: dict[str, Any]) -> Piece | None:
        """Add an event. Returns what it shows; None if nothing, or if the event is known already.

        Raises:
            ChatError: an event is missing before this one.
        """
        number = event.get("sequence_number")
        if not isinstance(number, int):
            return None
        if number <= self.last:
            if number == self.last and isinstance(event.get("queue"), dict):
                self.waits = _waits(event["queue"])
            return None
        if number != self.last + 1:
            raise ChatError(f"the service left out events {self.last + 1} to {number - 1}")
        self.last, self.waits = number, ""
        kind = event.get("type")
        if kind in _DELTAS:
            delta = str(event["delta"])
            if _DELTAS[kind] == "message":
                self.text += delta
            return Piece(_DELTAS[kind], delta)
        if kind in ("response.output_item.added", "response.output_item.done"):
            return _bounds(event.get("item") or {}, ends=kind.endswith("done"))
        if kind in events.TERMINAL_TYPES:
            response = event.get("response") or {}
            self.status = str(response.get("status") or kind.removeprefix("response."))
            self.usage = response.get("usage") or {}
            self.error = str((response.get("error") or {}).get("message") or "")
        return None


def _waits(queue: dict[str, Any]) -> str:
    """The place in the queue, in words."""
    position, eta_s = queue.get("position"), queue.get("eta_s")
    if not isinstance(position, int):
        return ""
    requests = {0: "no request", 1: "1 request"}.get(position, f"{position} requests")
    least = "at least " if queue.get("at_least") else ""
    about = f", about {max(1, round(eta_s))} s" if isinstance(eta_s, int | float) else ""
    return f"{least}{requests} before yours{about}"


def _bounds(item: dict[str, Any], *, ends: bool) -> Piece | None:
    """What the beginning or the end of an item shows."""
    kind = _ITEMS.get(item.get("type"))
    if kind is None:
        return None
    if ends:
        return Piece(kind, ends=True, cut=item.get("status") == "incomplete")
    if kind != "call":
        return None
    names = [str(item[key]) for key in ("namespace", "name") if item.get(key)]
    return Piece(kind, name=".".join(names) or "?")


def _error_text(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return answer.text[:300]


class _Outage:
    """The time without a connection: reported once; the pauses between tries grow."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._since: float | None = None  # monotonic; None while connected
        self._pause = RETRY_FIRST_S

    def over(self) -> None:
        """The service answered."""
        if self._since is not None:
            self._report("(connected again)")
        self._since, self._pause = None, RETRY_FIRST_S

    def wait(self, why: str) -> None:
        """Sleep before the next try.

        Raises:
            ChatError: this continues for GIVE_UP_S; the text is `why`.
        """
        if self._since is None:
            self._since = time.monotonic()
            self._report("(connection lost, retrying)")
        if time.monotonic() - self._since > GIVE_UP_S:
            raise ChatError(f"gave up after {GIVE_UP_S:.0f} s: {why}")
        time.sleep(self._pause)
        self._pause = min(self._pause * 2, RETRY_LONGEST_S)


class Client:
    """One user at one gateway. `credential` returns a valid credential at every call.

    Attributes:
        report: gets a note when the connection is lost and when it is back.
    """

    def __init__(
        self,
        url: str,
        credential: Callable[[], str],
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._url = url.rstrip("/")
        self._credential = credential
        self.report: Callable[[str], None] = lambda text: None
        self._http = httpx.Client(timeout=httpx.Timeout(10.0, read=SILENCE_S), transport=transport)
        self._watch_urls = [self._url]  # push services first; the gateway is always possible

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
            raise ChatError(f"no gateway at {self._url} ({error})") from error
        self._watch_urls = [*settings.get("push_urls", []), self._url]
        return str(settings.get("default_model") or "")

    def send(self, model: str, text: str, previous: str | None) -> str:
        """Create a response and return its id.

        The idempotency key makes a repeated request the same request, so that a lost connection is
        no reason to give up.

        Raises:
            ChatError: the gateway refused, or was away for GIVE_UP_S.
        """
        body = {
            "model": model,
            "input": text,
            "background": True,
            "store": True,
            "previous_response_id": previous,
        }
        headers = {"Idempotency-Key": str(uuid.uuid4())}
        outage = _Outage(self.report)
        while True:
            try:
                answer = self._http.post(
                    f"{self._url}/v1/responses", json=body, headers=headers | self._headers()
                )
            except httpx.TransportError:
                outage.wait(f"no gateway answers at {self._url}")
                continue
            if answer.status_code in AWAY:
                outage.wait(_error_text(answer))
                continue
            outage.over()
            if answer.status_code != 200:
                raise ChatError(_error_text(answer))
            return str(answer.json()["id"])

    def engine_state(self) -> str:
        """What the gateway's `/ready` says of the engine: "ready", "loading", "none"; empty if it
        does not answer."""
        try:
            answer = self._http.get(f"{self._url}/ready", timeout=READY_S)
            return str(answer.json()["engine"]["state"])
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            return ""

    def models(self) -> list[str]:
        """The models that the gateway offers.

        Raises:
            ChatError: it does not answer, or refuses.
        """
        try:
            answer = self._http.get(f"{self._url}/v1/models", headers=self._headers())
        except httpx.TransportError as error:
            raise ChatError(f"no gateway answers at {self._url}") from error
        if answer.status_code != 200:
            raise ChatError(_error_text(answer))
        return [str(model["id"]) for model in answer.json()["data"]]

    def cancel(self, response_id: str) -> None:
        try:
            self._http.post(
                f"{self._url}/v1/responses/{response_id}/cancel", headers=self._headers()
            )
        except httpx.HTTPError as error:
            self.report(f"(could not be stopped: {error})")

    def watch(self, response_id: str) -> Iterator[tuple[Answer, Piece | None]]:
        """Yield the answer so far and what to show, over as many connections as it needs.

        Raises:
            ChatError: the service refuses, leaves out an event, or is away for GIVE_UP_S.
        """
        answer = Answer(response_id)
        outage, attempt = _Outage(self.report), 0
        while not answer.status:
            try:
                before = answer.last
                for piece in self._watch_once(
                    answer, self._watch_urls[attempt % len(self._watch_urls)]
                ):
                    outage.over()
                    yield answer, piece
                if answer.last > before:
                    continue  # the service drains: the next request resumes
            except (httpx.TransportError, ConnectionResetError):
                pass
            attempt += 1
            outage.wait(f"no service answers; the answer continues on the server: {response_id}")

    def _watch_once(self, answer: Answer, base: str) -> Iterator[Piece | None]:
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
            for event in sse_events(stream.iter_bytes()):
                piece = answer.apply(event)
                yield piece
                if answer.status:
                    return
