"""The check of messages that a prompt lacks: L13 (pure; log rule §21).

What may be left out is worked out here by its description in the log rule, not by
`tailrace.protocol.truncation`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tailrace.verify import history, reference_fold
from tailrace.verify.report import Report
from tailrace.verify.response_checks import counterexample


def check_truncation(
    out: Report, response: history.Response, account: reference_fold.Account
) -> None:
    """L13: a prompt lacks messages only if the request allows it, and only such as may be left out
    together; no later claim says how many."""
    request = response.requests[0].request if response.requests else None
    if not any(epoch.claim.dropped for epoch in account.epochs) and not (
        request and request.truncate
    ):
        return
    out.count("L13")
    problem = next(_problems(response, account), None)
    if problem is not None:
        out.fail("L13", counterexample(response, problem))
    out.figures["prompts without older messages"] += account.dropped > 0


def _problems(response: history.Response, account: reference_fold.Account) -> Iterator[str]:
    if any(epoch.claim.dropped for epoch in account.epochs[1:]):
        yield "a takeover says how many messages are left out"
    if not response.requests or not account.dropped:
        return
    request = response.requests[0].request
    if not request.truncate:
        yield f"{account.dropped} messages are left out, and the request does not allow it"
    elif account.dropped not in set(possible(request.messages)):
        yield f"{account.dropped} messages cannot be left out of its {len(request.messages)}"


def possible(messages: Sequence[dict[str, Any]]) -> Iterator[int]:
    """How many messages may be left out: all before a question that begins a turn; and, with all
    before the last turn, those from its first answer up to another one."""
    dialogue = [m for m in messages if m.get("role") not in ("system", "developer")]
    turn = 0
    for at in range(1, len(dialogue)):
        begins = dialogue[at]["role"] == "user" and dialogue[at - 1]["role"] != "user"
        if begins and not _splits(dialogue, at):
            turn = at
            yield at
    question = next(
        (n for n in range(turn, len(dialogue)) if dialogue[n]["role"] == "user"), len(dialogue)
    )
    answers = [
        at
        for at in range(question + 1, len(dialogue))
        if dialogue[at]["role"] == "assistant" and not _splits(dialogue, at)
    ]
    yield from (turn + at - answers[0] for at in answers[1:])


def _splits(dialogue: Sequence[dict[str, Any]], at: int) -> bool:
    """Whether an output after `at` belongs to a call before it. The last call of an id counts."""
    for later in range(at, len(dialogue)):
        name = dialogue[later].get("tool_call_id")
        if name is None:
            continue
        callers = [
            n
            for n in range(later)
            if any(call.get("id") == name for call in dialogue[n].get("tool_calls") or ())
        ]
        if callers and callers[-1] < at:
            return True
    return False
