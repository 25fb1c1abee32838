"""L5 on a request for embeddings (pure; log rule §17)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tailrace.verify import history, reference_fold
from tailrace.verify.report import Report
from tailrace.verify.response_checks import counterexample

FLOAT_BYTES: Final = 4
Problem = tuple[str, int | None]  # what, and the position of the record


def check_embeddings(
    out: Report, response: history.Response, account: reference_fold.Account
) -> None:
    """L5: a complete request has one vector for each input, all equally long, and no tokens;
    nothing else has vectors. Says the first problem."""
    problem = next(_problems(response, account), None)
    if problem is not None:
        out.fail("L5", counterexample(response, *problem))


def _problems(response: history.Response, account: reference_fold.Account) -> Iterator[Problem]:
    sizes = [len(vector) for vector in account.vectors]
    if len(set(sizes)) > 1 or any(not size or size % FLOAT_BYTES for size in sizes):
        yield "vectors of different lengths, or no vectors of floats", account.ended_at
    if sizes and account.reason != "stop":
        yield f"vectors of a request that ended as {account.reason}", account.ended_at
    if sizes and account.total:
        yield "vectors and tokens", account.ended_at
    if not response.requests:
        return
    embed = response.requests[0].request.embed
    if embed is None:
        if sizes:
            yield "vectors that nobody asked for", account.ended_at
        return
    if account.frames:
        yield "tokens where embeddings were asked for", account.frames[0].at
    if account.reason == "stop" and len(sizes) != len(embed.inputs):
        yield f"{len(sizes)} vectors for {len(embed.inputs)} inputs", account.ended_at
    if embed.dimensions is not None and sizes and sizes[0] != FLOAT_BYTES * embed.dimensions:
        yield f"vectors of {sizes[0] // FLOAT_BYTES} dimensions", account.ended_at
