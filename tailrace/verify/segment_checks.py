"""L17: a response whose text another model continues (pure; log rule §25)."""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.protocol import records
from tailrace.verify import history, reference_fold
from tailrace.verify.report import Report
from tailrace.verify.response_checks import CHARACTERS, counterexample


def check_segments(
    out: Report, response: history.Response, account: reference_fold.Account
) -> None:
    """L17: another model continues only the text of a plain message, after a token and after a
    reroute to its pool, and is named. L2 checks that one model made the ids of an item."""
    if not any(epoch.claim.continues for epoch in account.epochs):
        return
    out.count("L17")
    problem = next(_problems(response, account), None)
    if problem is not None:
        out.fail("L17", counterexample(response, *problem))
    out.figures["responses that another model continued"] += bool(account.continued)


def _problems(
    response: history.Response, account: reference_fold.Account
) -> Iterator[tuple[str, int]]:
    writers = {f.tok.own for f in account.frames}
    model: tuple[str, str, str] | None = None  # the model of the ids so far, of this segment
    for epoch in account.epochs:
        claim, continues = epoch.claim, epoch in account.continued
        own = (claim.model_rev, claim.tokenizer_digest, claim.parser)
        if claim.continues and not continues:
            yield "a claim continues, and there is no token before it", epoch.start
        if continues:
            assert model is not None
            yield from ((message, epoch.start) for message in _wrong(response, claim, model, own))
            model = own
        elif claim.own in writers:
            model = own
    if account.continued and (account.marks or any(f.tok.lp for f in account.frames)):
        yield "more than plain text was continued", account.continued[0].start


def _wrong(
    response: history.Response,
    claim: records.Claim,
    before: tuple[str, str, str],
    own: tuple[str, str, str],
) -> Iterator[str]:
    """What is wrong with one that continues."""
    if own == before:
        yield "a model continues its own text as another one's"
    if not claim.served:
        yield "a claim that continues names no model"
    if before[2] or own[2] or CHARACTERS in (before[1], own[1]):
        yield "what has no plain ids was continued"
    if not response.requests:
        return  # retention removed them
    request = response.requests[0].request
    chosen_by_ids = request.sampling.logprobs is not None or request.sampling.logit_bias
    is_bound = (
        request.format
        or request.tools
        or request.raw
        or request.fork
        or request.embed
        or chosen_by_ids
    )
    if is_bound or not request.generate:
        yield "the request does not allow that another model continues"
    if not any(
        each.reroute.continues and each.topic == claim.req_topic for each in response.reroutes
    ):
        yield "no gateway asked its pool to continue"
