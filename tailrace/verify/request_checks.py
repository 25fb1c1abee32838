"""R1-R4: the answers that clients got to requests and cancels, against the log (pure)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from tailrace.verify import history, transcript
from tailrace.verify.outcome import Outcome
from tailrace.verify.report import Counterexample, Report


def check_acceptances(
    out: Report,
    submits: list[transcript.Operation],
    log_history: history.History,
    outcomes: Mapping[str, Outcome],
    settle_s: float,
) -> None:
    """R1: an acknowledged request is in the log and has ended."""
    for o in submits:
        if o.done is None or o.done.f != "ok":
            continue
        out.count("R1")
        outcome = outcomes.get(o.done.rid)
        if outcome is None or not outcome.requests:
            if log_history.complete:
                out.fail("R1", Counterexample("acknowledged, and not in the log", o.done.rid, 1))
            else:
                out.unknown("R1", "acknowledged requests that are not in the input")
        elif outcome.status is None:
            if settle_s <= 0 or log_history.newest - o.done.wall * 1000 >= settle_s * 1000:
                out.fail(
                    "R1", Counterexample("acknowledged, and it never reached an end", o.done.rid, 1)
                )
            else:
                out.note("response still open")


def check_keys(
    out: Report, submits: list[transcript.Operation], outcomes: Mapping[str, Outcome]
) -> None:
    """R2 in the answers: one idempotency key is answered with one response. One that was withdrawn
    leaves its key to the next."""
    rids_by_key: dict[tuple[str, str], set[str]] = defaultdict(set)
    for o in submits:
        if o.invoke.key is not None and o.done is not None and o.done.f == "ok":
            rids = rids_by_key[(o.invoke.user, o.invoke.key)]
            outcome = outcomes.get(o.done.rid)
            if outcome is None or not outcome.withdrawn:
                rids.add(o.done.rid)
    for rids in rids_by_key.values():
        out.count("R2")
        if len(rids) > 1:
            out.fail(
                "R2",
                Counterexample(
                    f"one key was answered with {len(rids)} responses", sorted(rids)[0], len(rids)
                ),
            )


def check_refusals(
    out: Report,
    submits: list[transcript.Operation],
    outcomes: Mapping[str, Outcome],
    *,
    complete: bool,
) -> None:
    """R3, by the mark in the request's metadata. Retries with one key share a mark, so they are
    judged together.

    A request of another body (409) that was refused after a race of two gateways is in the log, and
    withdrawn. Nothing else that was refused may be there, or have been claimed.
    """
    in_log: dict[str, set[str]] = defaultdict(set)
    for outcome in outcomes.values():
        if outcome.mark is not None and (outcome.requests or outcome.claimed):
            in_log[outcome.mark].add(outcome.rid)
    tries: dict[str, list[transcript.Operation]] = defaultdict(list)
    for o in submits:
        if o.invoke.mark is not None:
            tries[o.invoke.mark].append(o)
    for mark, group in tries.items():
        out.count("R3")
        rids, ends = in_log[mark], {o.done.f if o.done else "info" for o in group}
        remaining = {rid for rid in rids if not outcomes[rid].withdrawn}
        if all(o.done is not None and o.done.code == 409 for o in group):
            rids = remaining
        out.figures["submits of unknown outcome"] += sum(
            o.done is None or o.done.f == "info" for o in group
        )
        if ends == {"fail"} and rids:
            out.fail("R3", Counterexample("refused, and in the log", sorted(rids)[0], 1))
        elif len(remaining) > 1 and (len(group) == 1 or group[0].invoke.key is not None):
            out.fail(
                "R3",
                Counterexample(
                    f"one request became {len(remaining)} responses",
                    sorted(remaining)[0],
                    len(remaining),
                ),
            )
        elif "ok" in ends and not rids and complete:
            out.fail(
                "R3", Counterexample(f"accepted, but its mark {mark} is not in the log", "", 1)
            )


def check_cancels(
    out: Report, cancels: list[transcript.Operation], outcomes: Mapping[str, Outcome]
) -> None:
    """R4: an acknowledged cancel ended the response, as the answer to the client says."""
    for o in cancels:
        outcome = outcomes.get(o.invoke.rid)
        if o.done is None or o.done.f != "ok" or outcome is None or not outcome.whole:
            continue
        out.count("R4")
        if outcome.status is None:
            out.fail(
                "R4",
                Counterexample("the cancel was acknowledged, and it never ended", outcome.rid, 1),
            )
        elif o.done.status and o.done.status != outcome.status:
            out.fail(
                "R4",
                Counterexample(
                    f"the cancel answered {o.done.status}, the log says {outcome.status}",
                    outcome.rid,
                    1,
                ),
            )
