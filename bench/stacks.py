"""The servers under test: Tailrace and vLLM's own server, started by their usual commands on free
ports and stopped afterwards.

Both have the same engine settings (`ENGINE`), the same environment, and a session of their own. The
kernel divides the cores by session, so a server in the client's session would get a part of the
client's share.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import httpx
import psutil

from bench import measure
from tailrace.local import dev_credentials, install_engine, paths, ports, state
from worker.engines import vllm_cpu

TAILRACE: Final = Path(sys.executable).with_name("tailrace")
ENGINE_PYTHON: Final = paths.ROOT / ".venv-engine/bin/python"
START_DEADLINE_S: Final = 300.0
OURS, THEIRS, FLOOR = "tailrace", "vllm serve", "floor"

RUN_ON: Final = ("kafka", "redis")
THAW_S: Final = 1.0  # until requests that timed out during the freeze have been repeated

SEQUENCES: Final = 128  # responses the engine runs at once, on both sides
# Limits are not measured here, and one principal sends every request.
_NO_LIMITS: Final = (
    '"requests_rate":0,"tokens_rate":0,"responses_per_principal":8192,"responses":8192,'
    '"sockets_per_principal":8192'
)
# Another checkout may not know the last ones: it would not start.
NO_LIMITS: Final = (
    f'{{{_NO_LIMITS},"connections_per_address":16384,"kept_bytes_per_principal":0,'
    '"reads_rate":0,"messages_rate":0,"frames_rate":0}'
)
SECOND_PUSH_LIMITS: Final = f"{{{_NO_LIMITS}}}"
# For both sides; the worker's engine sets the same by itself (worker/engines/vllm.py).
ENGINE: Final = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
}


class NotHere(Exception):
    """Something that a suite needs is not installed. The text says what, and how to get it."""


@dataclass
class Side:
    """One server under test.

    Attributes:
        url: of the first gateway. urls: of all of them; empty for vLLM's server.
        roles: its process ids by role.
        push_url, kafka, redis: addresses; empty for vLLM's server.
        data: its data folder; None for vLLM's server.
    """

    name: str
    url: str
    model: str
    headers: dict[str, str]
    roles: dict[str, list[int]]
    urls: list[str] = field(default_factory=list)
    push_url: str = ""
    kafka: str = ""
    redis: str = ""
    data: paths.Data | None = None
    environ: dict[str, str] = field(default_factory=dict)

    def meter(self) -> measure.Meter:
        return measure.Meter(self.roles)


def environment(**more: str) -> dict[str, str]:
    """The caller's environment without Tailrace settings, plus ENGINE and `more`.

    With the caller's settings a benchmark could put its load on another deployment's broker.
    """
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("TAILRACE_", "OTEL_"))
    }
    return {**inherited, **ENGINE, **more}


@contextlib.contextmanager
def tailrace(
    scratch: Path,
    *,
    engine: str = "scripted",
    model: str = "",
    workers: int = 1,
    gateways: int = 1,
    settings: Mapping[str, str] | None = None,
    tree: Path | None = None,
) -> Iterator[Side]:
    """Run `tailrace up` in a new folder and wait until it is ready.

    Args:
        settings: Environment variables for all of its processes.
        tree: Another installed checkout whose program is to run, instead of this one.
    """
    program = TAILRACE if tree is None else tree / ".venv/bin/tailrace"
    source = tree or paths.ROOT
    if not program.exists():
        raise NotHere(f"an installed checkout in {tree} (make install there)")
    folder = Path(tempfile.mkdtemp(prefix="stack-", dir=scratch))
    data = paths.Data(folder / "data")
    port = ports.free_port()
    push_port = ports.free_port({port})
    environ = environment(
        **{
            "TAILRACE_MAX_NUM_SEQS": str(SEQUENCES),
            "TAILRACE_LIMITS": NO_LIMITS if tree is None else SECOND_PUSH_LIMITS,
            **({} if tree is None else {"PYTHONPATH": str(tree)}),
            **(settings or {}),
        }
    )
    command: list[str | Path] = [
        program,
        "up",
        "--detach",
        "--engine",
        engine,
        *(["--model", model] if model else []),
        "--workers",
        str(workers),
        "--gateways",
        str(gateways),
    ]
    command += ["--port", str(port), "--push-port", str(push_port), "--data", data.root]
    log = folder / "up.log"
    try:
        with log.open("w") as out:
            process = subprocess.run(
                command,
                cwd=source,  # `python -m` imports from the current folder first
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                timeout=START_DEADLINE_S,
                check=False,
            )
        running = state.load(data.state)
        if process.returncode or running is None:
            raise RuntimeError(f"tailrace up: {log.read_text()[-3000:]}")
        roles: dict[str, list[int]] = {}
        for part in running.parts:
            roles.setdefault(part.role, []).append(part.pid)
        _check_source(roles, source)
        headers = {"authorization": f"Bearer {dev_credentials.issue(data, 'bench', 3 * 3600)}"}
        yield Side(
            OURS,
            running.url,
            running.model,
            headers,
            roles,
            running.urls,
            running.push_urls[0],
            running.kafka,
            running.redis,
            data,
            environ,
        )
    finally:
        subprocess.run(
            [program, "down", "--data", data.root],
            env=environ,
            check=False,
            timeout=120,
            stdout=subprocess.DEVNULL,
        )


def _check_source(roles: Mapping[str, list[int]], source: Path) -> None:
    """Refuse services that run from another folder: two sides of one code say nothing.

    Raises:
        RuntimeError: A service's current folder is not `source`.
    """
    for role in ("gateway", "push", "worker"):
        for pid in roles.get(role, []):
            folder = Path(psutil.Process(pid).cwd())
            if folder.resolve() != source.resolve():
                raise RuntimeError(f"{role} runs from {folder}, not from {source}")


@contextlib.contextmanager
def second_push(side: Side, scratch: Path) -> Iterator[Side]:
    """Run one more push instance. Yields the same side with this instance as its push service."""
    assert side.data is not None
    port = ports.free_port()
    command: list[str | Path] = [TAILRACE, "push", "--port", str(port), "--data", side.data.root]
    log = scratch / f"push-{port}.log"
    process = _start(command, side.environ, log)
    try:
        url = f"http://127.0.0.1:{port}"
        _until_healthy(process, f"{url}/ready", log)
        yield replace(side, push_url=url, roles={**side.roles, "push": [process.pid]})
    finally:
        end(process)


@contextlib.contextmanager
def second_worker(side: Side, number: int, pool: str = "") -> Iterator[int]:
    """Run one more worker with the scripted engine. Yields its pid.

    `pool`: of the deployment's file of pools; empty where it has none.
    """
    assert side.data is not None
    command: list[str | Path] = [
        TAILRACE,
        "worker",
        "--engine",
        "scripted",
        "--name",
        f"bench-{number}",
        "--data",
        side.data.root,
    ]
    environ = {**side.environ, **({"TAILRACE_POOL": pool} if pool else {})}
    worker = _start(command, environ, side.data.root / f"bench-{number}.log")
    try:
        yield worker.pid
    finally:
        end(worker)


def metric(pid: int, name: str) -> float | None:
    """The sum over all labels of what a service of this deployment shows under a metric's name.
    None if the process has no metrics, or does not answer."""
    port = psutil.Process(pid).environ().get("TAILRACE_ADMIN_PORT")
    if not port:
        return None
    try:
        lines = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=5).text.split("\n")
    except httpx.HTTPError:
        return None
    return sum(float(line.split()[-1]) for line in lines if re.match(rf"{name}[{{ ]", line))


def _start(
    command: Sequence[str | Path], environ: Mapping[str, str], log: Path
) -> subprocess.Popen[bytes]:
    """A server in a session of its own, so that a Ctrl-C here leaves its end to `end`."""
    with log.open("w") as out:
        return subprocess.Popen(
            command,
            cwd=paths.ROOT,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def end(process: subprocess.Popen[bytes]) -> None:
    """Stop a process by SIGTERM, after 30 s by SIGKILL."""
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextlib.contextmanager
def vllm_server(
    scratch: Path,
    model: Path,
    name: str,
    *,
    alike: bool = False,
    tool_parser: str = "",
    engine_args: Mapping[str, Any] = MappingProxyType({}),
) -> Iterator[Side]:
    """Run vLLM's OpenAI-compatible server with the worker's engine settings.

    `alike`: also with the worker's arrangement of engine processes. `tool_parser`: it serves tools,
    and its grammars are of the worker's kind. `engine_args`: as a pool has them.
    """
    if not ENGINE_PYTHON.exists():
        raise NotHere("the engine environment (make install)")
    port = ports.free_port()
    module = "bench.alike_server" if alike else "vllm.entrypoints.openai.api_server"
    command: list[str | Path] = [ENGINE_PYTHON, "-m"]
    command += [module, "--model", model, "--served-model-name", name]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    command += server_options(tool_parser, engine_args, gpu=install_engine.has_gpu())
    log = scratch / f"vllm-{port}.log"
    server = _start(command, environment(), log)
    try:
        _until_healthy(server, f"http://127.0.0.1:{port}/health", log)
        yield Side(THEIRS, f"http://127.0.0.1:{port}", name, {}, {"server": [server.pid]})
    finally:
        _end(server)


@contextlib.contextmanager
def floor(scratch: Path, steps: str) -> Iterator[Side]:
    """Run `bench.floor_server`."""
    port = ports.free_port()
    log = scratch / f"floor-{port}.log"
    server = _start(
        [sys.executable, "-m", "bench.floor_server", str(port), steps], environment(), log
    )
    try:
        _until_healthy(server, f"http://127.0.0.1:{port}/health", log)
        yield Side(FLOOR, f"http://127.0.0.1:{port}", "floor", {}, {"server": [server.pid]})
    finally:
        end(server)


def server_options(
    tool_parser: str, engine_args: Mapping[str, Any], *, gpu: bool
) -> list[str | Path]:
    """Options of vLLM's server for an engine as the worker has it: compiled only on a GPU."""
    options: list[str | Path] = ["--enable-prefix-caching"]
    options += ["--max-num-seqs", str(SEQUENCES), "--max-model-len", "8192"]
    options += ["--disable-log-stats", "--disable-uvicorn-access-log"]
    if not gpu:
        options += ["--dtype", vllm_cpu.native_dtype(), "--enforce-eager"]
    for argument, value in engine_args.items():
        options += [f"--{argument.replace('_', '-')}", str(value)]
    if tool_parser:
        grammars = '{"backend": "xgrammar", "disable_any_whitespace": true}'
        options += ["--structured-outputs-config", grammars]
        options += ["--enable-auto-tool-choice", "--tool-call-parser", tool_parser]
    return options


