"""LoRA adapters of a pool: models that share the weights of one, by names of their own."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from worker.engines import base

MOST_AT_ONCE: Final = 8


def arguments(
    adapters: Mapping[str, str], engine_args: Mapping[str, Any], *, on_cpu: bool
) -> dict[str, Any]:
    """Arguments of the engine: requests for different adapters run together. The pool's own
    `engine_args` win.

    Raises:
        base.ArgumentRefused: `max_loras` leaves no slot empty on a CPU. There vLLM's kernels use
            the last slot for a request without an adapter (`vllm/lora/ops/torch_ops`: index -1), so
            the plain model would answer with the adapter of that slot.
    """
    if not adapters:
        return {}
    enough = len(adapters) + 1 if on_cpu else min(len(adapters), MOST_AT_ONCE)
    if on_cpu and engine_args.get("max_loras", enough) < enough:
        raise base.ArgumentRefused(
            f"engine_args.max_loras is below {enough}: on a CPU vLLM needs one more than there "
            "are adapters, or requests without an adapter get one"
        )
    return {"enable_lora": True, "max_loras": enough}


async def load(llm: Any, adapters: Mapping[str, str]) -> dict[str, Any]:
    """vLLM's `LoRARequest` of each adapter, by name, after the engine has loaded it once: an
    adapter that it cannot load fails the worker's start and not a request.

    Args:
        adapters: name -> folder or hub name.

    Raises:
        base.ArgumentRefused: names the adapter.
    """
    from vllm.lora.request import LoRARequest

    requests = {}
    for name, source in sorted(adapters.items()):
        request = LoRARequest(name, _number(name), source)
        try:
            await llm.add_lora(request)
        except Exception as error:  # of the engine's process, as a plain Exception
            detail = " ".join(str(error).split())[:300]
            raise base.ArgumentRefused(f"adapters.{name}: {detail}") from error
        requests[name] = request
    return requests


def revision(model_rev: str, adapters: Mapping[str, str], of: Callable[[str], str]) -> str:
    """The revision of the model with these adapters, so that no worker continues an answer that
    another version of an adapter began. `of`: the revision of a folder or hub name."""
    if not adapters:
        return model_rev
    digest = hashlib.blake2b(digest_size=6)
    for name, source in sorted(adapters.items()):
        digest.update(f"{name}\0{of(source)}\0{_weights(source)}\0".encode())
    return f"{model_rev}+{digest.hexdigest()}"


def _number(name: str) -> int:
    """vLLM's number of an adapter: above 0 and distinct for each name."""
    return 1 + int.from_bytes(hashlib.blake2b(name.encode(), digest_size=6).digest())


def _weights(source: str) -> str:
    """A digest of the files of a folder: adapters are small, and two of them have equal sizes."""
    digest = hashlib.blake2b(digest_size=16)
    folder = Path(source)
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.name.startswith("adapter_") and path.is_file():
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "blake2b").digest())
    return digest.hexdigest()
