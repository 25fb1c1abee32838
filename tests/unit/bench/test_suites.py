"""What the suites conclude from logs and clients, without either."""

from __future__ import annotations

import pytest

from bench import __main__ as command
from bench import history, load
from bench.hop import Delta, Frame, paired
from tailrace.protocol import fold, ids, records

RID = ids.mint(ids.Address(b"abcd", 1, 0), bytes(11))


def test_frames_and_deltas_are_laid_side_by_side() -> None:
    frames = [Frame(1.0, 2.0, "a"), Frame(3.0, 4.0, "b")]
    deltas = [Delta(5.0, "a"), Delta(6.0, "b")]
    assert paired(frames, deltas) == list(zip(frames, deltas, strict=True))
    assert paired(frames, [*deltas, Delta(7.0, "tail")]) == list(zip(frames, deltas, strict=True))


@pytest.mark.parametrize("texts", [["a"], ["a", "c"], ["b", "a"], ["a", "b", "c", "d"], []])
def test_a_client_that_was_told_something_else_is_no_measurement(texts: list[str]) -> None:
    with pytest.raises(load.RequestFailed):
        paired([Frame(1.0, 2.0, "a"), Frame(3.0, 4.0, "b")], [Delta(5.0, text) for text in texts])


def test_former_responses_are_well_formed() -> None:
    """Records that no reader would take would cost a reader nothing."""
    state = fold.Fold()
    outcomes = [state.apply(record, offset) for offset, record in enumerate(history.former(RID))]
    assert state.phase is fold.Phase.DONE
    assert not state.ignored
    assert len(outcomes) == history.FRAMES + 2
    assert all(
        records.decode_token(records.encode(record)) is not None for record in history.former(RID)
    )


def test_a_quick_run_leaves_out_what_starts_deployments_of_its_own_unless_it_is_named() -> None:
    everything = command.choose([], quick=False)
    only_named = {"gpu", "beside", "page", "search", "shares"}
    assert everything == [name for name in command.SUITES if name not in only_named]
    assert set(everything) - set(command.choose([], quick=True)) == {
        "scaling",
        "handover",
        "history",
        "items",
        "paced",
        "waits",
    }
    assert command.choose(["history", "gpu"], quick=True) == ["gpu", "history"]
