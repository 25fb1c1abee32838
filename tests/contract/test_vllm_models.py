"""Runs the modules that share engines (tests/support/model_engines.py) where vLLM is."""

from __future__ import annotations

import pytest

from tests.support import engine_environment

pytestmark = pytest.mark.timeout(1_200)
MODULES = [f"tests/contract/test_vllm_{name}.py" for name in ("counting", "forks", "truncation")]


@pytest.mark.engine
@pytest.mark.skipif(engine_environment.HERE, reason="this is the engine environment")
async def test_counts_forks_and_truncation_in_the_engine_environment() -> None:
    await engine_environment.run_again(*MODULES)