@contextlib.contextmanager
def together(
    ours: contextlib.AbstractContextManager[Side], theirs: contextlib.AbstractContextManager[Side]
) -> Iterator[tuple[Side, Side]]:
    """Start both sides at once, because the start of an engine uses only one core."""
    with contextlib.ExitStack() as running, concurrent.futures.ThreadPoolExecutor(2) as threads:
        starting = [threads.submit(side.__enter__) for side in (ours, theirs)]
        for side, sides in zip((ours, theirs), starting, strict=True):
            if sides.exception() is None:
                running.push(side)
        yield starting[0].result(), starting[1].result()


@contextlib.contextmanager
def frozen(side: Side) -> Iterator[None]:
    """Suspend the processes of `side`, so that an idle stack uses no CPU time.

    The broker and Redis keep running: without polling clients they cost nothing, and after a freeze
    all their timers would fire.
    """
    processes: list[psutil.Process] = []
    try:
        for role, pids in side.roles.items():
            for pid in pids if role not in RUN_ON else ():
                parent = psutil.Process(pid)
                for each in (parent, *parent.children(recursive=True)):
                    each.suspend()
                    processes.append(each)
        yield
    finally:
        for each in processes:
            with contextlib.suppress(psutil.Error):
                each.resume()
        time.sleep(THAW_S)


