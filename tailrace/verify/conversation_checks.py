"""The check of turns of conversations: L11 (pure; docs/design/history.md)."""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.protocol import records
from tailrace.verify import conversation_fold, history, reference_fold
from tailrace.verify.report import Report
from tailrace.verify.response_checks import counterexample


def check_turn(out: Report, response: history.Response, log_history: history.History) -> None:
    """L11: a response of a conversation has a place in its tree, and was requested after its
    predecessor had ended."""
    if not response.requests:
        return
    name = response.requests[0].request.conversation
    if name is None:
        return
    tree = log_history.trees.get(name)
    if tree is None:
        out.note("turn of a conversation that is gone")
        return
    out.count("L11")
    problem = next(_problems(response, tree, log_history), None)
    if problem is not None:
        out.fail("L11", counterexample(response, problem))


def _problems(
    response: history.Response, tree: conversation_fold.Tree, log_history: history.History
) -> Iterator[str]:
    entry = response.requests[0]
    if entry.request.owner != _owner(tree):
        yield "it is a turn of another owner's conversation"
    if response.rid not in tree.turns:
        yield "its conversation has no turn for it"
        return
    if any(each.request.append_by != tree.turns[response.rid] for each in response.requests):
        yield "its request may be appended until another time than its turn says"
    before = _before(response.rid, tree)
    former = log_history.responses.get(before) if before is not None else None
    if former is None or not former.requests or not former.whole:
        return  # it never got into the log, or is in another partition
    account = reference_fold.account(former.entries, former.owner)
    if account.ended_at is None:
        yield f"the turn before it, {before}, has not ended"
    elif account.entries[account.ended_at].timestamp > entry.timestamp:
        yield f"the turn before it, {before}, had not ended when it was asked for"


def _before(rid: str, tree: conversation_fold.Tree) -> str | None:
    """The turn that one follows, past items that were added."""
    node = tree.nodes[rid]
    while node is not None and node not in tree.turns:
        node = tree.nodes[node]
    return node


def _owner(tree: conversation_fold.Tree) -> records.Owner | None:
    try:
        return records.Owner(**tree.owner)
    except TypeError:
        return None
