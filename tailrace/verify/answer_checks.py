"""L16: an answer that is given again (pure; log rule §24)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tailrace.protocol import records
from tailrace.verify import history, reference_fold
from tailrace.verify.report import Report
from tailrace.verify.response_checks import counterexample

Problem = tuple[str, int | None]  # what, and at which position of the response's entries


def check_answer(
    out: Report,
    response: history.Response,
    account: reference_fold.Account,
    responses: Mapping[str, history.Response],
) -> None:
    """L16: a claim that names another response has its ids, in the same cache scope, for a request
    that may be answered so; the bill names that response, and no bill names one without it.
    `responses`: the others, of which one may be the source."""
    claims = [epoch for epoch in account.epochs if epoch.claim.answer_of]
    has_bill = any(bill.answer_of for bill in response.bills)
    if not claims and not has_bill:
        return
    out.count("L16")
    problem = next(_own(response, account), None)
    for epoch in claims:
        source = responses.get(epoch.claim.answer_of)
        if problem is None and source is not None:
            problem = next(_source_problems(account, epoch, source), None)
    if problem is not None:
        out.fail("L16", counterexample(response, *problem))
    out.figures["answers given again"] += bool(account.answer_of)


def _own(response: history.Response, account: reference_fold.Account) -> Iterator[Problem]:
    for number, epoch in enumerate(account.epochs):
        if not epoch.claim.answer_of:
            continue
        if number:
            yield "a claim that is not the first one gives an answer again", epoch.start
        if epoch.claim.answer_of == response.rid:
            yield "it is its own answer given again", epoch.start
        if epoch.claim.served or epoch.claim.copied or epoch.claim.dropped:
            yield "another model's answer, a fork's or a shortened prompt's is given", epoch.start
    if response.requests and account.answer_of and not _may_be(response.requests[0].request):
        yield "its request may not be answered by a former answer", None
    if any(bill.answer_of != account.answer_of for bill in response.bills):
        yield "its bill and its claims name different answers", None


def _may_be(request: records.Request) -> bool:
    """Whether a request may be answered by a former answer."""
    own = request.fork is None and not request.continue_final
    plain = own and request.embed is None and request.generate
    greedy = request.sampling.temperature == 0 and request.sampling.logprobs is None
    return plain and greedy and request.cached_answers


def _source_problems(
    account: reference_fold.Account, epoch: reference_fold.Epoch, source: history.Response
) -> Iterator[Problem]:
    if not source.whole or source.owner is None:
        return
    source_account = reference_fold.account(source.entries, source.owner)
    if source.owner.cache_scope != epoch.claim.owner.cache_scope:
        yield "it is an answer to another cache scope", epoch.start
    if source_account.reason != "stop" or source_account.answer_of or source_account.served:
        yield "it is an answer that did not end by itself, or was not generated there", epoch.start
    theirs = {
        (e.claim.model_rev, e.claim.tokenizer_digest, e.claim.parser)
        for e in source_account.epochs
        if any(f.tok.own == e.claim.own for f in source_account.frames)
    }
    own = (epoch.claim.model_rev, epoch.claim.tokenizer_digest, epoch.claim.parser)
    if theirs - {own}:
        yield "it is an answer of another model, tokenizer or parser", epoch.start
    frames = [f for f in account.frames if f.tok.own == epoch.claim.own]
    ids = [i for f in frames for i in f.tok.ids]
    if ids != source_account.ids[: len(ids)]:
        wrong = next(n for n, i in enumerate(ids) if source_account.ids[n : n + 1] != [i])
        yield f"id {wrong} is not that of the answer that it names", None
    ended = account.end is not None and account.end.own == epoch.claim.own
    if ended and account.reason == "stop" and len(ids) != len(source_account.ids):
        yield f"it ended after {len(ids)} of {len(source_account.ids)} ids", account.ended_at
