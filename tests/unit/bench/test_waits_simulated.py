"""What is told of waits, beside the waits that were, in virtual time."""

from __future__ import annotations

import statistics
from collections import defaultdict

from bench import waits_simulated


async def test_what_is_told_is_near_to_what_is_waited_for() -> None:
    found: dict[str, list[float]] = defaultdict(list)
    for seed in range(2):
        for name, ratio in waits_simulated.ratios(seed):
            found[name].append(ratio)
    for name, within in {
        f"{waits_simulated.ONE_USER}: interactive refusals": 0.5,
        f"{waits_simulated.ONE_USER}: interactive first etas": 0.4,
        "interactive at twice the capacity: interactive refusals": 0.6,
        "interactive at twice the capacity: interactive first etas": 0.6,
        "interactive at 1.2 of it, batch at a fifth: interactive refusals": 0.45,
        "interactive at half of it, batch at one and a half: batch refusals": 0.35,
        "interactive at half of it, batch at one and a half: batch first etas": 0.35,
    }.items():
        ratios = found[name]
        assert 0.7 < statistics.median(ratios) < 1.25, name
        assert sum(0.8 <= ratio <= 1.2 for ratio in ratios) / len(ratios) > within, name


async def test_in_steady_overload_what_is_taken_starts_in_time() -> None:
    """By the rates of the last five seconds alone batch requests were told less than half of their
    wait, and 17 % of those that were taken expired."""
    for load, ratios in waits_simulated.steady(1):
        for priority, asked in load.asked.items():
            assert 0.2 < load.refused[priority] / asked < 0.97, priority
            assert load.expired[priority] / asked < 0.03, priority
            for what in ("refusals", "first etas"):
                found = [ratio for name, ratio in ratios if name == f"{priority} {what}"]
                assert len(found) >= 10, (load.part, priority)
                assert 0.75 < statistics.median(found) < 1.3, (load.part, priority, what)
                within = sum(0.8 <= ratio <= 1.2 for ratio in found) / len(found)
                assert within > (0.55 if priority == "interactive" else 0.25), what
