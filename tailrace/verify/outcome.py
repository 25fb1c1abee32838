"""What a response came to, and the event series that follows from it (pure)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tailrace.protocol import records
from tailrace.verify import history, reference_fold


@dataclass(frozen=True, slots=True)
class Takeover:
    """Incarnation `won` replaced incarnation `lost`.

    Attributes:
        k: tokens accepted before the takeover.
        since_ms: broker time of the claim of `lost`.
        last_ms: broker time of the last token of `lost`; 0 if there was none.
        claimed_ms: broker time of the claim of `won`.
        next_ms: broker time of the first token of `won`; 0 if there was none.
    """

    lost: str
    won: str
    k: int
    since_ms: int
    last_ms: int
    claimed_ms: int
    next_ms: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a response, as clients may get it.

    Attributes:
        status: the client's status; None while it is open.
        mark: the client's metadata by which it finds its request again.
        events: (type, delta) by sequence_number, up to the end of the log.
        items: type, name, call_id and characters of each output item, but for messages without
            any.
        times: by sequence_number, the broker time (ms) of the record that the event follows from;
            0 for the events that follow from the request alone.
        requests: number of request records that count.
        claimed: a worker claimed it.
        cancels: number of CANCEL records, ignored ones included.
        whole: the log still has every record of it.
        ignored: records that had no effect.
        dead: dead letters with different content.
        dropped: messages that its prompt lacks.
    """

    rid: str
    owner: records.Owner | None
    status: str | None
    reason: str | None
    text: str
    total: int
    mark: str | None
    key: str | None
    events: tuple[tuple[str, str | None], ...]
    times: tuple[int, ...]
    requests: int
    cancels: int
    whole: bool
    takeovers: tuple[Takeover, ...] = ()
    ignored: int = 0
    dead: int = 0
    claimed: bool = False
    items: tuple[tuple[str, str, str, str], ...] = ()
    dropped: int = 0

    @property
    def withdrawn(self) -> bool:
        """A gateway took the request back, and nothing came before that."""
        return self.reason == "withdrawn"


def outcome_of(response: history.Response, account: reference_fold.Account) -> Outcome:
    """The outcome of one response; `account` is its reference fold."""
    request = response.requests[0].request if response.requests else None
    echo = (
        request.echo
        if request
        else next(
            (
                e.record.echo
                for e in response.entries
                if isinstance(e.record, records.Claim | records.Cancel)
            ),
            {},
        )
    )
    source_count = _source_count(echo)
    series = events(
        account,
        background=bool(echo.get("background")),
        source_count=source_count,
        in_summary=_in_summary(echo),
    )
    search_items = (
        [("file_search_call", "", "", "")] if source_count is not None and account.epochs else []
    )
    metadata = echo.get("metadata")
    mark = metadata.get("mark") if isinstance(metadata, dict) else None
    return Outcome(
        rid=response.rid,
        owner=account.principal or response.owner,
        status=account.status,
        reason=account.reason,
        text=account.text,
        total=account.total,
        mark=mark if isinstance(mark, str) else None,
        key=request.idempotency_key if request else None,
        events=tuple((kind, delta) for kind, delta, _ in series),
        times=tuple(at for _, _, at in series),
        requests=len(response.requests),
        cancels=sum(isinstance(e.record, records.Cancel) for e in response.entries),
        whole=response.whole,
        takeovers=tuple(_takeovers(account)),
        ignored=sum(not isinstance(e.record, records.Yield) for e in account.entries)
        - len(account.accepted()),
        dead=len({(d.reason, d.attempts, d.prompt_digest) for d in response.dead}),
        claimed=bool(account.epochs),
        items=(*search_items, *_items(account)),
        dropped=account.dropped,
    )


ITEM_TYPES: Final = {
    "m": "message",
    "r": "reasoning",
    "c": "function_call",
    "x": "custom_tool_call",
}


def _items(account: reference_fold.Account) -> Iterable[tuple[str, str, str, str]]:
    for part in account.parts:
        if part.beginning is not None and part.beginning.kind != "m":
            beginning = part.beginning
            yield ITEM_TYPES[beginning.kind], beginning.name, beginning.call_id, part.text
        elif part.text:
            yield ITEM_TYPES["m"], "", "", part.text


def _takeovers(account: reference_fold.Account) -> Iterable[Takeover]:
    times = [(f.at, account.entries[f.at].timestamp) for f in account.frames]
    for before, (t, k) in zip(account.epochs, account.takeovers, strict=False):
        last = max((ms for at, ms in times if at < t.start), default=0)
        following = min((ms for at, ms in times if at > t.start), default=0)
        since = account.entries[before.start].timestamp
        yield Takeover(
            before.claim.worker,
            t.claim.worker,
            k,
            since,
            last,
            account.entries[t.start].timestamp,
            following,
        )


def _source_count(echo: dict[str, Any]) -> int | None:
    """How many passages the prompt has of files that were searched; None: none were."""
    search = echo.get("_search")
    return len(search.get("sources", ())) if isinstance(search, dict) else None


def _in_summary(echo: dict[str, Any]) -> bool:
    """Whether the client wants the reasoning as its summary."""
    reasoning = echo.get("reasoning")
    return isinstance(reasoning, dict) and reasoning.get("summary") is not None


_SEARCH: Final = (
    "response.output_item.added",
    "response.file_search_call.in_progress",
    "response.file_search_call.searching",
    "response.file_search_call.completed",
    "response.output_item.done",
)
_NUMBER: Final = re.compile(r"\[([1-9][0-9]*)\]")
_MAX_CITATIONS: Final = 1_000


