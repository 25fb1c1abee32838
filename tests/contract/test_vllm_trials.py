"""Trials of the fields that vLLM takes (`worker.trials.field_trials`), on real engines.

Collected in the engine environment (tests/contract/test_engine_environment.py).
"""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

from tailrace.protocol import engine_fields
from tests.support import engine_environment
from tests.support.model_engines import LENGTH, TOY, Engines, Model, cases
from worker.engines import base, vllm
from worker.trials import field_trials
from worker.trials.field_trials import FieldTrials
from worker.trials.trial_results import TrialResults, Verdict

pytestmark = [
    pytest.mark.engine,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(1_800),
    pytest.mark.nightly,
]
PATIENT_S: Final = 900.0  # no deadline of a trial, however busy the machine is
SPECULATIVE: Final[dict[str, Any]] = {
    "speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}
}


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(field_trials, "TRIAL_S", PATIENT_S)


async def run(engine: vllm.VLLM, results: TrialResults) -> FieldTrials:
    trials = FieldTrials(engine, results, deadline_s=PATIENT_S)
    await trials.run()
    return trials


async def answered(engine: vllm.VLLM) -> int:
    """Tokens of the answer to a plain request."""
    request, ids = engine_fields.trial(), list[int]()

    def keep(step: base.Step) -> bool:
        ids.extend(step.ids)
        return True

    prompt = await engine.encode(request)
    await engine.generate(base.GenerationInput(request, "f" * 32, prompt, (), 4), keep)
    return len(ids)


@contextlib.asynccontextmanager
async def started(
    engines: Engines, kind: type[vllm.VLLM] = vllm.VLLM, **args: Any
) -> AsyncIterator[vllm.VLLM]:
    """An engine of its own. The shared one is stopped first: one runs at a time."""
    await engines.stop()
    folder = str(engine_environment.MODEL)
    engine = kind(model=folder, capacity=4, max_model_len=LENGTH, engine_args=args)
    try:
        await engine.start()
        yield engine
    finally:
        await engine.shutdown()


@pytest.mark.parametrize("model", cases(TOY), indirect=True)
async def test_an_engine_that_knows_tools_takes_every_field(model: Model, tmp_path: Path) -> None:
    engine = model.engine
    key = engine.trial_key()
    assert key
    found = await run(engine, TrialResults(tmp_path, key))
    assert (found.not_offered, found.undecided) == ({}, [])
    assert {"seed", "grammar", "tools"} <= {*found.results.verdicts}
    assert {*(await run(engine, TrialResults(tmp_path, key))).results.verdicts.values()} == {
        Verdict.TAKEN
    }
    assert engine.trial_key() == key
    assert await answered(engine) > 0


async def test_with_speculative_decoding_what_vllm_refuses_is_found_and_it_serves(
    engines: Engines, tmp_path: Path
) -> None:
    async with started(engines, **SPECULATIVE) as engine:
        found = await run(engine, TrialResults(tmp_path, str(engine.trial_key())))
        assert found.undecided == []
        assert found.not_offered["min_p"] is Verdict.REFUSED
        assert found.not_offered["logit_bias"] is Verdict.REFUSED
        assert "temperature" not in found.not_offered
        assert not engine.dead.is_set()
        assert await answered(engine) > 0


class Killed(vllm.VLLM):
    """Its process is killed with one field."""

    async def generate(self, job: base.GenerationInput, on_step: base.OnStep) -> None:
        if job.request.sampling.stop:
            for child in multiprocessing.active_children():
                child.kill()
        await super().generate(job, on_step)


async def test_an_engine_whose_process_ends_with_a_field_is_started_again(
    engines: Engines, tmp_path: Path
) -> None:
    results = TrialResults(tmp_path, "killed")
    for row in engine_fields.TABLE:
        if row.name not in ("stop", "min_tokens"):
            results.decide(row.name, Verdict.TAKEN)
    async with started(engines, Killed) as engine:
        found = await run(engine, results)
        assert (found.not_offered, found.undecided) == ({"stop": Verdict.FATAL}, [])
        assert not engine.dead.is_set()
        assert await answered(engine) > 0
