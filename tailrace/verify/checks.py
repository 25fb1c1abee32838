"""Judges a history: the checks of every response, then R2 and R6 across responses (pure)."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tailrace.protocol import fold, records
from tailrace.verify import (
    activity_checks,
    answer_checks,
    continuation_checks,
    conversation_checks,
    embedding_checks,
    fallback_checks,
    fork_checks,
    hedge_checks,
    history,
    item_checks,
    kept_checks,
    reference_fold,
    response_checks,
    segment_checks,
    truncation_checks,
)
from tailrace.verify.outcome import Outcome, outcome_of
from tailrace.verify.report import Counterexample, Report

SETTLE_S: Final = 900.0  # a request may wait ten minutes for a worker before it expires


@dataclass(frozen=True, slots=True)
class Options:
    """How strictly to judge.

    Attributes:
        settle_s: a response must have ended if its last record is older than this at the end of
            the input. A younger response may still run.
        since_ms: responses whose first record is older are skipped. An earlier run judged them.
        content: judges L2 and L5 by content, if the engine's answers are known.
        fold_class: the fold that readers use. Tests that plant a bug replace it.
    """

    settle_s: float = SETTLE_S
    since_ms: int = 0
    content: response_checks.Content | None = None
    fold_class: type[fold.Fold] = fold.Fold


def judge(
    log_history: history.History, options: Options | None = None
) -> tuple[Report, dict[str, Outcome]]:
    """Run every check on every response of a history.

    Returns the report and the outcomes by response id.
    """
    options = options or Options()
    out = Report()
    outcomes = {}
    for response in log_history.responses.values():
        outcomes[response.rid] = _response(out, response, log_history, options)
    _commits(out, log_history, outcomes)
    _keys(out, outcomes.values())
    for line in log_history.misplaced:
        out.count("A1")
        out.fail("A1", Counterexample(line, "", 1))
    if log_history.keyed:
        out.count("A2")
    for r in log_history.forgeries:
        line = f"{history.place(r)}: {r.forgery}; its key is {history.printable(r.key)}"
        out.fail("A2", Counterexample(line, "", 1))
        out.note(f"forged record in {r.topic}: {r.forgery}")
    for topic, n in log_history.garbage.items():
        out.figures[f"garbage records in {topic}"] += n
    if log_history.late:
        out.figures["requests that came too late to count"] += log_history.late
    return out, outcomes


def _response(
    out: Report, response: history.Response, log_history: history.History, options: Options
) -> Outcome:
    principal = response.requests[0].request.owner if response.requests else None
    account = reference_fold.account(response.entries, principal)
    outcome = outcome_of(response, account)
    if not response.whole:
        out.note(
            "response of another log"
            if response.foreign
            else "response older than the log (history_lost)"
        )
        return outcome
    if response.oldest < options.since_ms:
        return outcome
    is_settled = log_history.newest - response.newest >= options.settle_s * 1000
    _figures(out, response, account)
    response_checks.check_fold_agreement(out, response, account, options.fold_class)
    response_checks.check_prefix(out, response, account, options.content)
    response_checks.check_sequence(out, response, account, is_settled, options.fold_class)
    response_checks.check_text(out, response, account, options.content)
    item_checks.check_items(out, response, account)
    embedding_checks.check_embeddings(out, response, account)
    conversation_checks.check_turn(out, response, log_history)
    fork_checks.check_fork(out, response, account, log_history.responses)
    truncation_checks.check_truncation(out, response, account)
    fallback_checks.check_fallback(out, response, account)
    continuation_checks.check_continuation(out, response, log_history.responses)
    answer_checks.check_answer(out, response, account, log_history.responses)
    segment_checks.check_segments(out, response, account)
    hedge_checks.check_hedges(out, response, account)
    response_checks.check_attempts(
        out, response, account, is_settled, has_dead=log_history.has_dead
    )
    response_checks.check_expiry(out, response, account)
    response_checks.check_principal(out, response, account)
    is_committed = _is_committed(response, log_history)
    kept_checks.check_history(out, response, account, committed=is_committed)
    activity_checks.check_activity(out, response, account, committed=is_committed)
    if log_history.has_usage:
        response_checks.check_usage(out, response, account, is_settled)
    return outcome


def _is_committed(response: history.Response, log_history: history.History) -> bool:
    """Whether a group is past one of its requests."""
    places = [(a.topic, a.offset) for a in response.requests]
    places += [(a.topic, a.offset) for a in response.reroutes]
    commits = ((log_history.committed.get((t, response.partition)), offset) for t, offset in places)
    return any(commit is not None and commit.finished_below > offset for commit, offset in commits)


def _figures(out: Report, response: history.Response, account: reference_fold.Account) -> None:
    out.figures["responses"] += 1
    out.figures["tokens"] += account.total
    out.figures[f"ended {account.status or 'open'}"] += 1
    out.figures["claims"] += len(account.epochs)
    out.figures["takeovers with k > 0"] += sum(1 for _, k in account.takeovers if k)
    accepted = set(account.accepted())
    for at, e in enumerate(account.entries):
        if at not in accepted and not isinstance(e.record, records.Yield):
            out.figures[f"ignored {type(e.record).__name__.upper()}"] += 1
            if isinstance(e.record, records.Tok):
                out.figures["ignored tokens"] += len(e.record.ids)
    times = [account.entries[f.at].timestamp for f in account.frames]
    if len(times) > 1:
        out.sample(
            "longest pause between tokens, ms", max(b - a for a, b in itertools.pairwise(times))
        )


def _commits(out: Report, log_history: history.History, outcomes: dict[str, Outcome]) -> None:
    """R6 at the end of the input.

    Every request below a committed offset has ended. The commit's metadata names an offset from
    which a successor folds every open response; no claim may lie before it.
    """
    for (topic, partition), commit in log_history.committed.items():
        place = log_history.places.get((topic, partition), {})
        out.count("R6")
        for offset, rid in sorted(place.items()):
            outcome = outcomes.get(rid) if rid else None
            if outcome is None or not outcome.whole:
                continue
            if offset < commit.finished_below and outcome.status is None:
                out.fail(
                    "R6",
                    Counterexample(
                        (
                            f"{topic}[{partition}]: {commit.offset} is committed, the request at "
                            f"{offset} has not ended"
                        ),
                        outcome.rid,
                        1,
                    ),
                )
                break
            problem = (
                _folds_from(log_history.responses[outcome.rid], commit)
                if offset >= commit.offset
                else None
            )
            if problem is not None:
                out.fail(
                    "R6",
                    Counterexample(f"{topic}[{partition}] at {offset}: {problem}", outcome.rid, 1),
                )
                break


def _folds_from(response: history.Response, commit: history.Commit) -> str | None:
    if not commit.metadata.isdigit() or not response.entries:
        return None
    first = next(
        (
            e.offset
            for e in response.entries
            if isinstance(e.record, records.Claim | records.Cancel)
        ),
        None,
    )
    if first is not None and first < int(commit.metadata):
        return f"its first record lies at {first}, a successor would fold from {commit.metadata}"
    return None


def _keys(out: Report, outcomes: Iterable[Outcome]) -> None:
    """R2 in the log: of the responses of one key, all but one are cancelled.

    Of two requests that raced at two gateways one is withdrawn; so is one of unknown outcome. The
    answers show whether a client got two (`request_checks.check_keys`). Equal keys of one
    user share a partition, so one history holds them all.
    """
    by_key: dict[tuple[str, str], set[str]] = defaultdict(set)
    for outcome in outcomes:
        if outcome.key is not None and outcome.owner is not None and outcome.requests:
            rids = by_key[(outcome.owner.key, outcome.key)]
            if outcome.status != "cancelled":
                rids.add(outcome.rid)
    for rids in by_key.values():
        out.count("R2")
        if len(rids) > 1:
            out.fail(
                "R2",
                Counterexample(
                    f"one key has {len(rids)} responses in the log: {', '.join(sorted(rids))}",
                    min(rids),
                    len(rids),
                ),
            )
