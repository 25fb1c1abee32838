"""Load for the whole path, by five kinds of users. Talkers use the WebSocket mode of the Responses
API, lose their connection, resume, and cancel. Callers do the same with tools (`--tools`): the
model calls one, they send its output, and the model answers. Showers (`--images`) send an image and
ask about it twice. Readers watch the answers of others.
Idle users are connected and send nothing.

    locust -f locustfile.py --headless -u 20 -r 5 -t 30s --host http://127.0.0.1:8000
    locust -f locustfile.py --headless -u 50 -t 5m --shape spike --host http://127.0.0.1:8000

Shapes are steady, ramp and spike (bench/shapes.py).

The credential comes from TAILRACE_CREDENTIAL, else from `tailrace token`. Against the scripted
engine (`tailrace up --engine scripted`) add `--scripted`: every answer is then compared with the
text that the engine must write. The exit code is 1 when a token was lost, doubled or out of place,
when a request failed, or when nothing was answered. Several processes (`--processes 4`) get one
verdict together.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import os
import random
import struct
import subprocess
import sys
import time
import zlib
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import gevent
import requests
import websocket
from locust import LoadTestShape, User, between, events, task
from locust.argument_parser import LocustArgumentParser
from locust.env import Environment

from bench import shapes
from bench.transcript import DELTA, TERMINAL_TYPES, Transcript

SILENCE_S: Final = 30.0  # longer than a takeover: session timeout, claim, and prefill again
IDLE_S: Final = (5.0, 25.0)  # often longer than the service's ping interval
CLOSE_S: Final = 1.0
ATTEMPTS: Final = 8  # handshakes for one response; a restarting gateway is away for seconds
QUESTIONS: Final = (
    "Explain quantum entanglement.",
    "Write a short story about a river and the people who live beside it.",
    "What would you pack for a week in the mountains?",
    "Why is the sky blue?",
)
CITIES: Final = ("Zürich", "Łódź", "東京", "Rome")
TOOL: Final[dict[str, Any]] = {
    "type": "function",
    "name": "weather",
    "description": "The weather of the next days in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
}

# Totals of the run. In a distributed run each process sends its totals to the master and resets
# them.
totals: Counter[str] = Counter()
# Of the run, in seconds since the epoch, because several processes compare them: "first", when its
# first user began, and "last", when its last answer ended. Empty before.
span: dict[str, float] = {}
quitting: list[gevent.Greenlet] = []  # at most one: the end after --answers
known: dict[str, str] = {}  # credential and model; empty before the test starts
told: deque[tuple[str, str]] = deque(
    maxlen=200
)  # (response id, text) of answers that ended well, for readers; of this process


@events.init_command_line_parser.add_listener
def _options(parser: LocustArgumentParser) -> None:
    group = parser.add_argument_group("Tailrace")
    group.add_argument(
        "--push-host",
        default="",
        help="base URL of a push service: some users come back there, over SSE",
    )
    group.add_argument(
        "--model", default="", help="model to ask (default: the first of GET /v1/models)"
    )
    group.add_argument(
        "--shape",
        choices=sorted(shapes.STAGES),
        help="users over time: --users at most, over --run-time",
    )
    group.add_argument("--turns", type=int, default=4, help="turns of one conversation, at most")
    group.add_argument("--tokens", type=int, default=60, help="tokens of one answer, at most")
    group.add_argument(
        "--drops",
        type=float,
        default=0.3,
        help="share of answers whose connection is dropped in the middle",
    )
    group.add_argument(
        "--cancels",
        type=float,
        default=0.1,
        help="share of answers that are cancelled in the middle",
    )
    group.add_argument(
        "--tools",
        action="store_true",
        help="some users offer tools, whose outputs they send (the pool's model must know tools)",
    )
    group.add_argument(
        "--images",
        action="store_true",
        help="some users send an image (the pool's model must read images)",
    )
    group.add_argument(
        "--scripted",
        action="store_true",
        help="the engine is the scripted one: compare every text with what it had to write",
    )
    group.add_argument(
        "--pace-ms", type=int, default=20, help="pause of the scripted engine before each token"
    )
    group.add_argument(
        "--answers", type=int, default=0, help="stop after this many answers (0: after --run-time)"
    )
    group.add_argument("--summary", default="", help="write the summary as JSON to this file")


class Refused(Exception):
    """The service refused, with its message. `retry_after` is in seconds; 0 when it named none."""

    def __init__(self, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Cut(Exception):
    """The connection ended before the response did."""


def _refusal(event: dict[str, Any]) -> Refused:
    error = event.get("error") or event
    headers = error.get("headers") or {}
    return Refused(
        f"{event.get('status')} {error.get('code')}: {error.get('message')}",
        float(headers.get("retry-after", 0)),
    )


class Socket:
    """One connection to `WS /v1/responses`."""

    def __init__(self, host: str, credential: str, query: dict[str, Any] | None = None) -> None:
        address = (
            f"{host.replace('http', 'ws', 1)}/v1/responses{f'?{urlencode(query)}' if query else ''}"
        )
        try:
            self._ws = websocket.create_connection(
                address, header=[f"Authorization: Bearer {credential}"], timeout=SILENCE_S
            )
        except websocket.WebSocketBadStatusException as error:
            retry = 1.0 if error.status_code in (429, 503) else 0.0
            raise Refused(
                f"handshake: {error.status_code} {(error.resp_body or b'')[:200]!r}", retry
            ) from error
        except (OSError, websocket.WebSocketException) as error:
            raise Cut(f"handshake: {type(error).__name__}") from error

    def send(self, message: dict[str, Any]) -> None:
        try:
            self._ws.send(json.dumps(message))
        except (OSError, websocket.WebSocketException) as error:
            raise Cut(type(error).__name__) from error

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield events as they arrive. Ends by Cut, by silence, or when the caller stops."""
        while True:
            try:
                text = self._ws.recv()
            except websocket.WebSocketTimeoutException as error:
                raise Refused(f"silent for {SILENCE_S:.0f} s") from error
            except (OSError, websocket.WebSocketException) as error:
                raise Cut(type(error).__name__) from error
            if not text:
                raise Cut("closed")
            event = json.loads(text)
            if event["type"] == "error":
                raise _refusal(event)
            yield event

    def rest(self, seconds: float) -> None:
        """Send nothing for a while, and answer pings.

        Raises:
            Cut: the service ended the connection.
            Refused: the service sent an event.
        """
        self._ws.settimeout(seconds)
        try:
            text = self._ws.recv()
        except websocket.WebSocketTimeoutException:
            return
        except (OSError, websocket.WebSocketException) as error:
            raise Cut(type(error).__name__) from error
        if not text:
            raise Cut("closed")
        raise Refused(f"an event without a request: {text[:200]!r}")

    def drop(self) -> None:
        """Close the TCP connection without a close frame, as a lost network does."""
        self._ws.shutdown()

    def close(self) -> None:
        """Close with a close frame, and wait a second for the other one.

        The library's own `close` catches everything, also locust's end of a user: the user would
        go on, and the run would never end.
        """
        try:
            self._ws.send_close()
            with gevent.Timeout(CLOSE_S, False):
                while self._ws.recv_frame().opcode != websocket.ABNF.OPCODE_CLOSE:
                    pass
        except (OSError, websocket.WebSocketException):
            pass
        finally:
            self._ws.shutdown()


