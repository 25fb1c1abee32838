"""vLLM's own OpenAI-compatible server, from the engine environment, with the small model.

It computes in float32, so that prefill and decode round alike and a continued greedy answer equals
the uninterrupted one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import psutil
import pytest

from tailrace.local import ports
from tests.support import engine_environment, waiting

MODEL = "small"
KEY = "sk-of-the-tests"
START_S = 300.0
_ENVIRONMENT = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
}


@contextlib.asynccontextmanager
async def server(folder: Path) -> AsyncIterator[str]:
    """The base URL of a server that asks for KEY."""
    python, model = engine_environment.PYTHON, engine_environment.MODEL
    if not python.exists() or not model.is_dir():
        pytest.skip("vLLM's server is NOT tested: no engine environment or no model (make install)")
    port = ports.free_port()
    module = ["-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1"]
    served = ["--model", str(model), "--served-model-name", MODEL, "--port", str(port)]
    chosen = ["--dtype", "float32", "--enforce-eager", "--max-num-seqs", "8"]
    chosen += ["--max-model-len", "1024", "--disable-uvicorn-access-log"]
    chosen += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    log = folder / "vllm.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(python), *module, *served, *chosen],
            # The key is in the environment, where `ps` does not show it.
            env={**os.environ, **_ENVIRONMENT, "VLLM_API_KEY": KEY},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        async with httpx.AsyncClient() as client:

            async def healthy() -> bool:
                assert process.poll() is None, log.read_text(errors="replace")[-3000:]
                with contextlib.suppress(httpx.HTTPError):
                    found = await client.get(f"http://127.0.0.1:{port}/health", timeout=2)
                    return found.status_code == 200
                return False

            await waiting.eventually(healthy, "vLLM's server is healthy", within_s=START_S)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        await asyncio.to_thread(_end, process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Stop the server, and the engine's processes if it leaves some."""
    children = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(10)
    for left in (*children, process):
        with contextlib.suppress(psutil.Error):
            left.kill()
    process.wait()
