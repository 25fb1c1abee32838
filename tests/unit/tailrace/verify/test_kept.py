"""What a worker keeps of any history is what the judge says has to be kept."""

from __future__ import annotations

from collections.abc import Sequence

import hypothesis

from tailrace import log
from tailrace.protocol import events, ids, records, topics
from tailrace.protocol import history as kept
from tailrace.verify import history, kept_checks, reference_fold, report
from tests.unit.tailrace.protocol.test_history import responses
from tests.unit.tailrace.verify.test_reference_fold import OWNER, RID, any_records, placed
from worker.log.tail_state import Entry


def written(request: records.Request, found: Sequence[history.Entry]) -> list[log.Record] | None:
    """What the worker's tail and writer make of a history that has ended."""
    entry = Entry(0, draft=kept.Draft())
    entry.fold.belongs_to(request.owner)
    for e in found:
        entry.apply(e.record, e.offset, e.timestamp)
    ended, first, draft = entry.fold.ended, entry.fold.first, entry.draft
    if first is not None and first.owner != request.owner:
        return None  # a forged claim: nothing is kept
    assert ended is not None
    assert draft is not None
    if first is None or ended.failure == "history_lost":
        draft = kept.Draft()
        cancel = records.Cancel(request.rid, request.owner, failed=ended.failure)
        draft.add(cancel, ended.timestamp)
    place = kept.partition(request.rid, 12)
    return [
        log.Record(topics.HISTORY, place, n, 1, key.encode(), value, ())
        for n, (key, value) in enumerate(kept.parts(draft.to_history(request)))
    ]


def judged(request: records.Request, made: Sequence[records.TokenRecord]) -> report.Report | None:
    found = placed(made)
    values = written(request, found)
    if values is None:
        return None
    response = history.Response(request.rid, ids.parse(request.rid).partition, found)
    response.requests = [history.RequestEntry("t", 0, 1, request)]
    response.stored_records = values
    out = report.Report()
    account = reference_fold.account(response.entries, request.owner)
    kept_checks.check_history(out, response, account, committed=True)
    assert out.results["L9"].count == 1
    return out


@hypothesis.given(any_records())
@hypothesis.settings(max_examples=300, deadline=None)
def test_worker_and_judge_keep_the_same_of_any_history(found: list[records.TokenRecord]) -> None:
    request = records.Request(RID, OWNER, "m", [], records.Sampling(9), events.echo(RID, 1, "m"))
    # At last a cancel, which counts where nothing has ended it before.
    out = judged(request, [*found, records.Cancel(RID, OWNER)])
    assert out is None or out.failed() == []


@hypothesis.given(responses())
def test_worker_and_judge_keep_the_same_of_what_took_effect(
    response: tuple[records.Request, list[records.TokenRecord]],
) -> None:
    """With takeovers, marks and log probabilities, which are rare in any history."""
    out = judged(*response)
    assert out is not None
    assert out.failed() == []
