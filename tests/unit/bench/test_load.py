"""The cheap readers see every event and frame however the bytes were cut, and both loops ask when
they should."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve

from bench import load

# As vLLM's server and as our gateway write them.
CHUNKS = [
    (
        b"data: "
        b'{"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null}]}'
    ),
    (
        b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"He said '
        b'\\"content\\":\\"\\""},"finish_reason":null}],"usage":null}'
    ),
    b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"!"},"finish_reason":"length"}]}',
    (
        b"data: "
        b'{"id":"c","choices":[],"usage":{"prompt_tokens":3,"total_tokens":5,"completion_tokens":2}}'
    ),
    b"data: [DONE]",
]
EVENTS = [
    (
        b"event: response.created\ndata: "
        b'{"type":"response.created","sequence_number":0,"response":{"id":"r","output":[],"usage":null}}'
    ),
    (
        b"event: x\ndata: "
        b'{"type":"response.output_item.added","sequence_number":1,"item":{"content":[]}}'
    ),
    (
        b'event: x\ndata: {"type":"response.output_text.delta","sequence_number":2,"delta":"He '
        b'said \\"delta\\":\\"\\"","logprobs":[]}'
    ),
    (
        b'event: x\ndata: {"type":"response.output_text.delta","sequence_number":3,'
        b'"delta":"!","logprobs":[]}'
    ),
    (
        b'event: x\ndata: {"type":"response.completed","sequence_number":4,'
        b'"response":{"id":"r","usage":{"input_tokens":3,"output_tokens":2}}}'
    ),
    b"data: [DONE]",
]
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 10_000])
def test_events_are_whole_however_the_bytes_were_cut(size: int) -> None:
    found: list[bytes] = []
    reader, raw = load.EventReader(found.append), b"".join(e + b"\n\n" for e in EVENTS)
    for at in range(0, len(raw), size):
        reader.feed(raw[at : at + size])
    assert found == EVENTS


@pytest.mark.parametrize(("events", "texts"), [(CHUNKS, [1, 2]), (EVENTS, [2, 3])])
def test_only_events_with_text_have_text(events: list[bytes], texts: list[int]) -> None:
    assert [n for n, event in enumerate(events) if load.has_text(event)] == texts


async def served(answer: Serve, run: Callable[[str], Awaitable[None]]) -> None:
    """A server of raw bytes."""

    over = asyncio.Event()

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        with contextlib.suppress(ConnectionError):  # a client that has heard enough hangs up
            await answer(reader, writer)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        over.set()

    server = await asyncio.start_server(one, "127.0.0.1", 0)
    async with server:
        await run(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        await asyncio.wait_for(over.wait(), 10)


def chunked(events: list[bytes], cut: int) -> bytes:
    """HTTP's chunks end where they like, in the middle of an event too."""
    raw = b"".join(e + b"\n\n" for e in events)
    parts = [raw[at : at + cut] for at in range(0, len(raw), cut)]
    return b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in [*parts, b""])


HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nx-tailrace-response-id: r\r\n\r\n"


@pytest.mark.parametrize("events", [CHUNKS, EVENTS], ids=["chat", "responses"])
async def test_a_stream_is_timed_and_counted(events: list[bytes]) -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raw = HEAD + chunked(events, 11)
        middle = len(raw) // 2
        for part in (raw[:middle], raw[middle:]):
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.05)

    async def run(url: str) -> None:
        began = time.perf_counter()
        got = await load.stream(url, "POST", "/", {}, {}, began, store_text=True)
        assert got.error == ""
        assert (got.tokens, got.prompt_tokens, len(got.stamps)) == (2, 3, 2)
        assert "".join(got.text).endswith("!")
        assert began <= got.began <= got.stamps[0] <= got.stamps[1] <= got.ended
        assert got.per_token == pytest.approx(got.stamps[1] - got.stamps[0])

    await served(answer, run)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b'HTTP/1.1 429 No\r\ncontent-length: 6\r\n\r\n{"a":1', "429"),
        (HEAD + chunked(CHUNKS, 11)[:-40], "ended before"),
        (HEAD + chunked(CHUNKS[:1], 11), "without text"),
        (HEAD + chunked(CHUNKS[:3], 11), "without text or usage"),
        (b"nonsense\r\n\r\n", "not HTTP"),
    ],
    ids=["refused", "cut", "empty", "no usage", "no HTTP"],
)
async def test_an_answer_that_is_none_says_why(raw: bytes, words: str) -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(raw)
        await writer.drain()

    async def run(url: str) -> None:
        assert words in (await load.stream(url, "POST", "/", {}, {}, 0.0)).error

    await served(answer, run)


