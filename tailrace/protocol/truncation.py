"""Which messages may be left out of a prompt that is too long, and in which order (pure; log rule
§21).

Oldest first: whole turns, then, of the last turn, answers that called tools, together with what the
tools returned. Instructions stay, and so do the last question and what follows the last answer.
A call of a tool is never left out without its output, nor an output without its call.

How many messages are left out is one number in the first CLAIM. Which ones follows from it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Final

from tailrace.protocol import records

_INSTRUCTIONS: Final = ("system", "developer")

Message = dict[str, Any]


def counts(messages: Sequence[Message]) -> list[int]:
    """How many messages may be left out, ascending; the first is 0."""
    return [0, *itertools.accumulate(len(step) for step in _steps(messages))]


def without_dropped(messages: Sequence[Message], dropped: int) -> list[Message]:
    """The messages without the first `dropped` that may be left out.

    Raises:
        ValueError: `dropped` is not one of `counts`.
    """
    out: set[int] = set()
    for step in _steps(messages):
        if len(out) >= dropped:
            break
        out.update(step)
    if len(out) != dropped:
        raise ValueError(f"{dropped} messages cannot be left out of these {len(messages)}")
    return [message for index, message in enumerate(messages) if index not in out]


def prompt(request: records.Request, dropped: int) -> list[Message]:
    """The messages that the prompt of a request is made of. `dropped`: as its first CLAIM says. A
    number that does not fit the request, which only garbage has, leaves them as they are."""
    if not request.truncate or dropped not in counts(request.messages):
        return request.messages
    return without_dropped(request.messages, dropped)


def _steps(messages: Sequence[Message]) -> list[list[int]]:
    """The indices of messages that are left out together, in the order in which they are."""
    dialogue = [n for n, message in enumerate(messages) if message.get("role") not in _INSTRUCTIONS]
    roles = [str(messages[n].get("role")) for n in dialogue]
    inside = _between_call_and_output([messages[n] for n in dialogue])
    turns = [
        at
        for at, (before, role) in enumerate(itertools.pairwise(roles), 1)
        if role == "user" and before != "user" and at not in inside
    ]
    begins = [0, *turns] if dialogue else []
    steps = [dialogue[a:b] for a, b in itertools.pairwise(begins)]
    last = begins[-1] if begins else 0
    answers = [
        at
        for at in range(last + 1, len(dialogue))
        if roles[at] == "assistant" and at not in inside and _answers_a_user(roles[last:at])
    ]
    return steps + [dialogue[a:b] for a, b in itertools.pairwise(answers)]


def _answers_a_user(before: Sequence[str]) -> bool:
    """Whether a turn began with a question, which stays."""
    return "user" in before


def _between_call_and_output(messages: Sequence[Message]) -> set[int]:
    """The indices at which the messages cannot be cut, because a call is before and its output
    after."""
    inside: set[int] = set()
    call_index: dict[str, int] = {}
    for at, message in enumerate(messages):
        for call in message.get("tool_calls") or ():
            call_index[str(call.get("id"))] = at
        start = (
            call_index.get(str(message.get("tool_call_id"))) if "tool_call_id" in message else None
        )
        if start is not None:
            inside.update(range(start + 1, at + 1))
    return inside
