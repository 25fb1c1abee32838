"""What a response came to, and the event series that follows from it (pure)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

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
    """What a response came to, as clients may be told of it.

    Attributes:
        status: the client's status; None while it is open.
        mark: what the client put into the metadata to find its request again.
        events: (type, delta) by sequence_number, as far as the log goes.
        times: by sequence_number, the broker time (ms) of the record that the event follows from;
            0 for the events that follow from the request alone.
        requests: number of request records that count.
        claimed: a worker claimed it.
        cancels: number of CANCEL records, ignored ones included.
        whole: the log still has every record of it.
        ignored: records that had no effect.
        dead: dead letters with different content.
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

    @property
    def withdrawn(self) -> bool:
        """A gateway took the request back, and nothing came before that."""
        return self.reason == "withdrawn"


def outcome_of(response: history.Response, account: reference_fold.Account) -> Outcome:
    """The outcome of one response; `account` is its reference fold."""
    request = response.asked[0].request if response.asked else None
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
    series = events(account, background=bool(echo.get("background")))
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
        requests=len(response.asked),
        cancels=sum(isinstance(e.record, records.Cancel) for e in response.entries),
        whole=response.whole,
        takeovers=tuple(_takeovers(account)),
        ignored=sum(not isinstance(e.record, records.Yield) for e in account.entries)
        - len(account.accepted()),
        dead=len({(d.reason, d.attempts, d.prompt_digest) for d in response.dead}),
        claimed=bool(account.epochs),
    )


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


def events(
    account: reference_fold.Account, *, background: bool
) -> list[tuple[str, str | None, int]]:
    """The client's event series, as it follows from the log.

    Returns (type, delta, broker time in ms); the index is the sequence_number.
    """
    out: list[tuple[str, str | None, int]] = [("response.created", None, 0)]
    if background:
        out.append(("response.queued", None, 0))
    if account.epochs:
        out.append(
            ("response.in_progress", None, account.entries[account.epochs[0].start].timestamp)
        )
    opening = ("response.output_item.added", "response.content_part.added")
    opened = False
    pieces = [(f.tok.text, account.entries[f.at].timestamp) for f in account.frames]
    end_at = account.entries[account.ended_at].timestamp if account.ended_at is not None else 0
    if account.end is not None and account.end.text_tail:
        pieces.append((account.end.text_tail, end_at))
    for text, at in pieces:
        if not opened:
            out += [(kind, None, at) for kind in opening]
            opened = True
        if text:
            out.append(("response.output_text.delta", text, at))
    if account.ended_at is None:
        return out
    if (
        account.reason in ("stop", "length") and not opened
    ):  # an answer of no tokens is an empty message
        out += [(kind, None, end_at) for kind in opening]
        opened = True
    if opened:
        out += [
            (f"response.{kind}.done", None, end_at)
            for kind in ("output_text", "content_part", "output_item")
        ]
    terminal = account.status if account.status in ("completed", "failed") else "incomplete"
    out.append((f"response.{terminal}", None, end_at))
    return out
