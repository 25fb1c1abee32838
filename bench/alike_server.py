"""vLLM's own server with the engine's processes as our worker arranges them
(`worker.engines.vllm`): what is left of a difference is the path, not the engine. Its command line
is vLLM's."""

from __future__ import annotations

from typing import Any

from vllm.entrypoints.launchers.api_server.entry import main
from vllm.platforms import current_platform
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.executor.abstract import Executor

from worker.engines import vllm as engine


def arrange() -> None:
    """Its command line does not know executors by class, so it is told where it makes its
    engine."""
    by_itself = AsyncLLM.from_vllm_config

    def made(vllm_config: Any, *arguments: Any, **named: Any) -> Any:
        if current_platform.is_cpu():
            vllm_config.parallel_config.distributed_executor_backend = engine.on_cpu()[
                "distributed_executor_backend"
            ]
        assert Executor.get_class(vllm_config).__name__ == "UniProcExecutor"
        with engine.cores(vllm_config):
            return by_itself(vllm_config, *arguments, **named)

    AsyncLLM.from_vllm_config = made


if __name__ == "__main__":
    arrange()
    main()
