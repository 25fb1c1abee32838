"""Results of trials on disk: a cache that may be gone, garbage, shared or not writable."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support import cases
from tests.support.waiting import eventually
from worker.trials import trial_results
from worker.trials.trial_results import TrialResults, Verdict


def made(folder: Path, key: str = "engine 1") -> TrialResults:
    return TrialResults(folder, key)


def test_what_was_decided_is_there_after_a_restart_and_only_for_this_engine(
    tmp_path: Path,
) -> None:
    first = made(tmp_path / "new")
    for name, verdict in (("seed", Verdict.TAKEN), ("top_k", Verdict.FATAL)):
        (tmp_path / "new").mkdir(exist_ok=True)
        first.begin(name)
        first.decide(name, verdict)
    assert made(tmp_path / "new").verdicts == {"seed": Verdict.TAKEN, "top_k": Verdict.FATAL}
    assert made(tmp_path / "new").ends == {}
    assert made(tmp_path / "new", "engine 2").verdicts == {}


def test_a_process_that_ended_in_a_trial_counts_and_one_that_survived_does_not(
    tmp_path: Path,
) -> None:
    dead_results = made(tmp_path)
    assert dead_results.begin("top_k") == 1
    again = made(tmp_path)
    assert again.begin("top_k") == 2
    again.end("top_k")
    assert made(tmp_path).ends == {"top_k": 1}


@cases.each(
    "content",
    [b"", b"\xff\0", b"{", b"[]", b'{"verdicts": {"seed": "odd"}}', b'{"ends": {"seed": "x"}}'],
)
def test_a_file_that_cannot_be_read_says_nothing_and_is_written_anew(
    tmp_path: Path, content: bytes
) -> None:
    results = made(tmp_path)
    results.decide("seed", Verdict.TAKEN)
    (file,) = tmp_path.glob("*.json")
    file.write_bytes(content)
    trial_results = made(tmp_path)
    assert (trial_results.verdicts, trial_results.ends) == ({}, {})
    trial_results.decide("top_k", Verdict.REFUSED)
    assert made(tmp_path).verdicts == {"top_k": Verdict.REFUSED}


async def test_a_folder_that_cannot_be_written_costs_the_cache_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    results = made(tmp_path / "file" / "below")
    async with results.lock(1.0):
        results.decide("seed", Verdict.REFUSED)
    assert results.verdicts == {"seed": Verdict.REFUSED}
    unkept = TrialResults(tmp_path, "")
    async with unkept.lock(1.0):
        unkept.decide("seed", Verdict.TAKEN)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


async def test_a_second_worker_waits_for_the_first_ones_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_results, "LOCK_POLL_S", 0.001)
    first, second = made(tmp_path), made(tmp_path)
    order: list[str] = []

    async def wait() -> None:
        async with second.lock(30.0):
            order.append(f"second: {[*second.verdicts]}")

    async with first.lock(30.0):
        waiting = asyncio.create_task(wait())
        await asyncio.sleep(0)
        first.decide("seed", Verdict.TAKEN)
        order.append("first")
    await waiting
    assert order == ["first", "second: ['seed']"]
    # One that holds it for too long holds up nobody, and one that is cancelled lets it go.
    async with first.lock(30.0):
        async with second.lock(0.01):
            order.append("both")
        third = asyncio.create_task(wait())
        await asyncio.sleep(0)
        third.cancel()
        await asyncio.gather(third, return_exceptions=True)
    await eventually(lambda: order[-1] == "both", "nobody else had it")
    async with second.lock(30.0):
        pass
