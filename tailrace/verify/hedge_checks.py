"""L18: a claim of a worker that was faster than the owner (pure; log rule §26)."""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.protocol import records
from tailrace.verify import history, reference_fold
from tailrace.verify.report import Report
from tailrace.verify.response_checks import counterexample


def check_hedges(out: Report, response: history.Response, account: reference_fold.Account) -> None:
    """L18: a hedged claim names an owner. One that took effect is the second of its response, by
    another process of the same pool and with the same model, and its request is plain.

    Not checked: that the owner had no token. One may lie between what the worker had read and its
    claim.
    """
    claims = [e.record for e in account.entries if isinstance(e.record, records.Claim)]
    if not any(claim.hedged for claim in claims):
        return
    out.count("L18")
    problem = next(_problems(response, account, claims), None)
    if problem is not None:
        out.fail("L18", counterexample(response, problem))
    out.figures["hedged claims"] += sum(epoch.claim.hedged for epoch in account.epochs)


def _problems(
    response: history.Response, account: reference_fold.Account, claims: list[records.Claim]
) -> Iterator[str]:
    if any(claim.hedged and claim.prev is None for claim in claims):
        yield "a hedged claim names no owner"
    hedges = [at for at, epoch in enumerate(account.epochs) if epoch.claim.hedged]
    if any(at != 1 for at in hedges):
        yield "a hedged claim is not the second one"
    elif hedges:
        first, second = (epoch.claim for epoch in account.epochs[:2])
        if _terms(first) != _terms(second):
            yield "a hedged claim is of another pool or model than the owner's"
        if first.worker == second.worker:
            yield "a worker hedges against itself"
    for each in response.requests:
        request = each.request
        if hedges and not (request.generate and request.embed is None and request.fork is None):
            yield "a response is hedged that may not be"


def _terms(claim: records.Claim) -> tuple[str, str, str, str]:
    return claim.req_topic, claim.model_rev, claim.tokenizer_digest, claim.parser
