"""L5 on the items of one response: marks, calls, and log probabilities (pure; log rule §16)."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any, Final

from tailrace.protocol import ids
from tailrace.verify import history, reference_fold
from tailrace.verify.report import Report
from tailrace.verify.response_checks import counterexample

JSON_FORMATS: Final = ("json_schema", "json_object")
Problem = tuple[str, int | None]  # what, and the position of the record


def check_items(out: Report, response: history.Response, account: reference_fold.Account) -> None:
    """L5: marks are inside their records and in order, calls are named, and so on. Says the first
    problem."""
    problem = next(
        itertools.chain(
            _marks(account),
            _parsers(account),
            _calls(response.rid, account),
            _json(response, account),
            _logprobs(response, account),
        ),
        None,
    )
    if problem is not None:
        out.fail("L5", counterexample(response, *problem))


def _marks(account: reference_fold.Account) -> Iterator[Problem]:
    frames = [(f.at, f.tok.marks, len(f.tok.text), len(f.tok.ids)) for f in account.frames]
    if account.end is not None and account.ended_at is not None:
        frames.append((account.ended_at, account.end.marks, len(account.end.text_tail), 0))
    for position, marks, characters, count in frames:
        for mark in marks:
            if mark.at > characters or mark.ids > count:
                yield "a mark lies outside of its record", position
            if mark.kind in ("c", "x") and not (mark.name and mark.call_id):
                yield "a call without a name or call_id", position
            if mark.kind in ("m", "r") and (mark.name or mark.call_id):
                yield "a name or call_id where nothing is called", position
        if any(b.at < a.at or b.ids < a.ids for a, b in itertools.pairwise(marks)):
            yield "the marks of a record are not in order", position


def _parsers(account: reference_fold.Account) -> Iterator[Problem]:
    """All writers of tokens or marks have one parser, and only a parser makes marks."""
    if account.marks and not account.parser:
        yield "marks, but their owner's claim names no parser", None
    writers = {f.tok.own for f in account.frames}
    if account.end is not None and account.end.marks:
        writers.add(account.end.own)
    for epoch in account.epochs:
        if epoch.claim.own in writers and epoch.claim.parser != account.parser:
            yield "written by owners of different parsers", epoch.start


def _calls(rid: str, account: reference_fold.Account) -> Iterator[Problem]:
    calls = [m for m in account.marks if m.kind in ("c", "x")]
    for ordinal, mark in enumerate(calls):
        if mark.call_id != ids.call_id(rid, ordinal):
            yield f"the call_id of call {ordinal} does not follow from the response", None
    if len({m.call_id for m in calls}) < len(calls):
        yield "two calls with one call_id", None


def _json(response: history.Response, account: reference_fold.Account) -> Iterator[Problem]:
    """What the request wants as JSON, and was not cut short, is JSON. A stop string may have cut
    the last message."""
    if not response.requests:
        return
    request, whole = response.requests[0].request, account.reason == "stop"
    is_formatted = request.format is not None and request.format.get("type") in JSON_FORMATS
    last = len(account.parts) - 1
    free = {tool["function"]["name"] for tool in request.tools if _is_free(tool)}
    for at, part in enumerate(account.parts):
        if not whole and at == last:
            continue
        beginning = part.beginning
        if beginning is None or beginning.kind == "m":
            may_be_cut = at == last and bool(request.sampling.stop)
            if part.text and is_formatted and not may_be_cut and not _is_json(part.text):
                yield "a message of a JSON format is no JSON", None
        elif beginning.kind == "c" and beginning.name not in free and not _is_json(part.text):
            yield f"the arguments of item {at} are no JSON", None


def _is_free(tool: dict[str, Any]) -> bool:
    """Whether it is a function whose arguments nothing constrains."""
    return tool.get("type") == "function" and tool["function"].get("strict") is False


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _logprobs(response: history.Response, account: reference_fold.Account) -> Iterator[Problem]:
    """As many as ids, in every frame or in none, and as the request wants it. What was copied has
    none."""
    wants_logprobs = (
        response.requests[0].request.sampling.logprobs is not None if response.requests else None
    )
    for f in account.frames:
        if f.tok.lp and len(f.tok.lp) != len(f.tok.ids):
            yield f"{len(f.tok.lp)} log probabilities for {len(f.tok.ids)} ids", f.at
        if f.tok.seq < account.copied:
            if f.tok.lp:
                yield "log probabilities of copied ids", f.at
        elif wants_logprobs is None:
            wants_logprobs = bool(f.tok.lp)
        elif bool(f.tok.lp) != wants_logprobs:
            request_text = (
                "without log probabilities" if wants_logprobs else "with log probabilities"
            )
            yield f"a frame {request_text}, unlike what was asked for", f.at