def streamed(host: str, credential: str, rid: str, after: int) -> Iterator[dict[str, Any]]:
    """Yield the rest of a response over SSE, from any gateway or push service."""
    address = f"{host}/v1/responses/{rid}"
    query: dict[str, Any] = {"stream": "true", **({"starting_after": after} if after >= 0 else {})}
    try:
        with requests.get(
            address,
            params=query,
            headers={"Authorization": f"Bearer {credential}"},
            stream=True,
            timeout=(5, SILENCE_S),
        ) as answer:
            if answer.status_code != 200:
                raise Refused(
                    f"stream: {answer.status_code} {answer.text[:200]}",
                    1.0 if answer.status_code in (429, 503) else 0.0,
                )
            for line in answer.iter_lines(chunk_size=None):  # type: ignore[call-overload]
                if line.startswith(b"data: {"):
                    yield json.loads(line[6:])
    except requests.RequestException as error:
        raise Cut(type(error).__name__) from error
    raise Cut("stream ended")


class Answer:
    """One response as one user sees it: its transcript and its times.

    Attributes:
        asked: when it was asked for.
        last: when the latest delta came on this connection; 0 before the first one of each
            connection, so that an absence is no gap.
    """

    def __init__(self, user: Asker, asked: float) -> None:
        self.user = user
        self.asked = asked
        self.last = 0.0
        self.transcript = Transcript()

    @property
    def ended(self) -> bool:
        return self.transcript.final is not None

    def read(self, incoming: Iterator[dict[str, Any]], deltas: int = 0) -> None:
        """Read to the end, or until this many deltas have arrived (0: to the end)."""
        seen, self.last = 0, 0.0
        for event in incoming:
            self.transcript.feed(event)
            if event["type"] == DELTA:
                seen += 1
                self._time()
            if event["type"] in TERMINAL_TYPES or (deltas and seen >= deltas):
                return

    def _time(self) -> None:
        now = time.perf_counter()
        if len(self.transcript.deltas) == 1:
            self.user.record("first token", now - self.asked)
        elif self.last:
            self.user.record("token gap", now - self.last)
        self.last = now

    def come_back(self) -> None:
        """Read the rest on new connections, over a socket or a stream, until the response ends.

        Raises:
            Refused: the service said no, or there is nothing to come back to.
        """
        if not self.transcript.rid:
            raise Refused("the connection ended before response.created")
        for _ in range(ATTEMPTS):
            time.sleep(random.uniform(0.05, 1.0))
            way, began = random.choice(self.user.ways()), time.perf_counter()
            try:
                self._resume(way, began)
            except Cut:
                totals["cuts"] += 1
            except Refused as error:
                if not error.retry_after:
                    raise
                time.sleep(min(5.0, error.retry_after))
            if self.ended:
                return
        raise Refused(f"not back after {ATTEMPTS} attempts")

    def _resume(self, way: str, began: float) -> None:
        totals["resumes"] += 1
        after = self.transcript.position
        if way != "socket":
            self.read(
                self._timed(
                    way, began, streamed(way, known["credential"], self.transcript.rid, after)
                )
            )
            return
        socket = Socket(
            self.user.base,
            known["credential"],
            {"resume": self.transcript.rid, "starting_after": after},
        )
        try:
            self.read(self._timed(way, began, socket.events()))
        finally:
            socket.drop() if not self.ended else socket.close()

    def _timed(
        self, way: str, began: float, incoming: Iterator[dict[str, Any]]
    ) -> Iterator[dict[str, Any]]:
        """The first event ends the measured time of the resume."""
        for event in incoming:
            if began:
                self.user.record(
                    "resume by socket" if way == "socket" else "resume by stream",
                    time.perf_counter() - began,
                )
                began = 0.0
            yield event

    def judge(self, expected: str | None) -> None:
        """Add the response to the totals, and report a failure if anything is wrong."""
        seen = self.transcript
        totals.update(
            responses=1,
            events=seen.next,
            tokens=seen.tokens,
            lost=seen.lost,
            doubled=seen.doubled,
            misplaced=seen.swapped + seen.after_end,
        )
        span["last"] = time.time()
        totals[f"status {(seen.final or {}).get('status', 'none')}"] += 1
        wrong = seen.problems(expected)
        totals["wrong"] += bool(wrong)
        if not wrong:
            told.append((seen.rid, seen.text))
        self.user.record(
            "whole answer",
            time.perf_counter() - self.asked,
            RuntimeError(f"{'; '.join(wrong)} ({seen.rid})") if wrong else None,
        )


