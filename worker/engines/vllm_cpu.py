"""How vLLM runs on a machine without a GPU: data type, processes and cores."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, Final

from worker.engines import vllm_internals

# Engine arguments that put the model into processes of its own.
PARALLEL: Final = frozenset(
    {
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "data_parallel_size",
        "distributed_executor_backend",
    }
)


def native_dtype(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The data type of weights and arithmetic that fits this machine's processors.

    A processor without instructions for bfloat16 emulates them: prompts and batches then take two
    to three times as long as in float32."""
    return "bfloat16" if "bf16" in cpuinfo.read_text() else "float32"


def machine(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The kind of machine that the model runs on: the GPU's name, or the processor's abilities."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return str(current_platform.get_device_name())
    lines = cpuinfo.read_text().splitlines()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def arguments(*, internals: bool, dtype: str) -> dict[str, Any]:
    """Engine arguments. With `internals`, the model runs in the scheduler's process; else vLLM
    starts a process for it.

    Nothing is compiled: compiling would cost more seconds at every start than it saves.
    """
    engine_args: dict[str, Any] = {"dtype": dtype, "enforce_eager": True}
    if internals:
        engine_args["distributed_executor_backend"] = vllm_internals.one_process_executor()
    return engine_args


def cores(config: Any, *, internals: bool) -> contextlib.AbstractContextManager[None]:
    """Enter it to start the engine: its process then computes on the cores that vLLM intends for
    the model. Without `internals` vLLM sets the cores of the process that it starts itself."""
    return vllm_internals.core_binding(config) if internals else contextlib.nullcontext()
