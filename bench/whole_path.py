"""The whole path beside vLLM's own server: same model, same client, same machine, same run, in turn.

    .venv/bin/python -m bench.whole_path [--streams 1,4,16] [--tokens 128] [--rounds 3] [--out bench-whole-path.json]

Both sides answer `POST /v1/chat/completions` with server-sent events to the same closed-loop client. Reported per side and number of streams:
tokens/s, first token p50/p99, gap p50/p99 (between events that carry text), the client's own CPU, and the ratio. Rounds alternate A B A B, so that a
drift of the machine hits both.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil

from tailrace import processes

ROOT = Path(__file__).resolve().parents[1]
TAILRACE = Path(sys.executable).with_name("tailrace")
MODEL = "smollm2-135m-instruct"
START_DEADLINE_S = 300.0
PROMPTS = [
    "Write a long story about a river and the people who live beside it.",
    "Explain quantum entanglement to a curious child, in detail.",
    "Describe the history of the printing press in detail.",
    "Give a long description of a walk through an old town.",
]


@dataclass
class Sample:
    """What one client saw of one answer; seconds."""

    first: float
    gaps: list[float]
    tokens: int
    text: str = ""


@dataclass
class Side:
    """One server under test."""

    name: str
    url: str
    headers: dict[str, str]
    pids: list[int] = field(default_factory=list)


async def ask(side: Side, prompt: str, tokens: int) -> Sample:
    """One streamed answer over a plain TCP connection, so that the client costs little and the same on both sides."""
    address = urlsplit(side.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    body = json.dumps(
        {
            "model": MODEL,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()
    head = {"Host": address.netloc, "Content-Type": "application/json", "Content-Length": str(len(body)), "Connection": "close", **side.headers}
    lines = "".join(f"{k}: {v}\r\n" for k, v in head.items())
    started = time.perf_counter()
    writer.write(f"POST /v1/chat/completions HTTP/1.1\r\n{lines}\r\n".encode() + body)
    try:
        return await _read(reader, started)
    finally:
        writer.close()


async def _read(reader: asyncio.StreamReader, started: float) -> Sample:
    status = await reader.readline()
    if b" 200 " not in status:
        raise RuntimeError(f"{status!r} {await reader.read(2000)!r}")
    stamps: list[float] = []
    text: list[str] = []
    count = 0
    while line := await reader.readline():
        if not line.startswith(b"data: {"):
            if line.startswith(b"data: [DONE]"):
                break
            continue
        now = time.perf_counter()
        chunk = json.loads(line[6:])
        if chunk.get("usage"):
            count = chunk["usage"]["completion_tokens"]
        if chunk["choices"] and chunk["choices"][0]["delta"].get("content"):
            stamps.append(now)
            text.append(chunk["choices"][0]["delta"]["content"])
    if not stamps or not count:
        raise RuntimeError("an answer without text or usage")
    return Sample(stamps[0] - started, [b - a for a, b in itertools.pairwise(stamps)], count, "".join(text))


def cpu_of(pids: list[int]) -> float:
    """CPU seconds used so far by these processes and all their descendants."""
    total = 0.0
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            parent = psutil.Process(pid)
            for process in [parent, *parent.children(recursive=True)]:
                with contextlib.suppress(psutil.Error):
                    times = process.cpu_times()
                    total += times.user + times.system
    return total


async def load(side: Side, streams: int, tokens: int, per_stream: int) -> dict[str, Any]:
    """Closed loop: each of `streams` clients asks `per_stream` times."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    used, started = cpu_of(side.pids), time.perf_counter()

    async def client(number: int) -> list[Sample]:
        return [await ask(side, PROMPTS[(number + turn) % len(PROMPTS)], tokens) for turn in range(per_stream)]

    samples = [s for group in await asyncio.gather(*map(client, range(streams))) for s in group]
    wall = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_SELF)
    total = sum(s.tokens for s in samples)
    gaps = sorted(g for s in samples for g in s.gaps) or [0.0]
    firsts = sorted(s.first for s in samples)
    return {
        "side": side.name,
        "streams": streams,
        "answers": len(samples),
        "tokens": total,
        "tokens_per_s": total / wall,
        "first_p50_ms": 1e3 * statistics.median(firsts),
        "first_p99_ms": 1e3 * firsts[min(len(firsts) - 1, int(len(firsts) * 0.99))],
        "gap_p50_ms": 1e3 * statistics.median(gaps),
        "gap_p99_ms": 1e3 * gaps[min(len(gaps) - 1, int(len(gaps) * 0.99))],
        "server_cpu_us_per_token": 1e6 * (cpu_of(side.pids) - used) / total,
        "client_cpu_us_per_token": 1e6 * (after.ru_utime + after.ru_stime - own.ru_utime - own.ru_stime) / total,
    }


