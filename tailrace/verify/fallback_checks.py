"""L14: a response that another pool may answer, or has answered (pure; log rule §22)."""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.protocol import records
from tailrace.verify import history, reference_fold
from tailrace.verify.report import Report
from tailrace.verify.response_checks import counterexample


def check_fallback(
    out: Report, response: history.Response, account: reference_fold.Account
) -> None:
    """L14: a reroute holds the request of the log, and belongs to another pool; a claim names the
    model that answers only if it is not the requested one."""
    if not response.reroutes and not any(epoch.claim.served for epoch in account.epochs):
        return
    out.count("L14")
    problem = next(_problems(response, account), None)
    if problem is not None:
        out.fail("L14", counterexample(response, problem))
    # The model that made the first token; another one may have continued its text.
    model = account.former[0][2] if account.former else account.served
    has_reroute = any(not each.reroute.continues for each in response.reroutes)
    out.figures["responses of another pool's model"] += bool(account.served)
    out.figures["responses of another pool's model after a reroute"] += bool(model and has_reroute)


def _problems(response: history.Response, account: reference_fold.Account) -> Iterator[str]:
    if not response.requests:
        return  # retention removed them
    requests = {records.encode(each.request) for each in response.requests}
    topics = {each.topic for each in response.requests}
    times = {each.timestamp for each in response.requests} | {0}
    for each in response.reroutes:
        if records.encode(each.reroute.request) not in requests:
            yield "a reroute holds another request"
        if each.topic in topics:
            yield "a reroute lies in the topic of its request"
        if each.reroute.asked_ms not in times:
            yield "a reroute names another time of its request"
    if any(epoch.claim.served == response.requests[0].request.model for epoch in account.epochs):
        yield "a claim names the model that was asked for as another one"
