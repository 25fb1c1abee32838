"""How long a part that was started stands still."""

from __future__ import annotations

from tailrace.local.readiness import Readiness
from tailrace.local.start_progress import STEP_S, StartProgress

NOTHING = Readiness()


def test_a_part_that_imports_on_a_busy_machine_gets_on() -> None:
    progress = StartProgress(0.0)
    cpu_s = 0.0
    for now in range(0, 3600, 60):
        cpu_s += STEP_S
        assert progress.still_s(now, cpu_s, NOTHING) == 0


def test_a_part_that_waits_stands_still_though_it_uses_a_little_cpu() -> None:
    progress = StartProgress(0.0)
    assert progress.still_s(10.0, STEP_S, NOTHING) == 0
    for now in range(20, 200, 10):
        assert progress.still_s(now, STEP_S * (1 + now / 250), NOTHING) == now - 10


def test_a_part_that_answers_gets_on_with_each_new_answer_and_not_by_cpu() -> None:
    progress = StartProgress(0.0)
    folding = [Readiness(state="starting", detail=f"{n} of 9 partitions") for n in range(3)]
    assert progress.still_s(50.0, 4.0, folding[0]) == 0
    assert progress.still_s(150.0, 90.0, folding[0]) == 100
    assert progress.still_s(160.0, 91.0, folding[1]) == 0
    assert progress.still_s(170.0, 92.0, folding[1]) == 10


def test_a_process_that_is_started_again_has_to_do_more_than_the_one_before() -> None:
    progress = StartProgress(0.0)
    assert progress.still_s(10.0, 5.0, NOTHING) == 0
    assert progress.still_s(20.0, 4.0, NOTHING) == 10
