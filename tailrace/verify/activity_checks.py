"""L12: what `llm.activity` says of a response is what the log says (pure; log rule §20)."""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.protocol import activity, events
from tailrace.verify import history, reference_fold
from tailrace.verify.report import Report
from tailrace.verify.response_checks import counterexample


def check_told(
    out: Report, response: history.Response, account: reference_fold.Account, *, committed: bool
) -> None:
    """L12: a stored response that has ended and whose request is committed is told to have ended,
    with its status; of nothing else is that told. `committed`: the group is past one of its
    requests."""
    due = committed and _due(response, account)
    if not due and not response.told:
        return
    out.judged("L12")
    problem = next(_problems(response, account, due=due), None)
    if problem is not None:
        out.fail("L12", counterexample(response, problem))


def _due(response: history.Response, account: reference_fold.Account) -> bool:
    if not response.asked or account.reason in (None, "withdrawn"):
        return False
    request = response.asked[0].request
    shown = request.echo.get("object") != events.EMBEDDINGS
    return request.store and request.generate and shown and account.principal == request.owner


def _problems(
    response: history.Response, account: reference_fold.Account, *, due: bool
) -> Iterator[str]:
    ends = [told for told in response.told if isinstance(told, activity.Ended)]
    if due and not ends:
        yield "it has ended, and its owner's feed does not say so"
    if response.asked:
        request = response.asked[0].request
        embedding = request.echo.get("object") == events.EMBEDDINGS
        if embedding or not (request.store and request.generate):
            yield "the feed tells of a response that nobody can read later"
        created = request.echo.get("created_at")
        of_request = (request.owner, request.model, created, request.conversation, request.previous)
        for told in response.told:
            of = (told.owner, told.model, told.created_at, told.conversation, told.previous)
            if of != of_request:
                yield "the feed names another owner, model, time, conversation or previous response"
    if ends and account.reason in (None, "withdrawn"):
        yield "the feed says that it has ended"
    elif any(told.status != account.status for told in ends):
        yield f"the feed says that it is {ends[0].status}, and it is {account.status}"
