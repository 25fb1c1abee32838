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
    billed = any(bill.answer_of for bill in response.metered)
    if not claims and not billed:
        return
    out.judged("L16")
    problem = next(_own(response, account), None)
    for epoch in claims:
        source = responses.get(epoch.claim.answer_of)
        if problem is None and source is not None:
            problem = next(_of_source(account, epoch, source), None)
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
    if response.asked and account.answer_of and not _may_be(response.asked[0].request):
        yield "its request may not be answered by a former answer", None
    if any(bill.answer_of != account.answer_of for bill in response.metered):
        yield "its bill and its claims name different answers", None


def _may_be(request: records.Request) -> bool:
    """Whether a request may be answered by a former answer."""
    own = request.fork is None and not request.continue_final
    plain = own and request.embed is None and request.generate
    greedy = request.sampling.temperature == 0 and request.sampling.logprobs is None
    return plain and greedy and request.cached_answers


def _of_source(
    account: reference_fold.Account, epoch: reference_fold.Epoch, source: history.Response
) -> Iterator[Problem]:
    if not source.whole or source.owner is None:
        return
    made = reference_fold.account(source.entries, source.owner)
    if source.owner.cache_scope != epoch.claim.owner.cache_scope:
        yield "it is an answer to another cache scope", epoch.start
    if made.reason != "stop" or made.answer_of or made.served:
        yield "it is an answer that did not end by itself, or was not generated there", epoch.start
    theirs = {
        (e.claim.model_rev, e.claim.tokenizer_digest, e.claim.parser)
        for e in made.epochs
        if any(f.tok.own == e.claim.own for f in made.frames)
    }
    own = (epoch.claim.model_rev, epoch.claim.tokenizer_digest, epoch.claim.parser)
    if theirs - {own}:
        yield "it is an answer of another model, tokenizer or parser", epoch.start
    frames = [f for f in account.frames if f.tok.own == epoch.claim.own]
    given = [i for f in frames for i in f.tok.ids]
    if given != made.ids[: len(given)]:
        wrong = next(n for n, i in enumerate(given) if made.ids[n : n + 1] != [i])
        yield f"id {wrong} is not that of the answer that it names", None
    ended = account.end is not None and account.end.own == epoch.claim.own
    if ended and account.reason == "stop" and len(given) != len(made.ids):
        yield f"it ended after {len(given)} of {len(made.ids)} ids", account.ended_at
