"""Clients outside the system: they ask, watch over sockets and event streams, come back, cancel,
and write down all they see."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import random
import socket
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import websockets
from websockets.asyncio.client import connect

from tailrace.cli import event_reader
from tailrace.protocol import records
from tailrace.protocol.events import TERMINAL_TYPES
from tailrace.verify import clients, transcript
from tests.faults.stage import MODEL, Stage
from tests.support import pictures, scripted_content

USERS = ("alice", "bob", "carol")
CONVERSATIONS = 2  # of a user at a time, so that turns meet
STRANGER = "mallory"
SUBMIT_S = 12.0
PING_S = 1.0  # both ways within two intervals: a half-open connection is found after at most that
RETRY_S = 0.2
TRIES = 6
# Of a body; whatever else `Crowd.ask` is given becomes a cue of the scripted engine.
FIELDS = frozenset(
    {
        "stop",
        "max_output_tokens",
        "store",
        "input",
        "temperature",
        "logit_bias",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "max_tool_calls",
        "text",
        "reasoning",
        "include",
        "top_logprobs",
        "conversation",
        "if_busy",
        "service_tier",
    }
)
# receive buffer of a client that is to stall: what it does not read soon shows at the server
NARROW_BYTES = 4096


class Scribe:
    """Writes one transcript, a line at a time."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        self._numbers = itertools.count(1)

    def line(self, **fields: Any) -> None:
        self._file.write(
            transcript.encode(transcript.Line(wall=time.time(), mono=time.monotonic(), **fields))
        )

    def invoke(self, op: str, **fields: Any) -> int:
        n = next(self._numbers)
        self.line(op=op, f="invoke", n=n, **fields)
        return n

    def close(self) -> None:
        self._file.close()


