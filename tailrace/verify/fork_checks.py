"""The check of responses that begin with another one's ids: L10 (pure; log rule §19)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from tailrace.protocol import records
from tailrace.verify import history, reference_fold
from tailrace.verify.report import Report
from tailrace.verify.response_checks import counterexample

Problem = tuple[str, int | None]  # what, and at which position of the response's entries


def check_fork(
    out: Report,
    response: history.Response,
    account: reference_fold.Account,
    responses: Mapping[str, history.Response],
) -> None:
    """L10. `responses`: the others, of which one may be its source."""
    fork = response.requests[0].request.fork if response.requests else None
    if fork is None and not account.copied:
        return
    out.count("L10")
    problem = next(_own(fork, account), None)
    if problem is None and fork is not None:
        problem = next(_request_problems(fork, account), None)
        if problem is None and (source := responses.get(fork.rid)) is not None:
            problem = next(_source_problems(fork, account, source), None)
    if problem is not None:
        out.fail("L10", counterexample(response, *problem))


def _own(fork: records.Fork | None, account: reference_fold.Account) -> Iterator[Problem]:
    if fork is None:
        yield "copied ids, and the request names no source", None
        return
    if not fork.replace and account.copied > fork.at:
        yield f"{account.copied} copied ids where {fork.at} were asked for", None
    for f in account.frames:
        if f.tok.seq < account.copied < f.total:
            yield "a frame of copied and of generated ids", f.at
    claims = {t.claim.copied for t in account.epochs if t.claim.copied}
    if len(claims) > 1:
        yield "claims that copy different numbers of ids", None


def _request_problems(fork: records.Fork, account: reference_fold.Account) -> Iterator[Problem]:
    """Its first ids are those that its request has of the source, but for equal ones at their end,
    which may be of a token that ends answers."""
    if fork.source is None:
        return
    if len(fork.source.ids) != fork.at:
        yield f"its request has {len(fork.source.ids)} ids of its source for {fork.at}", None
        return
    missing, at = _missing(fork, account, fork.source.ids)
    if any(a != b for a, b in itertools.pairwise(missing)):
        yield f"id {at} is not the one that its request has of the source", None


def _missing(
    fork: records.Fork, account: reference_fold.Account, expected_ids: Sequence[int]
) -> tuple[Sequence[int], int]:
    """Ids of its source that it does not begin with, and at which place they are. A fork that has
    fewer than `at` ids lacks none after them."""
    pairs = enumerate(zip(account.ids, expected_ids, strict=False))
    same = next((at for at, (a, b) in pairs if a != b), min(account.total, fork.at))
    if not fork.replace:
        same = min(same, account.copied)
    return expected_ids[same : min(fork.at, account.total)], same


def _source_problems(
    fork: records.Fork, account: reference_fold.Account, source: history.Response
) -> Iterator[Problem]:
    """Its first ids are those of the source, but for ids at their end that end answers."""
    if source.owner is not None and account.principal not in (None, source.owner):
        yield "copied from another principal's response", None
    if not source.whole or source.owner is None:
        return
    expected_ids = reference_fold.account(source.entries, source.owner).ids[: fork.at]
    if len(expected_ids) < fork.at:
        if account.total:
            yield f"copied {fork.at} ids of a response that has {len(expected_ids)}", None
        return
    if fork.source is not None and fork.source.ids != expected_ids:
        yield "its request has other ids than its source", None
        return
    missing, same = _missing(fork, account, expected_ids)
    if any(a != b for a, b in itertools.pairwise(missing)) or (
        missing and not _ends(missing[0], source)
    ):
        yield f"id {same} is not the source's", None


def _ends(token: int, source: history.Response) -> bool:
    """Whether the source may have ended with this id."""
    source_account = reference_fold.account(source.entries, source.owner)
    sampling = source.requests[0].request.sampling if source.requests else None
    ignores = sampling is not None and sampling.ignore_eos
    return ignores or (
        source_account.reason == "stop"
        and bool(source_account.ids)
        and source_account.ids[-1] == token
    )
