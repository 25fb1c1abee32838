"""L9: the history of a response in `llm.history` agrees with the log (pure; log rule §18).

The content is read here by its description in the log rule, not by `tailrace.protocol.history`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any, Final

from tailrace.protocol import events, log_words, records, topics
from tailrace.verify import history, reference_fold
from tailrace.verify.report import Report
from tailrace.verify.response_checks import counterexample

_PARTITIONS: Final = topics.partitions_of(topics.HISTORY)
# The problem, by the member that differs.
_MEMBERS: Final = {
    "t": "it is no HISTORY",
    "rid": "it is of another response",
    "owner": "it is of another owner",
    "request": "it has another request",
    "claims": "it has other claims",
    "frames": "it has other frame boundaries",
    "ids": "it has other ids",
    "text": "it has another text",
    "marks": "it has other marks",
    "lp": "it has other log probabilities",
    "dropped": "it has another number of messages left out",
    "served": "it names another model",
    "answers": "it names another answer that was given again",
    "continued": "another model continues it elsewhere",
    "end": "it has another end",
    "ended_ms": "it ended at another time",
}


def check_history(
    out: Report, response: history.Response, account: reference_fold.Account, *, committed: bool
) -> None:
    """L9: a stored response that has ended and whose request is committed has exactly one content,
    which follows from its records; nothing else has any. `committed`: the group is past one of its
    requests."""
    if not response.stored_records and not (committed and _expects_history(response, account)):
        return
    out.count("L9")
    problem = next(_problems(response, account, committed=committed), None)
    if problem is not None:
        out.fail("L9", counterexample(response, problem))
    out.figures["history records"] += len(response.stored_records)


def _expects_history(response: history.Response, account: reference_fold.Account) -> bool:
    """Whether its content must be stored."""
    if not response.requests or account.reason in (None, "withdrawn"):
        return False
    request = response.requests[0].request
    is_response = request.echo.get("object") != events.EMBEDDINGS
    return request.store and request.generate and is_response and account.principal == request.owner


def _problems(
    response: history.Response, account: reference_fold.Account, *, committed: bool
) -> Iterator[str]:
    tombstones = [r for r in response.stored_records if r.value is None]
    values = _by_number(response.stored_records)
    if tombstones and not response.deleted:
        yield "its history was erased, and nobody deleted it"
    if values and response.requests and not _expects_history(response, account):
        yield "it is kept, although it is not stored, has not ended, or was withdrawn"
    if any(r.partition != response.partition % _PARTITIONS for r in response.stored_records):
        yield "its history lies in another partition"
    if not values:
        if committed and not response.deleted:
            yield "its request is committed, and no history was written"
        return
    if any(len(set(copies)) > 1 for copies in values.values()):
        yield "copies of its history differ"
        return
    parts = {n: _read(copies[0]) for n, copies in sorted(values.items())}
    counts = {head.get("of") for head, _ in parts.values()}
    if len(counts) > 1 or any(head.get("part") != n for n, (head, _) in parts.items()):
        yield "a part of its history does not say which it is"
        return
    if list(parts) != list(range(len(parts))) or counts != {len(parts)}:
        if committed and not tombstones:
            yield "its history is incomplete"
        return
    whole = b"".join(data for _, data in parts.values())
    digest = hashlib.blake2b(whole, digest_size=16).hexdigest()
    if {(head.get("rid"), head.get("digest")) for head, _ in parts.values()} != {
        (response.rid, digest)
    }:
        yield "a part of its history is of another content"
        return
    if response.requests and _expects_history(response, account):
        yield from _differences(_object(whole), response, account)


def _by_number(stored: list[log_words.Record]) -> dict[int, list[bytes]]:
    """The values under each of its keys, in order."""
    by_number: dict[int, list[bytes]] = {}
    for r in stored:
        number = (r.key or b"").partition(b":")[2]
        if r.value is not None:
            by_number.setdefault(int(number) if number.isdigit() else 0, []).append(r.value)
    return by_number


def _read(value: bytes) -> tuple[dict[str, Any], bytes]:
    line, _, data = value.partition(b"\n")
    head = _object(line)
    return (head if head.get("t") == "PART" else {}), data


def _object(text: bytes) -> dict[str, Any]:
    """A JSON object; empty if `text` is not one."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _differences(
    members: dict[str, Any], response: history.Response, account: reference_fold.Account
) -> Iterator[str]:
    expected = _content(response, account)
    for name, problem in _MEMBERS.items():
        if members.get(name) != expected.get(name):
            yield problem
    if members.keys() != expected.keys():
        yield "it has other members"


def _content(response: history.Response, account: reference_fold.Account) -> dict[str, Any]:
    """The expected content, as JSON values. The response has ended and its request is known."""
    assert account.ended_at is not None
    last = account.entries[account.ended_at]
    end = _plain(last.record)
    if isinstance(last.record, records.Cancel):
        end.pop("echo", None)
    if account.reason == "history_lost":  # whoever keeps it may have none of what came before
        account = reference_fold.Account([last], account.principal, ended_at=0)
    before = [0, *(k for _, k in account.takeovers)]
    frames = [f.tok for f in account.frames]
    sparse = {
        "marks": [[n, _plain(tok)["marks"]] for n, tok in enumerate(frames) if tok.marks],
        "lp": [[n, _plain(tok)["lp"]] for n, tok in enumerate(frames) if tok.lp],
        "served": [
            [n, epoch.claim.served] for n, epoch in enumerate(account.epochs) if epoch.claim.served
        ],
        "answers": [
            [n, epoch.claim.answer_of]
            for n, epoch in enumerate(account.epochs)
            if epoch.claim.answer_of
        ],
        "continued": [n for n, epoch in enumerate(account.epochs) if epoch.claim.continues],
    }
    request = _plain(response.requests[0].request)
    return {
        "t": "HISTORY",
        "rid": response.rid,
        "owner": request["owner"],
        "request": request,
        "claims": [
            [
                *(k, c.own, c.worker, c.model_rev, c.tokenizer_digest, c.parser),
                *(c.prompt_tokens, c.copied),
            ]
            for k, c in zip(before, (epoch.claim for epoch in account.epochs), strict=True)
        ]
        if account.epochs
        else [],
        "frames": [[len(tok.ids), len(tok.text)] for tok in frames],
        "ids": account.ids,
        "text": "".join(tok.text for tok in frames),
        "end": end,
        "ended_ms": last.timestamp,
        **{name: value for name, value in sparse.items() if value},
        **({"dropped": account.dropped} if account.dropped else {}),
    }


def _plain(record: records.Record) -> dict[str, Any]:
    members: dict[str, Any] = json.loads(records.encode(record))
    return members
