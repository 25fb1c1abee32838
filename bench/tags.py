"""What record keys cost: every record signed and checked, beside none, in turn.

Both sides are this checkout with the scripted engine. The idle side is frozen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from bench import beside, measure, stacks
from tailrace.cli import record_keys

NAME: Final = "tags"
OVER, UNDER = "with record keys", "without"
PLOTS: Final = beside.PLOTS


def run(plan: measure.Plan, _shared: Callable[[], stacks.Side]) -> Iterator[measure.Row]:
    """Rows of both sides, in the order A B, B A."""
    keys = plan.scratch / "record-keys.json"
    record_keys.create(keys, accept_untagged=False, say=lambda _: None)
    with stacks.together(
        stacks.tailrace(
            plan.scratch, settings={**beside.SETTINGS, "TAILRACE_RECORD_KEYS": str(keys)}
        ),
        stacks.tailrace(plan.scratch, settings=beside.SETTINGS),
    ) as (signed, plain):
        yield from beside.in_turn(NAME, plan.rounds, {OVER: signed, UNDER: plain})