async def test_what_a_stream_says_of_its_place_and_of_its_start_is_kept() -> None:
    queued = {"type": "response.queued", "response": {}}
    place = {"position": 3, "eta_s": 1.5}
    told: list[dict[str, Any]] = [
        queued,
        {**queued, "queue": place},
        {"type": "response.in_progress", "response": {}},
    ]
    events = [b"data: " + json.dumps(each, separators=(",", ":")).encode() for each in told]
    raw = [HEAD + b"".join(chunked([each], 1000)[:-5] for each in events), chunked(EVENTS, 1000)]

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for part in raw:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.05)

    async def run(url: str) -> None:
        filled = load.Answer(0.0)
        got = await load.stream(url, "POST", "/", {}, {}, 0.0, answer=filled)
        assert got is filled
        assert got.error == ""
        assert [each for _, each in got.places] == [place]
        assert got.places[0][0] == got.started < got.stamps[0]

    await served(answer, run)


async def test_a_refusal_tells_its_wait_and_an_expired_response_is_known() -> None:
    failed = {"type": "response.failed", "response": {"error": {"code": "expired"}}}
    event = f"event: response.failed\ndata: {json.dumps(failed, separators=(',', ':'))}\n\n"
    raw = [
        b"HTTP/1.1 429 No\r\nretry-after-ms: 2500\r\ncontent-length: 0\r\n\r\n",
        HEAD + chunked([event.encode()], 1000),
    ]

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(raw.pop(0))
        await writer.drain()

    async def run(url: str) -> None:
        refused = await load.stream(url, "POST", "/", {}, {}, 0.0)
        expired = await load.stream(url, "POST", "/", {}, {}, 0.0)
        assert (refused.retry_after_s, refused.expired) == (2.5, False)
        assert (expired.retry_after_s, expired.expired) == (None, True)

    await served(answer, run)


async def test_nobody_there_is_an_error_and_no_exception() -> None:
    assert (await load.stream("http://127.0.0.1:9", "POST", "/", {}, {}, 0.0)).error


def answered(due: float, seconds: float, tokens: int = 3, error: str = "") -> load.Answer:
    return load.Answer(
        due, due, [due + seconds, due + 2 * seconds], due + 3 * seconds, tokens, 1, [], error
    )


async def test_a_closed_loop_asks_again_only_after_an_answer() -> None:
    running, most = 0, 0
    asked: list[Any] = []

    async def ask(number: int, due: float) -> load.Answer:
        nonlocal running, most
        running, asked[len(asked) :] = running + 1, [number]
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return answered(due, 0.1)

    result = await load.closed_loop(ask, 4, 5)
    assert most == 4
    assert sorted(asked) == list(range(20))
    assert len(result.answers) == 20


async def test_an_open_loop_asks_whatever_the_server_does_and_counts_from_when_it_was_due() -> None:
    """The first answer takes longer than all arrivals: a loop that waited for it would hide that
    the others were late."""
    begun: list[float] = []

    async def ask(number: int, due: float) -> load.Answer:
        begun.append(time.perf_counter())
        if number == 0:
            await asyncio.sleep(0.3)
            assert len(begun) == 10
        return load.Answer(due, ended=time.perf_counter())

    result = await load.open_loop(ask, rate=200.0, count=10, seed=3)
    offsets = load.arrivals(200.0, 10, 3)
    dues = [answer.due - result.answers[0].due + offsets[0] for answer in result.answers]
    assert dues == pytest.approx(offsets)
    assert all(now >= answer.due for now, answer in zip(sorted(begun), result.answers, strict=True))


