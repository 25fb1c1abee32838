"""vLLM's own server with the worker's arrangement of engine processes
(`worker.engines.vllm_cpu`).

In a comparison with it, only the path to the client differs, not the engine. The command line is
vLLM's.
"""

from __future__ import annotations

from typing import Any

from vllm.entrypoints.launchers.api_server.entry import main
from vllm.platforms import current_platform
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.executor.abstract import Executor

from worker.engines import vllm_internals


def arrange() -> None:
    """Replace the executor when the server makes its engine.

    vLLM's command line does not accept an executor class.
    """
    original = AsyncLLM.from_vllm_config

    def replacement(vllm_config: Any, *arguments: Any, **keywords: Any) -> Any:
        if current_platform.is_cpu():
            executor = vllm_internals.one_process_executor()
            vllm_config.parallel_config.distributed_executor_backend = executor
        assert Executor.get_class(vllm_config).__name__ == "UniProcExecutor"
        with vllm_internals.core_binding(vllm_config):
            return original(vllm_config, *arguments, **keywords)

    AsyncLLM.from_vllm_config = replacement


if __name__ == "__main__":
    arrange()
    main()