def _citation_count(text: str, source_count: int) -> int:
    """How many citations a text has."""
    numbers = _NUMBER.findall(text)
    return min(_MAX_CITATIONS, sum(len(n) < 3 and int(n) <= source_count for n in numbers))


def events(
    account: reference_fold.Account,
    *,
    background: bool,
    source_count: int | None = None,
    in_summary: bool = False,
) -> list[tuple[str, str | None, int]]:
    """The client's event series, as it follows from the log. `source_count`: number of passages
    that a search gave to the prompt; None: there was no search. `in_summary`: reasoning is shown as
    its summary.

    Returns (type, delta, broker time in ms); the index is the sequence_number.
    """
    out: list[tuple[str, str | None, int]] = [("response.created", None, 0)]
    if background:
        out.append(("response.queued", None, 0))
    for number, at in enumerate(_in_progress_events(account)):
        out.append(("response.in_progress", None, at))
        if number == 0 and source_count is not None:
            out += [(name, None, at) for name in _SEARCH]
    end_at = account.entries[account.ended_at].timestamp if account.ended_at is not None else 0
    kind = ""  # of the open item
    needs_item = False  # a token with text came before any item
    has_item = False  # an item was
    message_text = ""  # of the open message, where files were searched
    for mark, text, tokens, at in _pieces(account, end_at):
        if mark is _CONTINUATION:
            out += [(name, None, at) for name in (*_closing(kind), "response.in_progress")]
            kind, needs_item, message_text = "", False, ""
            continue
        if mark is not None:
            out += [(name, None, at) for name in _closing(kind)]
            kind = "s" if in_summary and mark.kind == "r" else mark.kind
            out += [(name, None, at) for name in _opening(kind)]
            needs_item, has_item, message_text = False, True, ""
        elif not kind and (text or not account.parser):
            out += [(name, None, at) for name in _opening("m")]
            kind, has_item = "m", True
        needs_item = needs_item or any(each.token for each in tokens)
        if text or (kind == "m" and needs_item):
            out.append((f"response.{_CHARACTERS[kind]}.delta", text, at))
        if source_count and kind == "m":
            more = _citation_count(message_text + text, source_count) - _citation_count(
                message_text, source_count
            )
            out += [("response.output_text.annotation.added", None, at)] * more
            message_text += text
        needs_item = needs_item and not kind
    if account.ended_at is None:
        return out
    if account.reason in ("stop", "length") and not has_item:  # no tokens: an empty message
        out += [(name, None, end_at) for name in _opening("m")]
        kind = "m"
    out += [(name, None, end_at) for name in _closing(kind)]
    terminal = account.status if account.status in ("completed", "failed") else "incomplete"
    out.append((f"response.{terminal}", None, end_at))
    return out


def _in_progress_events(account: reference_fold.Account) -> Iterable[int]:
    """Broker times of the first claim, and of those before the first token that name another model
    than the one before."""
    before = None
    first = account.frames[0].at if account.frames else len(account.entries)
    for epoch, served in zip(account.epochs, account.served_at(first), strict=False):
        if served != before:
            yield account.entries[epoch.start].timestamp
        before = served


_CHARACTERS: Final = {
    "m": "output_text",
    "r": "reasoning_text",
    "s": "reasoning_summary_text",
    "c": "function_call_arguments",
    "x": "custom_tool_call_input",
}
_PARTS: Final = {
    "m": "response.content_part",
    "r": "response.content_part",
    "s": "response.reasoning_summary_part",
}


def _opening(kind: str) -> list[str]:
    part = [f"{_PARTS[kind]}.added"] if kind in _PARTS else []
    return ["response.output_item.added", *part]


def _closing(kind: str) -> list[str]:
    """Nothing where no item is open."""
    if not kind:
        return []
    part = [f"{_PARTS[kind]}.done"] if kind in _PARTS else []
    return [f"response.{_CHARACTERS[kind]}.done", *part, "response.output_item.done"]


_CONTINUATION: Final = records.Mark(0, 0, "m")  # another model continues the text


def _pieces(
    account: reference_fold.Account, end_at: int
) -> Iterable[tuple[records.Mark | None, str, Sequence[records.Lp], int]]:
    """What each record adds to which item: the mark that begins it (None: the open one),
    characters, log probabilities, broker time. `_CONTINUATION` with nothing: another model goes
    on."""
    continuations = [epoch.start for epoch in account.continued]
    for f in account.frames:
        while continuations and continuations[0] < f.at:
            yield _CONTINUATION, "", (), account.entries[continuations.pop(0)].timestamp
        at = account.entries[f.at].timestamp
        marks = f.tok.marks
        places = [(m.at, m.ids) for m in marks]
        # What comes before a mark at the very beginning is nothing, and adds to no item.
        if not marks or places[0] != (0, 0):
            stop, last = places[0] if marks else (len(f.tok.text), len(f.tok.ids))
            yield None, f.tok.text[:stop], f.tok.lp[:last], at
        ends = [*places[1:], (len(f.tok.text), len(f.tok.ids))]
        for mark, (stop, last) in zip(marks, ends, strict=False):
            yield mark, f.tok.text[mark.at : stop], f.tok.lp[mark.ids : last], at
    for start in continuations:
        yield _CONTINUATION, "", (), account.entries[start].timestamp
    end = account.end
    if end is not None and (end.text_tail or end.marks):
        stops = [*(m.at for m in end.marks), len(end.text_tail)]
        if end.text_tail[: stops[0]]:
            yield None, end.text_tail[: stops[0]], (), end_at
        for mark, stop in zip(end.marks, stops[1:], strict=True):
            yield mark, end.text_tail[mark.at : stop], (), end_at
