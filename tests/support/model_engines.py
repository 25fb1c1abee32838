"""The real engine with two models, for the modules of tests/contract that share it.

An engine takes most of a minute to start on a slow machine, so `tests/contract/test_vllm_models.py`
runs these modules in one process, and pytest's order of a session's parameters starts each once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest
import pytest_asyncio

from tests.support import engine_environment, toy_tools

if TYPE_CHECKING:
    from worker.engines import vllm

REAL: Final = "SmolLM2"
TOY: Final = "toy"  # its template knows tools and reasoning
LENGTH: Final = 2_048  # tokens
CAPACITY: Final = 16


class Model(NamedTuple):
    """A started engine, and the folder of its model."""

    engine: vllm.VLLM
    folder: Path


@pytest_asyncio.fixture(scope="session", loop_scope="session", params=[REAL, TOY])
async def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Model]:
    """For tests that run in the engine environment, on the session's loop."""
    from worker.engines import vllm

    folder = engine_environment.MODEL
    if request.param == TOY:
        folder = tmp_path_factory.mktemp("model") / "toy-tools"
        toy_tools.build(engine_environment.MODEL, folder)
    made = vllm.VLLM(
        model=str(folder),
        capacity=CAPACITY,
        max_model_len=LENGTH,
        cpu_dtype="float32",  # prefill and decode round alike
    )
    await made.start()
    yield Model(made, folder)
    await made.shutdown()
