"""Judges transcripts of clients, workers and the fault injector against a history (pure)."""

from __future__ import annotations

from collections.abc import Mapping

from tailrace.verify import history, request_checks, transcript, watch_checks, worker_checks
from tailrace.verify.outcome import Outcome
from tailrace.verify.report import Report

Files = list[tuple[str, list[transcript.Line]]]


def judge(
    out: Report,
    log_history: history.History,
    outcomes: Mapping[str, Outcome],
    files: Files,
    *,
    settle_s: float,
    late_ms: float = 0.0,
) -> None:
    """Add the verdicts of the transcripts to `out`.

    `late_ms` bounds C4: an event appended after the healing fails when it arrives this long after
    its append. 0: no bound.
    """
    operations = transcript.operations(files)
    watches = [o for o in operations if o.invoke.op == "watch"]
    healed_ms = max(
        (line.wall * 1000 for _, lines in files for line in lines if line.op == "heal"), default=0.0
    )
    watcher_texts = watch_checks.check_watches(out, watches, outcomes, healed_ms, late_ms)
    watch_checks.check_agreement(out, watcher_texts, outcomes)
    watch_checks.check_isolation(out, watches, outcomes)
    submits = [o for o in operations if o.invoke.op == "submit"]
    request_checks.check_acceptances(out, submits, log_history, outcomes, settle_s)
    request_checks.check_keys(out, submits, outcomes)
    request_checks.check_refusals(out, submits, outcomes, complete=log_history.complete)
    request_checks.check_cancels(out, [o for o in operations if o.invoke.op == "cancel"], outcomes)
    worker_checks.check_acknowledgements(
        out, (line for _, lines in files for line in lines if line.op == "acked"), log_history
    )
    worker_checks.check_commits(
        out,
        (line for _, lines in files for line in lines if line.op == "commit"),
        log_history,
        outcomes,
    )
    worker_checks.measure_recovery(
        out,
        [
            line
            for _, lines in files
            for line in lines
            if line.op == "nemesis" and line.f == "start"
        ],
        outcomes,
    )
    out.figures["connections"] += len(watches)
    out.figures["reconnects"] += len(watches) - len(watcher_texts)