def _end(server: subprocess.Popen[bytes]) -> None:
    """Stop vLLM's server by SIGTERM, and its engine processes and the rest by SIGKILL."""
    children = psutil.Process(server.pid).children(recursive=True) if server.poll() is None else []
    server.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        server.wait(15)
    for child in children:
        # psutil compares the start time too, so a reused pid is safe.
        with contextlib.suppress(psutil.Error):
            child.kill()
    if server.poll() is None:
        server.kill()
        server.wait()


def _until_healthy(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    end = time.monotonic() + START_DEADLINE_S
    while time.monotonic() < end:
        if server.poll() is not None:
            raise RuntimeError(f"the server ended during its start: {log.read_text()[-2000:]}")
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(url, timeout=2.0).status_code == 200:
                return
        time.sleep(0.1)
    raise RuntimeError(f"not ready after {START_DEADLINE_S:.0f} s: {log.read_text()[-2000:]}")


def model_folder() -> Path:
    """The folder of the small model that `make install` builds."""
    folder = paths.model()
    if not (folder / "config.json").exists():
        raise NotHere(f"the model {paths.MODEL} (make install)")
    return folder


def toy_model() -> Path:
    """The folder of a tiny model with random weights, so that the engine costs almost nothing.

    It has the architecture and the tokenizer of the small model.
    """
    source, folder = model_folder(), paths.cache() / "models" / "toy-llama"
    if not (folder / "model.safetensors").exists():
        if not ENGINE_PYTHON.exists():
            raise NotHere("the engine environment (make install)")
        subprocess.run(
            [ENGINE_PYTHON, "-m", "bench.toy_model", source, folder],
            cwd=paths.ROOT,
            env=environment(),
            check=True,
            timeout=300,
        )
    return folder
