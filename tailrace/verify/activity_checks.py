"""L12: the notices of a response in `llm.activity` agree with the log (pure; log rule §20)."""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.protocol import activity, events
from tailrace.verify import history, reference_fold
from tailrace.verify.report import Report
from tailrace.verify.response_checks import counterexample


def check_activity(
    out: Report, response: history.Response, account: reference_fold.Account, *, committed: bool
) -> None:
    """L12: a stored response that has ended and whose request is committed has an ENDED notice with
    its status; nothing else has one. `committed`: the group has committed one of its requests."""
    expected = committed and _expects_end(response, account)
    if not expected and not response.notices:
        return
    out.count("L12")
    problem = next(_problems(response, account, expected=expected), None)
    if problem is not None:
        out.fail("L12", counterexample(response, problem))


def _expects_end(response: history.Response, account: reference_fold.Account) -> bool:
    if not response.requests or account.reason in (None, "withdrawn"):
        return False
    request = response.requests[0].request
    is_response = request.echo.get("object") != events.EMBEDDINGS
    return request.store and request.generate and is_response and account.principal == request.owner


def _problems(
    response: history.Response, account: reference_fold.Account, *, expected: bool
) -> Iterator[str]:
    ends = [notice for notice in response.notices if isinstance(notice, activity.Ended)]
    if expected and not ends:
        yield "it has ended, and its owner's feed does not say so"
    if response.requests:
        request = response.requests[0].request
        embedding = request.echo.get("object") == events.EMBEDDINGS
        if embedding or not (request.store and request.generate):
            yield "the feed tells of a response that nobody can read later"
        created = request.echo.get("created_at")
        request_fields = (
            request.owner,
            request.model,
            created,
            request.conversation,
            request.previous,
        )
        for notice in response.notices:
            notice_fields = (
                notice.owner,
                notice.model,
                notice.created_at,
                notice.conversation,
                notice.previous,
            )
            if notice_fields != request_fields:
                yield "the feed names another owner, model, time, conversation or previous response"
    if ends and account.reason in (None, "withdrawn"):
        yield "the feed says that it has ended"
    elif any(notice.status != account.status for notice in ends):
        yield f"the feed says that it is {ends[0].status}, and it is {account.status}"
