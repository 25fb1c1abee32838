"""The check of other packages' private parts, with planted changes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tailrace import private_parts
from tests.support import cases


class State:
    def __init__(self, queue: Any) -> None:
        self.queue = queue
        self.num_cached_tokens = 0

    def make_request_output(self, new_token_ids: Any, finish_reason: Any, more: Any = None) -> None:
        """As vLLM's; `more` is a parameter that the check does not name."""


MODULES = {"engine.output": SimpleNamespace(State=State)}
GOOD = (
    private_parts.Part("engine.output", "State"),
    private_parts.Part("engine.output", "State.__init__", names=("queue", "num_cached_tokens")),
    private_parts.Part(
        "engine.output", "State.make_request_output", ("self", "new_token_ids", "finish_reason")
    ),
)


def load(name: str) -> Any:
    if name not in MODULES:
        raise ImportError(name)
    return MODULES[name]


def test_a_version_with_all_parts_has_no_changes() -> None:
    assert private_parts.changes(GOOD, load) == []


@cases.each(
    ("planted", "text"),
    [
        (
            private_parts.Part("engine.gone", "State"),
            "there is no module engine.gone",
        ),
        (
            private_parts.Part("engine.output", "State.make_output"),
            "engine.output has no State.make_output",
        ),
        (
            private_parts.Part("engine.output", "Gone.make_output"),
            "engine.output has no Gone.make_output",
        ),
        (
            private_parts.Part("engine.output", "State.make_request_output", ("self", "token_ids")),
            (
                "State.make_request_output takes (self, new_token_ids, finish_reason, more), "
                "expected (self, token_ids)"
            ),
        ),
        (
            private_parts.Part("engine.output", "State.__init__", names=("queue", "collector")),
            "State.__init__ does not use collector",
        ),
    ],
)
def test_each_change_is_named_exactly(planted: private_parts.Part, text: str) -> None:
    assert private_parts.changes((*GOOD, planted), load) == [text]


def test_every_change_is_named_not_only_the_first() -> None:
    gone = [private_parts.Part("engine.gone", name) for name in ("One", "Two")]
    assert len(private_parts.changes(gone, load)) == 2