class Person(User):
    """The base of all users."""

    abstract = True

    def on_start(self) -> None:
        span.setdefault("first", time.time())
        self.options = self.environment.parsed_options
        self.base = (self.host or "").rstrip("/")

    def record(self, name: str, seconds: float, error: Exception | None = None) -> None:
        """Add a request to locust's statistics, which compute the percentiles. A failure has no
        time there: it is often shorter than any answer."""
        self.environment.events.request.fire(
            request_type="response",
            name=name,
            response_time=None if error else seconds * 1000,
            response_length=0,
            exception=error,
            context={},
        )

    def failed(self, name: str, error: Exception) -> None:
        """Report a failure without a response to judge."""
        totals["failed"] += 1
        self.record(name, 0.0, error)
        time.sleep(min(5.0, getattr(error, "retry_after", 1.0)))


class Reader(Person):
    """Reads an answer of another user again, from any gateway or push service. The text must be the
    same."""

    weight = 1
    wait_time = between(0.5, 2.0)

    @task
    def read(self) -> None:
        if not told:
            return
        (rid, text), began = random.choice(told), time.perf_counter()
        seen = Transcript()
        try:
            for event in streamed(
                random.choice([self.base, *filter(None, self.options.push_host.split(","))]),
                known["credential"],
                rid,
                -1,
            ):
                seen.feed(event)
                if seen.final is not None:
                    break
        except Cut:
            totals["cuts"] += 1  # the service drains; the reader reconnects
            return
        except Refused as error:
            self.failed("read again", error)
            return
        totals.update(
            reads=1, lost=seen.lost, doubled=seen.doubled, misplaced=seen.swapped + seen.after_end
        )
        wrong = [*seen.problems(), *(["another text than before"] if seen.text != text else [])]
        totals["wrong"] += bool(wrong)
        self.record(
            "read again",
            time.perf_counter() - began,
            RuntimeError(f"{'; '.join(wrong)} ({rid})") if wrong else None,
        )