def test_arrivals_are_the_same_for_both_sides_and_of_the_rate() -> None:
    assert load.arrivals(50.0, 2000, 7) == load.arrivals(50.0, 2000, 7)
    assert load.arrivals(50.0, 2000, 7)[-1] == pytest.approx(40.0, rel=0.1)


def test_events_of_one_read_are_no_gap() -> None:
    """Else a server that sends in bursts would have a median gap of nothing."""
    assert load.Answer(0.0, stamps=[1.0, 1.0, 1.0, 1.5, 1.5, 2.5]).gaps == [0.5, 1.0]


async def test_events_of_one_read_have_one_time() -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + chunked(CHUNKS, 11))
        await writer.drain()

    async def run(url: str) -> None:
        got = await load.stream(url, "POST", "/", {}, {}, 0.0)
        assert got.stamps[0] == got.stamps[1]

    await served(answer, run)


def test_failed_answers_count_as_failed_and_nowhere_else() -> None:
    result = load.Result(
        [answered(0.0, 0.1), answered(0.0, 0.2, error="429"), answered(1.0, 0.3)], wall=2.0
    )
    values = result.values()
    assert (values["answers"], values["failed"], values["tokens"], values["tokens_per_s"]) == (
        2,
        1,
        6,
        3.0,
    )
    assert (values["first_p50_ms"], values["first_p99_ms"]) == pytest.approx((100, 300))
    assert values["per_token_p99_ms"] == pytest.approx(150)


@pytest.mark.parametrize("size", [1, 2, 5, 9, 64, 200_000])
def test_frames_are_whole_however_the_bytes_were_cut(size: int) -> None:
    payloads = [b"", b"x", b"y" * 125, b"z" * 126, b"a" * 65_535, b"b" * 65_536]
    raw = b"".join(_server_frame(1, p) for p in payloads)
    found: list[tuple[int, bytes]] = []
    reader = load.FrameReader(lambda opcode, payload: found.append((opcode, payload)))
    step = max(size, len(raw) // 5000)  # a byte at a time over 130 kB would copy for a second
    for at in range(0, len(raw), step):
        reader.feed(raw[at : at + step])
    assert found == [(1, p) for p in payloads]


def _server_frame(opcode: int, payload: bytes) -> bytes:
    size = len(payload)
    length = (
        bytes((size,))
        if size < 126
        else b"\x7e" + size.to_bytes(2, "big")
        if size < 1 << 16
        else b"\x7f" + size.to_bytes(8, "big")
    )
    return bytes((0x80 | opcode,)) + length + payload


@pytest.mark.parametrize("size", [1, 125, 126, 65_536])
async def test_a_real_server_understands_the_socket(size: int) -> None:
    """Messages both ways, a ping in between, and a goodbye."""
    heard: list[str] = []

    async def echo(connection: ServerConnection) -> None:
        heard.append(str(await connection.recv()))
        await (await connection.ping())
        await connection.send(heard[0])
        await connection.close(4002)

    got: list[bytes] = []
    async with serve(echo, "127.0.0.1", 0, compression=None) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        socket = await load.connect(f"http://127.0.0.1:{port}", "/", {"x-a": "b"}, got.append)
        socket.send("m" * size)
        assert await asyncio.wait_for(socket.closed, 10) == "4002"
        socket.close()
    assert heard == [json.dumps("m" * size)]
    assert got == [heard[0].encode()]


async def test_a_refused_upgrade_says_so() -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 2\r\n\r\nno")
        await writer.drain()

    async def run(url: str) -> None:
        with pytest.raises(load.RequestFailed, match="403"):
            await load.connect(url, "/", {}, lambda _: None)

    await served(answer, run)