class Refused(Exception):
    """The service said no; `code` is its word for it."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(f"{status} {code}")
        self.status, self.code = status, code


def _refusal(status: int, body: bytes) -> Refused:
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return Refused(status, str(json.loads(body)["error"]["code"]))
    return Refused(status, "")


@dataclass
class Asked:
    """A response a client has an id for.

    Attributes:
        mark, key, body: of the request, so that it can be sent once more.
    """

    rid: str
    user: str
    tokens: int
    mark: str = ""
    key: str | None = None
    body: dict[str, Any] = field(default_factory=dict)


@dataclass
class Crowd:
    """All clients of one drill.

    Attributes:
        asked: accepted requests.
        conversations: by user, those that turns are asked of.
        refused: marks of requests that were refused.
        embedded: requests for embeddings that were answered.
        unknown: ids of requests of unknown outcome, or their marks where the answer names none.
        watchers: tasks under way.
        ended: (rid, watcher) that saw the end; in_vain: those that gave up; lost: those that were
            told that the log lost it.
        ping_s: how often sockets ping, and how long they wait for the answer.
    """

    stage: Stage
    name: str
    rng: random.Random
    asked: list[Asked] = field(default_factory=list)
    conversations: dict[str, list[str]] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    watchers: list[asyncio.Task[None]] = field(default_factory=list)
    ended: int = 0
    in_vain: int = 0
    embedded: int = 0
    lost: int = 0
    ping_s: float = PING_S
    _names: Any = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        self.path = self.stage.transcripts / f"client-{self.name}.jsonl"
        self.scribe = Scribe(self.path)
        self.http = httpx.AsyncClient(timeout=SUBMIT_S, limits=httpx.Limits(max_connections=400))

    async def leave(self) -> None:
        """Stop everything that still watches."""
        for task in self.watchers:
            task.cancel()
        await asyncio.gather(*self.watchers, return_exceptions=True)
        await self.http.aclose()
        self.scribe.close()

    # ---- asking

    async def ask(
        self,
        *,
        tokens: int = 150,
        pace_ms: int = 10,
        user: str | None = None,
        key: str | None = None,
        gateway: str | None = None,
        gateways: Sequence[str] = (),
        commands: str = "",
        shown: Sequence[bytes] = (),
        before: int = 0,
        fork: dict[str, Any] | None = None,
        **cues: Any,
    ) -> Asked | None:
        """Submit once (`key`: until the outcome is known; `gateways`: at these in turn); None
        if it was refused or the outcome is unknown. `commands`: lines for the scripted engine,
        where the request has tools, a format or reasoning (`tests.faults.wants`). `shown`: image
        files that the question shows. `before`: turns before the question, of 1,000 tokens each, of
        which older ones may be left out. `fork`: of another response of the same user, whose
        question it is too."""
        user = user or self.rng.choice(USERS)
        mark = f"{self.name}-{next(self._names)}"
        fields: dict[str, Any] = {k: cues.pop(k) for k in FIELDS if k in cues}
        metadata = {
            "mark": mark,
            "script_tokens": str(tokens),
            "script_pace_ms": str(pace_ms),
            **{f"script_{k}": str(v) for k, v in cues.items()},
        }
        body: dict[str, Any] = {
            "model": MODEL,
            "input": _question(f"{mark} says hello\n{commands}".strip(), shown),
            "background": True,
            "max_output_tokens": self.stage.longest,
            "metadata": metadata,
            **fields,
        }
        if before:
            question = body["input"]
            if isinstance(question, str):
                question = [{"role": "user", "content": question}]
            body |= {"input": [*_turns(mark, before), *question], "truncation": "auto"}
        if fork is not None:
            body |= {"fork": fork}
            del body["input"]
        for i in range(len(gateways) or (TRIES if key else 1)):
            base = (
                gateways[i]
                if gateways
                else gateway or self.rng.choice([s.url for s in self.stage.of("gateway")])
            )
            rid = await self._submit(base, user, mark, key, body)
            if rid:
                found = Asked(rid, user, tokens, mark, key, body)
                self.asked.append(found)
                return found
            await asyncio.sleep(RETRY_S)
        return None

    async def ask_again(self, asked: Asked, gateway: str) -> str | None:
        """The same request once more; the id it is answered with."""
        return await self._submit(gateway, asked.user, asked.mark, asked.key, asked.body)

    async def _submit(
        self, base: str, user: str, mark: str, key: str | None, body: dict[str, Any]
    ) -> str | None:
        n = self.scribe.invoke("submit", user=user, mark=mark, key=key, target=base)
        headers = {**self._headers(user), **({"idempotency-key": key} if key else {})}
        try:
            answer = await self.http.post(f"{base}/v1/responses", json=body, headers=headers)
        except httpx.ConnectError as error:
            self.scribe.line(op="submit", f="fail", n=n, error=type(error).__name__)
            return None
        except httpx.HTTPError as error:
            self.scribe.line(op="submit", f="info", n=n, error=type(error).__name__)
            return None
        if answer.status_code == 200:
            rid = str(answer.json()["id"])
            self.scribe.line(op="submit", f="ok", n=n, rid=rid)
            return rid
        code = _refusal(answer.status_code, answer.content).code
        certain = answer.status_code < 500 or code == "service_unavailable"
        rid = answer.headers.get("x-tailrace-response-id", "")
        (self.refused if certain else self.unknown).append(rid or mark)
        self.scribe.line(
            op="submit",
            f="fail" if certain else "info",
            n=n,
            rid=rid,
            code=answer.status_code,
            error=answer.text[:200],
        )
        return None

    async def conversation(self, user: str) -> str | None:
        """One of the few conversations of a user, perhaps a new one; None if none could be made."""
        mine = self.conversations.setdefault(user, [])
        if len(mine) < CONVERSATIONS or self.rng.random() < 0.05:
            base = self.rng.choice([s.url for s in self.stage.of("gateway")])
            try:
                answer = await self.http.post(
                    f"{base}/v1/conversations", json={}, headers=self._headers(user)
                )
            except httpx.HTTPError:
                answer = None
            if answer is not None and answer.status_code == 200:
                mine.append(str(answer.json()["id"]))
        return self.rng.choice(mine[-CONVERSATIONS:]) if mine else None

    async def embed(self, *, pace_ms: int = 20, key: str | None = None, **how: Any) -> None:
        """Ask for embeddings of a list that is one request in the log (`key`: until they come), and
        compare them with what they must be. `how`: members of the body."""
        user = self.rng.choice(USERS)
        mark = f"{self.name}-{next(self._names)}"
        inputs = [f"{mark} {n}" for n in range(self.rng.randrange(1, 33))]
        metadata = {"mark": mark, "script_pace_ms": str(pace_ms)}
        body = {"model": MODEL, "input": inputs, "metadata": metadata, **how}
        wanted = scripted_content.vectors(records.Embed([*inputs], how.get("dimensions")))
        for _ in range(TRIES if key else 1):
            base = self.rng.choice([s.url for s in self.stage.of("gateway")])
            if (found := await self._embeddings(base, user, mark, key, body)) is not None:
                assert found == wanted, f"{mark}: other vectors than those of its inputs"
                self.embedded += 1
                return
            await asyncio.sleep(RETRY_S)

    async def _embeddings(
        self, base: str, user: str, mark: str, key: str | None, body: dict[str, Any]
    ) -> list[bytes] | None:
        """The vectors; None if there was no answer, or an error."""
        n = self.scribe.invoke("submit", user=user, mark=mark, key=key, target=base)
        headers = {**self._headers(user), **({"idempotency-key": key} if key else {})}
        asked = {**body, "encoding_format": "base64"}
        try:
            answer = await self.http.post(f"{base}/v1/embeddings", json=asked, headers=headers)
        except httpx.HTTPError as error:
            certain = isinstance(error, httpx.ConnectError)
            said = "fail" if certain else "info"
            self.scribe.line(op="submit", f=said, n=n, error=type(error).__name__)
            return None
        rid = answer.headers.get("x-tailrace-response-id", "")
        if answer.status_code == 200:
            self.scribe.line(op="submit", f="ok", n=n, rid=rid)
            return [base64.b64decode(each["embedding"]) for each in answer.json()["data"]]
        # An error after the request was taken looks like one before.
        certain = answer.status_code < 500 and answer.status_code != 409
        (self.refused if certain else self.unknown).append(rid or mark)
        self.scribe.line(
            op="submit",
            f="fail" if certain else "info",
            n=n,
            rid=rid,
            code=answer.status_code,
            error=answer.text[:200],
        )
        return None

    async def ask_many(self, count: int, *, keyed: bool = False, **how: Any) -> list[Asked]:
        """Several at once, each watched by two; those that were refused are left out. `keyed`: each
        with a key of its own, so that it is repeated."""

        def key() -> str | None:
            return f"{self.name}-key-{next(self._names)}" if keyed else None

        found = [
            a
            for a in await asyncio.gather(*(self.ask(key=key(), **how) for _ in range(count)))
            if a is not None
        ]
        for asked in found:
            self.watch(asked)
            self.watch(asked)
        return found

    async def cancel(self, asked: Asked, gateway: str | None = None) -> str | None:
        """The status the cancel answered with."""
        base = gateway or self.rng.choice([s.url for s in self.stage.of("gateway")])
        n = self.scribe.invoke("cancel", user=asked.user, rid=asked.rid)
        try:
            answer = await self.http.post(
                f"{base}/v1/responses/{asked.rid}/cancel", headers=self._headers(asked.user)
            )
        except httpx.HTTPError as error:
            self.scribe.line(op="cancel", f="info", n=n, error=type(error).__name__)
            return None
        if answer.status_code != 200:
            self.scribe.line(
                op="cancel",
                f="info" if answer.status_code >= 500 else "fail",
                n=n,
                code=answer.status_code,
            )
            return None
        status = str(answer.json()["status"])
        self.scribe.line(op="cancel", f="ok", n=n, rid=asked.rid, status=status)
        return status

    # ---- watching

    def watch(
        self,
        asked: Asked,
        *,
        bases: Sequence[str] | None = None,
        via: str | None = None,
        after: int = -1,
        deadline_s: float = 120.0,
        user: str = "",
        stall: asyncio.Event | None = None,
    ) -> asyncio.Task[None]:
        """Follow to the end, coming back elsewhere whenever the connection breaks. `stall`: read
        nothing on the first connection until it is set."""
        watcher = Watcher(
            self,
            asked,
            f"{self.name}-w{next(self._names)}",
            list(bases or self.stage.bases),
            via or self.rng.choice(("ws", "sse")),
            after,
        )
        watcher.user = user or asked.user
        watcher.stall = stall
        task = asyncio.create_task(watcher.run(deadline_s), name=watcher.name)
        self.watchers.append(task)
        return task

    async def settle(self, seconds: float = 120.0) -> None:
        """Until everyone saw the end or gave up."""
        if self.watchers:
            await asyncio.wait(self.watchers, timeout=seconds)
        for task in self.watchers:
            if task.done() and not task.cancelled() and task.exception() is not None:
                raise task.exception()  # type: ignore[misc]

    async def read_again(self, most: int = 40) -> None:
        """Final reads: a fresh watcher from 0 for every response, on every instance that delivers;
        and a stranger, who must see nothing."""
        chosen = self.rng.sample(self.asked, min(most, len(self.asked)))
        room = asyncio.Semaphore(24)

        async def read(asked: Asked, base: str, via: str, user: str = "") -> None:
            async with room:
                watcher = Watcher(self, asked, f"{self.name}-w{next(self._names)}", [base], via, -1)
                watcher.user = user or asked.user
                await watcher.run(30.0, tries=1 if user else TRIES)

        reads = [
            read(asked, base, "sse" if (i + j) % 2 else "ws")
            for i, asked in enumerate(chosen)
            for j, base in enumerate(self.stage.bases)
        ]
        strangers = [
            read(asked, self.rng.choice(self.stage.bases), self.rng.choice(("ws", "sse")), STRANGER)
            for asked in chosen[:6]
        ]
        await asyncio.gather(*reads, *strangers)

    def files(self) -> clients.Files:
        return [(self.path.name, transcript.read(self.path.read_bytes(), self.path.name))]

    def _headers(self, user: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.stage.token(user)}"}


class Watcher:
    """One client's view of one response.

    Attributes:
        next: the number it waits for.
        user: whose credential it shows.
        stall: it reads nothing before this is set; None for who reads at once, and after the first
            connection.
    """

    def __init__(
        self, crowd: Crowd, asked: Asked, name: str, bases: list[str], via: str, after: int
    ) -> None:
        self._crowd, self._asked, self.name, self._bases, self._via = crowd, asked, name, bases, via
        self._scribe = crowd.scribe
        self.next = after + 1
        self.user = asked.user
        self.stall: asyncio.Event | None = None
        self._final: dict[str, Any] | None = None

    async def run(self, deadline_s: float, tries: int = 0) -> None:
        """`tries`: connections at most; 0: as many as the deadline allows."""
        end, first, n = (
            time.monotonic() + deadline_s,
            self._crowd.rng.randrange(len(self._bases)),
            0,
        )
        for attempt in itertools.count(first):
            if time.monotonic() > end or (tries and attempt - first >= tries):
                break
            base = self._bases[attempt % len(self._bases)]
            n = self._scribe.invoke(
                "watch",
                user=self.user,
                watcher=self.name,
                rid=self._asked.rid,
                after=self.next - 1,
                target=base,
            )
            code: int | str | None = None
            try:
                async with asyncio.timeout(end - time.monotonic()):
                    code = await (
                        self._socket(n, base) if self._via == "ws" else self._stream(n, base)
                    )
            except Refused as error:
                self._scribe.line(
                    op="watch",
                    f="info" if error.status >= 500 else "fail",
                    n=n,
                    code=error.code or error.status,
                )
                if error.code == "history_lost":  # final: no reader reconnects after it
                    self._crowd.lost += 1
                    return
                if self.user != self._asked.user:
                    return
            except (OSError, httpx.HTTPError, websockets.WebSocketException, TimeoutError) as error:
                code = type(error).__name__
            if self._final is not None:
                self._end(n)
                return
            self.stall = None
            self._scribe.line(op="close", n=n, code=code)
            await asyncio.sleep(RETRY_S)
        self._crowd.in_vain += 1
        self._scribe.line(op="close", n=n, code=transcript.IN_VAIN)

    def _end(self, n: int) -> None:
        final = self._final
        assert final is not None
        text = "".join(map(_characters, final["output"]))
        self._scribe.line(
            op="end",
            n=n,
            rid=self._asked.rid,
            status=final["status"],
            text=text,
            # A message without characters may be one that was not marked.
            items=[i for i in map(_item, final["output"]) if i[0] != "message" or i[3]],
            tokens=(final.get("usage") or {}).get("output_tokens"),
        )
        self._scribe.line(op="close", n=n, code=1000)
        self._crowd.ended += 1

    def _record(self, n: int, events: Sequence[dict[str, Any]], rid: str = "") -> None:
        lines = []
        for event in events:
            if "queue" in event:  # it is of a moment, and in no series
                continue
            number, kind = int(event["sequence_number"]), str(event["type"])
            raw = json.dumps(event, sort_keys=True).encode()
            lines.append([number, kind, event.get("delta"), transcript.digest(raw)])
            self.next = number + 1
            if kind in TERMINAL_TYPES:
                self._final = event["response"]
        self._scribe.line(op="events", n=n, rid=rid or self._asked.rid, events=lines)

    async def _socket(self, n: int, base: str) -> int | None:
        """Over `WS /v1/watch`; the close code, None at the end."""
        headers = self._crowd._headers(self.user)
        url = base.replace("http", "ws", 1) + "/v1/watch"
        ping_s = None if self.stall else self._crowd.ping_s
        narrow: dict[str, Any] = {"sock": _narrow(base), "max_queue": 1} if self.stall else {}
        async with connect(
            url,
            additional_headers=headers,
            subprotocols=[websockets.Subprotocol("tailrace.v1")],
            open_timeout=5,
            close_timeout=1,
            ping_interval=ping_s,
            ping_timeout=ping_s,
            max_size=2**24,
            proxy=None,
            **narrow,
        ) as connection:
            after = {"starting_after": self.next - 1} if self.next else {}
            await connection.send(
                json.dumps({"type": "watch", "response_id": self._asked.rid, **after})
            )
            if self.stall:
                await self.stall.wait()
            async for message in _messages(connection):
                if message["type"] == "watch.events":
                    self._record(n, message["events"], message["response_id"])
                elif message["type"] == "watch.done":
                    return None
                elif message["type"] == "watch.error":
                    raise Refused(int(message["status"]), str(message["error"]["code"]))
            return connection.close_code

    async def _stream(self, n: int, base: str) -> int | str | None:
        """Over SSE; None at the end."""
        query: dict[str, Any] = {"stream": "true"} | (
            {"starting_after": self.next - 1} if self.next else {}
        )
        url, headers = f"{base}/v1/responses/{self._asked.rid}", self._crowd._headers(self.user)
        timeout = httpx.Timeout(20.0, connect=5.0)
        async with contextlib.AsyncExitStack() as stack:
            client = self._crowd.http
            if self.stall:
                narrow = httpx.AsyncHTTPTransport(
                    socket_options=[(socket.SOL_SOCKET, socket.SO_RCVBUF, NARROW_BYTES)]
                )
                client = await stack.enter_async_context(httpx.AsyncClient(transport=narrow))
            answer = await stack.enter_async_context(
                client.stream("GET", url, params=query, headers=headers, timeout=timeout)
            )
            if answer.status_code != 200:
                raise _refusal(answer.status_code, await answer.aread())
            if self.stall:
                await self.stall.wait()
            async for data in event_reader.adata_of(answer.aiter_bytes()):
                if data == "[DONE]":
                    return None
                self._record(n, [json.loads(data)])
        return "cut"


def _turns(mark: str, count: int) -> list[dict[str, Any]]:
    roles = ("user", "assistant")
    return [
        {"role": role, "content": f"{mark} {role} {n}\n" + "word " * 400}
        for n in range(count)
        for role in roles
    ]


def _question(text: str, shown: Sequence[bytes]) -> str | list[dict[str, Any]]:
    if not shown:
        return text
    parts = [{"type": "input_image", "image_url": pictures.url(file)} for file in shown]
    return [{"role": "user", "content": [{"type": "input_text", "text": text}, *parts]}]


def _characters(item: dict[str, Any]) -> str:
    """All characters of an output item."""
    # Reasoning has its text in one of the two.
    parts = [*item.get("summary", ()), *item.get("content", ())]
    return str(
        item.get("arguments") or item.get("input") or "".join(p.get("text", "") for p in parts)
    )


def _item(item: dict[str, Any]) -> list[str]:
    """Type, name, call_id and characters of an output item."""
    name, call_id = item.get("name", ""), item.get("call_id", "")
    return [item["type"], name, call_id, _characters(item)]


def _narrow(base: str) -> socket.socket:
    """A connection with a small receive buffer, set before it connects: the window is agreed on
    then."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, NARROW_BYTES)
    host, _, port = base.rpartition("//")[2].partition(":")
    made.connect((host, int(port)))
    made.setblocking(False)
    return made


async def _messages(connection: Any) -> AsyncIterator[dict[str, Any]]:
    with contextlib.suppress(websockets.ConnectionClosed):
        async for message in connection:
            yield json.loads(message)
