"""Trials of an engine's fields, on a scripted engine that refuses some or ends with them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tailrace.protocol import engine_fields
from tests.support.waiting import eventually
from worker.engines import base, scripted
from worker.trials import field_trials, trial_results
from worker.trials.field_trials import FieldTrials
from worker.trials.trial_results import TrialResults, Verdict

ALL = {row.name for row in engine_fields.TABLE}
OWN = {"grammar": Verdict.REFUSED}  # the scripted engine writes no grammars


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripted, "PACE_MS", 0.0)
    monkeypatch.setattr(trial_results, "LOCK_POLL_S", 0.001)


class Engine(scripted.Scripted):
    """The scripted engine, which counts its starts and the trials of each field.

    Attributes:
        before: called with the field of an attempt, before it runs; None: of a plain one.
    """

    def __init__(self, refuses: set[str] | None = None, ends: set[str] | None = None) -> None:
        super().__init__(capacity=4, max_model_len=8_192)
        self.refuses, self.ends = frozenset(refuses or ()), frozenset(ends or ())
        self.starts = 0
        self.tried: list[str | None] = []
        self.before: Callable[[str | None], Any] = lambda _name: None

    async def start(self) -> None:
        await super().start()
        self.starts += 1

    async def generate(self, job: base.GenerationInput, on_step: base.OnStep) -> None:
        of_trial = (r.name for r in engine_fields.TABLE if engine_fields.trial(r) == job.request)
        self.tried.append(next(of_trial, None))
        waited = self.before(self.tried[-1])
        if waited is not None:
            await waited
        await super().generate(job, on_step)

    def end(self) -> None:
        self.dead.set()
        raise base.EngineDead("scripted death")


async def trials(engine: Engine, folder: Path | None = None, **more: Any) -> FieldTrials:
    await engine.start()
    field_trials = FieldTrials(engine, TrialResults(folder, "scripted"), **more)
    await field_trials.run()
    return field_trials


async def test_an_engine_that_takes_everything_is_tried_once_with_each_field() -> None:
    engine = Engine()
    field_trials = await trials(engine)
    assert (field_trials.not_offered, field_trials.undecided) == (OWN, [])
    assert engine.tried == [None, *(r.name for r in engine_fields.TABLE if r.name not in OWN)]
    assert engine.starts == 1


async def test_what_is_refused_or_fatal_is_not_offered_and_the_rest_is_tried() -> None:
    engine = Engine(refuses={"min_p", "regex"}, ends={"top_k"})
    found = await trials(engine)
    assert found.not_offered == {
        "top_k": Verdict.FATAL,
        "min_p": Verdict.REFUSED,
        "regex": Verdict.REFUSED,
        **OWN,
    }
    assert {*filter(None, engine.tried)} == ALL - {*OWN}
    assert engine.starts == 1 + field_trials.ENDS
    assert not engine.dead.is_set(), "it serves"


async def test_an_engine_that_ended_once_with_a_field_may_have_had_another_reason() -> None:
    engine = Engine()
    ends = ["top_k"]

    def before(name: str | None) -> None:
        if name in ends:
            ends.remove(name)
            engine.end()

    engine.before = before
    field_trials = await trials(engine)
    assert (field_trials.not_offered, field_trials.undecided, engine.starts) == (OWN, [], 2)


async def test_a_refusal_counts_when_it_came_twice() -> None:
    engine = Engine()
    engine.fail_every = 3  # each third attempt, whatever it asks for
    field_trials = await trials(engine)
    assert (field_trials.not_offered, field_trials.undecided) == (OWN, [])


async def test_an_engine_that_ends_with_a_plain_request_has_not_started() -> None:
    engine = Engine()
    engine.before = lambda name: engine.end() if name is None else None
    with pytest.raises(base.EngineDead):
        await trials(engine)
    # Also one that was started again.
    engine = Engine(ends={"temperature"})
    engine.before = lambda name: engine.end() if name is None and engine.starts > 1 else None
    with pytest.raises(base.EngineDead):
        await trials(engine)


async def test_an_engine_that_refuses_a_plain_request_says_nothing_of_fields() -> None:
    engine = Engine()
    engine.fail_every = 1
    field_trials = await trials(engine)
    assert (field_trials.not_offered, {*field_trials.undecided}, engine.tried) == ({}, ALL, [None])


async def test_what_the_engines_features_do_not_have_is_not_tried() -> None:
    engine = Engine()
    engine.features = frozenset({"embeddings"})
    assert (await trials(engine)).undecided == []
    assert engine.tried == []
    engine.features = frozenset({"logprobs"})
    await trials(engine)
    assert {"logprobs", "seed"} <= {*engine.tried}
    assert not {"regex", "tools", "effort"} & {*engine.tried}


async def test_what_was_not_tried_in_time_is_offered() -> None:
    now = 0.0
    engine = Engine(refuses={"temperature", "effort"})

    def before(_name: str | None) -> None:
        nonlocal now
        now += 1

    engine.before = before
    field_trials = await trials(engine, deadline_s=5.0, clock=lambda: now)
    assert field_trials.not_offered == {"temperature": Verdict.REFUSED}
    assert {"effort", "seed"} <= {*field_trials.undecided}
    assert len(engine.tried) < len(ALL)


async def test_a_trial_that_takes_too_long_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine()
    hang = asyncio.Event()
    engine.before = lambda name: hang.wait() if name == "seed" else None
    monkeypatch.setattr(field_trials, "TRIAL_S", 0.2)
    found = await trials(engine)
    assert (found.not_offered, "seed" in found.undecided) == (OWN, True)
    assert engine.starts == 1


async def test_known_results_are_not_tried_again_and_missing_ones_are(tmp_path: Path) -> None:
    await trials(Engine(refuses={"min_p"}, ends={"top_k"}), tmp_path)
    again = Engine()
    field_trials = await trials(again, tmp_path)
    assert field_trials.not_offered == {"top_k": Verdict.FATAL, "min_p": Verdict.REFUSED, **OWN}
    assert (again.tried, again.starts) == ([], 1)
    (file,) = tmp_path.glob("*.json")
    file.write_text(file.read_text().replace('"min_p"', '"a_field_of_before"'))
    added = Engine()
    assert (await trials(added, tmp_path)).not_offered == {"top_k": Verdict.FATAL, **OWN}
    assert added.tried == [None, "min_p"]
    file.write_text("garbage")
    assert (await trials(again, tmp_path)).not_offered == OWN
    assert {*filter(None, again.tried)} == ALL - {*OWN}


async def cancelled_at(field: str, folder: Path) -> None:
    """Trials of a worker that leaves while this field is tried."""
    engine, hang = Engine(), asyncio.Event()
    engine.before = lambda name: hang.wait() if name == field else None
    task = asyncio.create_task(trials(engine, folder))
    await eventually(lambda: field in engine.tried, "it is tried", every_s=0.001)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_cancelled_trial_costs_nothing_and_writes_no_verdict(tmp_path: Path) -> None:
    for _ in range(2 * field_trials.ENDS):
        await cancelled_at("seed", tmp_path)
        kept = TrialResults(tmp_path, "scripted")
        assert ("seed" in kept.verdicts, kept.ends) == (False, {})
    assert (await trials(Engine(), tmp_path)).undecided == []


async def test_a_field_with_which_the_process_itself_ended_twice_is_not_tried_again(
    tmp_path: Path,
) -> None:
    for _ in range(field_trials.ENDS):
        TrialResults(tmp_path, "scripted").begin("seed")
    (tmp_path / "x").touch()
    engine = Engine()
    assert (await trials(engine, tmp_path)).not_offered == {"seed": Verdict.FATAL, **OWN}
    assert "seed" not in engine.tried


async def test_of_two_workers_that_start_at_once_one_tries(tmp_path: Path) -> None:
    engines = [Engine(refuses={"min_p"}), Engine(refuses={"min_p"})]
    found = await asyncio.gather(*(trials(engine, tmp_path) for engine in engines))
    assert [each.not_offered for each in found] == [{"min_p": Verdict.REFUSED, **OWN}] * 2
    assert sorted(len(engine.tried) > 0 for engine in engines) == [False, True]


async def test_an_engine_that_ends_with_many_fields_is_not_started_for_ever() -> None:
    engine = Engine(ends=ALL)
    found = await trials(engine)
    assert engine.starts <= field_trials.MAX_RESTARTS + field_trials.ENDS
    assert {*found.not_offered} | {*found.undecided} == ALL
    assert not engine.dead.is_set()