class Idler(Person):
    """Is connected and sends nothing, as most users do most of the time."""

    weight = 1
    wait_time = between(0.5, 2.0)

    @task
    def stay(self) -> None:
        began = time.perf_counter()
        try:
            socket = Socket(self.base, known["credential"])
            self.record("connect", time.perf_counter() - began)
            totals["idle sockets"] += 1
            try:
                socket.rest(random.uniform(*IDLE_S))
            finally:
                socket.close()
        except Cut:
            totals["cuts"] += 1
        except Refused as error:
            self.failed("connect", error)


class Asker(Person):
    """The base of users who ask. They sometimes lose the connection, and sometimes cancel."""

    abstract = True
    wait_time = between(0.5, 2.0)

    def ways(self) -> list[str]:
        """Where to resume: on a new socket, or on a stream from one of these addresses."""
        return ["socket", self.base, *filter(None, self.options.push_host.split(","))]

    def _turn(
        self, socket: Socket, body: dict[str, Any], expected: str | None, *, cancel: bool = True
    ) -> tuple[Socket | None, Transcript]:
        """Ask and read the whole answer, over any number of connections. `cancel`: it may be
        cancelled.

        Returns the socket if it is still open, and the answer.
        """
        chance = random.random()
        drops = chance < self.options.drops
        cancels = cancel and chance >= 1 - self.options.cancels
        answer, kept = Answer(self, time.perf_counter()), False
        try:
            socket.send({"type": "response.create", "model": known["model"], "store": True, **body})
            answer.read(
                socket.events(),
                random.randint(1, max(1, self.options.tokens // 2)) if drops or cancels else 0,
            )
            if cancels and not answer.ended:
                totals["cancels"] += 1
                socket.send({"type": "response.cancel", "response_id": answer.transcript.rid})
                answer.read(socket.events())
            kept = answer.ended
        except Cut:
            totals["cuts"] += 1  # by the service: it drained, restarted, or closed a slow client
        if not kept:
            totals["drops"] += drops
            socket.drop()
            answer.come_back()
        answer.judge(expected)
        return (socket if kept else None), answer.transcript

    def end_after_answers(self) -> None:
        """End the run after `--answers`."""
        if 0 < self.options.answers <= totals["responses"] and not quitting:
            quitting.append(
                gevent.spawn(self.environment.runner.quit)
            )  # it waits for all users, and from here would wait for this one


class Talker(Asker):
    """Asks, reads, pauses, and asks again."""

    weight = 8

    @task
    def converse(self) -> None:
        """Run up to `--turns` turns. A cancelled or failed turn ends the conversation."""
        previous: str | None = None
        dialogue: list[dict[str, str]] = []
        socket: Socket | None = None
        try:
            for _ in range(random.randint(1, self.options.turns)):
                socket = socket or Socket(self.base, known["credential"])
                dialogue.append(
                    {
                        "role": "user",
                        "content": f"{random.choice(QUESTIONS)} ({random.getrandbits(32):08x})",
                    }
                )
                body = self._create(dialogue[-1]["content"], previous)
                socket, seen = self._turn(socket, body, self._expected(dialogue))
                if (seen.final or {}).get("status") not in (
                    "completed",
                    "incomplete",
                ):  # incomplete: it reached --tokens
                    return
                previous = seen.rid
                dialogue.append({"role": "assistant", "content": seen.text})
                self.wait()
        except (Cut, Refused) as error:
            self.failed("whole answer", error)
        finally:
            if socket is not None:
                socket.close()
        self.end_after_answers()

    def _expected(self, dialogue: list[dict[str, str]]) -> str | None:
        if not self.options.scripted:
            return None
        from worker.engines import (
            scripted,
            # Imported here, because the machine may have only this file and bench/.
        )

        return scripted.expected_text(list(dialogue), self.options.tokens)

    def _create(self, text: str, previous: str | None) -> dict[str, Any]:
        body: dict[str, Any] = {"input": text, "temperature": 0}
        body["max_output_tokens"] = self.options.tokens + 1
        if self.options.scripted:
            body["metadata"] = {
                "script_tokens": str(self.options.tokens),
                "script_pace_ms": str(self.options.pace_ms),
            }
        return {**body, "previous_response_id": previous} if previous else body


class Caller(Asker):
    """Offers a tool that the model must call, sends its output, and reads the answer to it."""

    weight = 2

    @task
    def call(self) -> None:
        """One loop: question, call, output, answer."""
        if not self.options.tools:
            self.wait()
            return
        city = f"{random.choice(CITIES)} ({random.getrandbits(32):08x})"
        question = f"What is the weather in {city}?\ncall {TOOL['name']} {self.options.tokens}"
        socket: Socket | None = None
        common: dict[str, Any] = {"tools": [TOOL], "temperature": 0}
        if self.options.scripted:
            common["metadata"] = {"script_pace_ms": str(self.options.pace_ms)}
        try:
            socket = Socket(self.base, known["credential"])
            asked = {**common, "input": question, "tool_choice": "required"}
            socket, seen = self._turn(socket, asked, None)
            if not (seen.final and seen.final.get("status") == "completed" and seen.calls):
                return  # cancelled, or cut by a bound
            outputs = [self._output(call) for call in seen.calls]
            socket = socket or Socket(self.base, known["credential"])
            told_back = {**common, "input": outputs, "previous_response_id": seen.rid}
            expected = "The tools said: " + " and ".join(f"“{o['output']}”" for o in outputs) + "."
            socket, _ = self._turn(
                socket, told_back, expected if self.options.scripted else None, cancel=False
            )
            totals["tool loops"] += 1
        except (Cut, Refused) as error:
            self.failed("whole answer", error)
        finally:
            if socket is not None:
                socket.close()
        self.end_after_answers()

    def _output(self, call: Any) -> dict[str, Any]:
        """What the tool says. Arguments that are no JSON for it are a failure."""
        try:
            days = json.loads(call["arguments"])["days"]
        except (ValueError, KeyError, TypeError) as error:
            totals["wrong"] += 1
            self.record("whole answer", 0.0, RuntimeError(f"arguments: {type(error).__name__}"))
            days = 0
        output = f"{days} days of rain"
        return {"type": "function_call_output", "call_id": call["call_id"], "output": output}


class Shower(Asker):
    """Sends an image, asks about it, and asks again: the conversation still shows it."""

    weight = 1

    @task
    def show(self) -> None:
        if not self.options.images:
            self.wait()
            return
        picture = png()
        url = f"data:image/png;base64,{base64.b64encode(picture).decode()}"
        question = f"What is it? ({random.getrandbits(32):08x})"
        parts = [
            {"type": "input_text", "text": question},
            {"type": "input_image", "image_url": url},
        ]
        common: dict[str, Any] = {"temperature": 0}
        if self.options.scripted:
            common["metadata"] = {"script_pace_ms": str(self.options.pace_ms)}
        first = {**common, "input": [{"role": "user", "content": parts}]}
        digest = hashlib.sha256(picture).hexdigest()[:8]
        socket: Socket | None = None
        try:
            socket = Socket(self.base, known["credential"])
            socket, seen = self._turn(socket, first, self._expected(question, digest), cancel=False)
            if (seen.final or {}).get("status") == "completed":
                socket = socket or Socket(self.base, known["credential"])
                again = {**common, "input": "And now?", "previous_response_id": seen.rid}
                expected = self._expected("And now?", digest)
                socket, _ = self._turn(socket, again, expected, cancel=False)
                totals["images"] += 1
        except (Cut, Refused) as error:
            self.failed("whole answer", error)
        finally:
            if socket is not None:
                socket.close()
        self.end_after_answers()

    def _expected(self, question: str, digest: str) -> str | None:
        if not self.options.scripted:
            return None
        from worker.engines import scripted  # as for talkers

        shown = [{"type": "image", "sha256": digest}]
        return scripted.readable_text(
            [{"role": "user", "content": shown}, {"role": "user", "content": question}]
        )


def png() -> bytes:
    """A picture of one random colour."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        checked = kind + data
        return struct.pack(">I", len(data)) + checked + struct.pack(">I", zlib.crc32(checked))

    side = 32
    row = b"\0" + random.randbytes(3) * side
    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    parts = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(row * side)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


class Shape(LoadTestShape):
    """`--shape`. It is abstract, because locust uses every concrete shape by itself."""

    abstract = True

    def __init__(self, shape: str, most: int, length_s: float, rate: float) -> None:
        super().__init__()
        self._shape, self._most, self._length_s, self._rate = shape, most, length_s, rate

    def tick(self) -> tuple[int, float] | None:
        users = shapes.users_at(self._shape, run_time_s(), self._most, self._length_s)
        return None if users is None else (users, self._rate)


def run_time_s() -> float:
    """The time since the first user of the run began; 0 before. Of users in other processes it is
    known with their first report, up to 3 s later."""
    return time.time() - span["first"] if span else 0.0


def _end_after(environment: Environment, seconds: float) -> None:
    """End the run `seconds` after its first user began."""
    while run_time_s() < seconds:
        gevent.sleep(0.1)
    logging.getLogger(__name__).info("--run-time limit reached, shutting down")
    assert environment.runner is not None, "locust makes it before users"
    environment.runner.quit()


@events.init.add_listener
def _run_time(environment: Environment, **_: Any) -> None:
    """Apply `--shape` and `--run-time`.

    Locust itself counts the run time from before the credential and the model are read.
    """
    options = environment.parsed_options
    assert options is not None, "locust parses its options before this event"
    if environment.runner.__class__.__name__ == "WorkerRunner":
        return
    if options.shape:
        if not options.num_users or not options.run_time:
            raise SystemExit("--shape needs --users (at most) and --run-time")
        environment.shape_class = Shape(
            options.shape,
            options.num_users,
            options.run_time,
            options.spawn_rate or options.num_users,
        )
    elif options.headless and options.run_time:
        message = "%s s of run time, counted from the first user"
        logging.getLogger(__name__).info(message, options.run_time)
        gevent.spawn(_end_after, environment, options.run_time)
        options.run_time = None  # locust says now that there is no limit


@events.test_start.add_listener
def _prepare(environment: Environment, **_: Any) -> None:
    """Read credential and model, once for all users. Ends the run without them."""
    totals.clear()
    span.clear()
    assert environment.parsed_options is not None
    try:
        known["credential"] = os.environ.get("TAILRACE_CREDENTIAL") or _development_credential()
        known["model"] = environment.parsed_options.model or _first_model(
            (environment.host or "").rstrip("/")
        )
    except (
        OSError,
        subprocess.SubprocessError,
        requests.RequestException,
        LookupError,
        ValueError,
    ) as error:
        raise SystemExit(f"nothing to test: {error}") from error


def _development_credential() -> str:
    """The credential of the deployment that `tailrace up` started from this folder."""
    command = Path(sys.executable).with_name("tailrace")
    return subprocess.run(
        [command, "token"], capture_output=True, text=True, check=True, timeout=60
    ).stdout.strip()


def _first_model(base: str) -> str:
    answer = requests.get(
        f"{base}/v1/models", headers={"Authorization": f"Bearer {known['credential']}"}, timeout=30
    )
    if answer.status_code != 200:
        raise ValueError(f"{base}/v1/models answers {answer.status_code} {answer.text[:200]}")
    return str(answer.json()["data"][0]["id"])


@events.report_to_master.add_listener
def _hand_in(client_id: str, data: dict[str, Any], **_: Any) -> None:
    data["tailrace"] = dict(totals)
    data["tailrace span"] = dict(span)
    totals.clear()


@events.worker_report.add_listener
def _collect(client_id: str, data: dict[str, Any], **_: Any) -> None:
    totals.update(data.get("tailrace", {}))
    for key, choice in (("first", min), ("last", max)):
        if key in (reported := data.get("tailrace span", {})):
            span[key] = choice(span.get(key, reported[key]), reported[key])


def summary(environment: Environment) -> dict[str, Any]:
    """The summary of a run. Times are in ms and of what succeeded. "tokens/s" is the tokens of all
    answers over the time from the first user to the last answer."""
    times = {}
    for name in (
        "first token",
        "token gap",
        "resume by socket",
        "resume by stream",
        "whole answer",
        "read again",
        "connect",
    ):
        entry = environment.stats.get(name, "response")
        if entry.num_requests > entry.num_failures:
            percentiles = {
                f"p{p}": entry.get_response_time_percentile(p / 100) for p in (50, 90, 99)
            }
            times[name] = {
                "count": entry.num_requests - entry.num_none_requests,
                **percentiles,
                "max": round(entry.max_response_time),
            }
    counted = {
        key: totals[key]
        for key in (
            "responses",
            "tokens",
            "events",
            "lost",
            "doubled",
            "misplaced",
            "wrong",
            "failed",
        )
    }
    seconds = span["last"] - span["first"] if len(span) == 2 else 0.0
    return {
        **counted,
        "tokens/s": round(totals["tokens"] / seconds, 1) if seconds > 0 else 0.0,
        **{k: v for k, v in sorted(totals.items()) if k not in counted},
        "milliseconds": times,
    }


def clean(totalled: dict[str, Any]) -> bool:
    """Set the exit code: 0 if there were answers, and nothing was lost, doubled, misplaced,
    different or refused."""
    return totalled["responses"] > 0 and not any(
        totalled[key] for key in ("lost", "doubled", "misplaced", "wrong", "failed")
    )


@events.quitting.add_listener
def _verdict(environment: Environment, **_: Any) -> None:
    if environment.runner is not None and environment.runner.__class__.__name__ == "WorkerRunner":
        return
    found = summary(environment)
    lines = ["", "| | count | p50 ms | p90 ms | p99 ms | max ms |", "|---|---|---|---|---|---|"]
    lines += [
        f"| {name} | {t['count']} | {t['p50']:.0f} | {t['p90']:.0f} | {t['p99']:.0f} | {t['max']} |"
        for name, t in found["milliseconds"].items()
    ]
    lines += [
        "",
        ", ".join(f"{key} {value}" for key, value in found.items() if key != "milliseconds"),
    ]
    lines += [f"verdict: {'clean' if clean(found) else 'NOT clean'}", ""]
    print("\n".join(lines))
    assert environment.parsed_options is not None
    if environment.parsed_options.summary:
        Path(environment.parsed_options.summary).write_text(json.dumps(found, indent=1) + "\n")
    if not clean(found):
        environment.process_exit_code = 1