@contextlib.contextmanager
def tailrace(data: Path) -> Iterator[Side]:
    """The whole product, real engine."""
    port, push = processes.free_port(), processes.free_port()
    args: list[str | Path] = [TAILRACE, "up", "--detach", "--engine", "vllm", "--data", data, "--port", str(port), "--push-port", str(push)]
    try:
        subprocess.run(args, check=True, timeout=START_DEADLINE_S, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        credential = subprocess.run([TAILRACE, "token", "--data", data], check=True, capture_output=True, text=True, timeout=60).stdout.strip()
        rows = json.loads(subprocess.run([TAILRACE, "ps", "--json", "--data", data], check=True, capture_output=True, text=True).stdout)
        rows = rows["processes"] if isinstance(rows, dict) else rows
        pids = [r["pid"] for r in rows if r["role"] in ("gateway", "push", "worker", "kafka", "redis")]
        yield Side("tailrace", f"http://127.0.0.1:{port}", {"Authorization": f"Bearer {credential}"}, pids)
    finally:
        subprocess.run([TAILRACE, "down", "--data", data], check=False, timeout=90, stdout=subprocess.DEVNULL)


@contextlib.contextmanager
def vllm_server(model: Path, log: Path) -> Iterator[Side]:
    """vLLM's own OpenAI-compatible server with the engine settings of our worker."""
    port = processes.free_port()
    env = {
        **os.environ,
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    }
    args: list[str | Path] = [ROOT / ".venv-engine/bin/python", "-m", "vllm.entrypoints.openai.api_server"]
    args += ["--model", model, "--served-model-name", MODEL]
    args += ["--host", "127.0.0.1", "--port", str(port), "--enforce-eager", "--max-num-seqs", "32", "--max-model-len", "8192"]
    args += ["--disable-log-stats", "--disable-uvicorn-access-log"]
    with log.open("w") as out:
        server = subprocess.Popen([str(a) for a in args], env=env, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, process_group=0)
        try:
            _until_healthy(server, f"http://127.0.0.1:{port}/health", log)
            yield Side("vllm serve", f"http://127.0.0.1:{port}", {}, [server.pid])
        finally:
            children = psutil.Process(server.pid).children(recursive=True) if server.poll() is None else []
            server.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(15)
            for child in [server, *children]:
                with contextlib.suppress(psutil.Error, ProcessLookupError):
                    child.kill()


def _until_healthy(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    end = time.monotonic() + START_DEADLINE_S
    while time.monotonic() < end:
        if server.poll() is not None:
            raise RuntimeError(f"vLLM's server ended: {log.read_text()[-2000:]}")
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(url, timeout=2.0).status_code == 200:
                return
        time.sleep(0.5)
    raise RuntimeError("vLLM's server did not start")


def table(rows: list[dict[str, Any]]) -> str:
    """Medians over the rounds, as Markdown."""
    keys = ["tokens_per_s", "first_p50_ms", "first_p99_ms", "gap_p50_ms", "gap_p99_ms", "server_cpu_us_per_token", "client_cpu_us_per_token"]
    out = ["| streams | side | " + " | ".join(keys) + " |", "|---|---|" + "---|" * len(keys)]
    for streams in sorted({r["streams"] for r in rows}):
        medians: dict[str, dict[str, float]] = {}
        for side in ("tailrace", "vllm serve"):
            found = [r for r in rows if r["streams"] == streams and r["side"] == side]
            if found:
                medians[side] = {k: statistics.median(r[k] for r in found) for k in keys}
                out.append(f"| {streams} | {side} | " + " | ".join(f"{medians[side][k]:.1f}" for k in keys) + " |")
        if len(medians) == 2:
            out.append(f"| {streams} | ratio | " + " | ".join(f"{medians['tailrace'][k] / medians['vllm serve'][k]:.2f}" for k in keys) + " |")
    return "\n".join(out)


def main() -> None:
    """Run both sides, one server at a time, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", default="1,4,16")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--answers", type=int, default=2, help="answers per stream and round")
    parser.add_argument("--model", type=Path, default=Path.home() / ".cache/tailrace/models" / MODEL)
    parser.add_argument("--out", type=Path, default=Path("bench-whole-path.json"))
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for number in range(args.rounds):
        with tempfile.TemporaryDirectory() as temp:
            for side in (tailrace(Path(temp) / "data"), vllm_server(args.model, Path(temp) / "vllm.log")):
                with side as server:
                    asyncio.run(load(server, 1, 16, 2))  # warm
                    for streams in map(int, args.streams.split(",")):
                        row = {"round": number, **asyncio.run(load(server, streams, args.tokens, args.answers))}
                        rows.append(row)
                        sys.stderr.write(json.dumps(row) + "\n")
    args.out.write_text(json.dumps(rows, indent=1))
    sys.stdout.write(table(rows) + "\n")


if __name__ == "__main__":
    main()
