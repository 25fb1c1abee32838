"""L1-L3 and L5-L7, and R1, R5, R6 as far as the log alone can tell (pure)."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from tailrace.protocol import fold, records
from tailrace.verify import history, reference_fold
from tailrace.verify.report import EXCERPT, Report, Witness

MAX_ATTEMPTS: Final = 3
MAX_CLAIMS: Final = 16
SETTLE_S: Final = 900.0  # a request may wait ten minutes for a worker before it expires
CHARACTERS: Final = (
    "unicode"  # tokenizer of engines whose ids are code points: they count tokens themselves
)

# What is wrong with a response's ids or text, by someone who knows what its engine had to write;
# nothing when all is well.
Content = Callable[[history.Response, reference_fold.Account], Iterable[str]]


@dataclass(frozen=True, slots=True)
class Options:
    """How strictly to judge.

    Attributes:
        settle_s: a response whose last record is older than this at the end of the input has to
            have ended; a younger one may still run.
        since_ms: responses whose first record is older were judged before.
        content: L2 and L5 by content.
        fold_class: the fold that readers use; replaced only by tests that plant a bug.
    """

    settle_s: float = SETTLE_S
    since_ms: int = 0
    content: Content | None = None
    fold_class: type[fold.Fold] = fold.Fold


@dataclass(frozen=True, slots=True)
class Takeover:
    """Incarnation `won` replaced incarnation `lost`; `k` tokens were accepted before. Times are the
    broker's, ms, 0 if there was no token."""

    lost: str
    won: str
    k: int
    since_ms: int  # when `lost` had claimed it
    last_ms: int
    claimed_ms: int
    next_ms: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a response came to, as clients may be told of it. `events`: (type, delta) by
    sequence_number as far as the log goes."""

    rid: str
    owner: records.Owner | None
    status: str | None
    reason: str | None
    text: str
    total: int
    mark: str | None
    key: str | None
    events: tuple[tuple[str, str | None], ...]
    times: tuple[
        int, ...
        # by sequence_number: broker time of the record it follows from, 0 for the request's own events
    ]
    requests: int
    cancels: int  # CANCEL records, void ones included
    whole: bool
    takeovers: tuple[Takeover, ...] = ()
    void: int = 0  # records that had no effect
    dead: int = 0  # dead letters that say something of their own


def judge(
    found: history.History, options: Options | None = None
) -> tuple[Report, dict[str, Outcome]]:
    """Every check on every response of a history."""
    options = options or Options()
    out = Report()
    outcomes = {}
    for response in found.responses.values():
        outcomes[response.rid] = _response(out, response, found, options)
    _commits(out, found, outcomes)
    _keys(out, outcomes.values())
    for topic, n in found.garbage.items():
        out.figures[f"garbage records in {topic}"] += n
    return out, outcomes


def _response(
    out: Report, response: history.Response, found: history.History, options: Options
) -> Outcome:
    account = reference_fold.account(response.entries)
    outcome = _outcome(response, account)
    if not response.whole:
        out.note(
            "response of another log"
            if response.foreign
            else "response older than the log (history_lost)"
        )
        return outcome
    if response.oldest < options.since_ms:
        return outcome
    settled = found.newest - response.newest >= options.settle_s * 1000
    _figures(out, response, account)
    _agreement(out, response, account, options.fold_class)
    _chain(out, response, account, options.content)
    _shape(out, response, account, settled, options.fold_class)
    _text(out, response, account, options.content)
    _attempts(out, response, account, settled, has_dead=found.has_dead)
    _expired(out, response, account)
    if found.has_usage:
        _usage(out, response, account, settled)
    return outcome


def witness(response: history.Response, what: str, at: int | None = None) -> Witness:
    """A witness with the records around position `at`, or the last ones."""
    entries = response.entries
    at = len(entries) - 1 if at is None else at
    first = max(0, min(at - EXCERPT // 2, len(entries) - EXCERPT))
    shown = entries[first : first + EXCERPT]
    lines = tuple(
        f"{'>' if first + i == at else ' '} {e.offset:>8} {_described(e.record)}"
        for i, e in enumerate(shown)
    )
    return Witness(what, response.rid, len(entries), lines)


def _described(r: records.TokenRecord) -> str:
    """One record on one line, without its text."""
    match r:
        case records.Claim():
            return f"CLAIM own={r.own[:8]} prev={(r.prev or 'null')[:8]} by {r.worker}"
        case records.Tok():
            return f"TOK   own={r.own[:8]} seq={r.seq} n={len(r.ids)} parent={r.parent[:8]}"
        case records.End():
            return (
                f"END   own={r.own[:8]} seq={r.seq} {r.reason} digest={r.digest[:8]} "
                f"usage={r.usage.output_tokens}"
            )
        case records.Cancel():
            return "CANCEL"
        case _:
            return f"YIELD own={r.own[:8]} seq={r.seq}"


# ---- the log
# ---------------------------------------------------------------------------------------


def _agreement(
    out: Report,
    response: history.Response,
    account: reference_fold.Account,
    fold_class: type[fold.Fold],
) -> None:
    """L1: record by record, did it take effect; then what it all came to."""
    out.judged("L1")
    real = fold_class(keep_ids=True)
    took: list[int] = []
    parts: list[str] = []
    for at, e in enumerate(account.entries):
        outcome = real.apply(e.record, e.offset, e.timestamp)
        if isinstance(outcome, fold.Claimed | fold.Accepted | fold.Ended):
            took.append(at)
        if isinstance(outcome, fold.Accepted):
            parts.append(outcome.text)
        elif isinstance(outcome, fold.Ended):
            parts.append(outcome.text_tail)
    mine = account.accepted()
    if took != mine:
        at = next(
            (a if b is None else b if a is None else min(a, b))
            for a, b in itertools.zip_longest(took, mine)
            if a != b
        )
        who = (
            "the product's fold takes a record that is void"
            if at in took
            else "the product's fold drops a record that counts"
        )
        out.fail("L1", witness(response, who, at))
        return
    ended = real.ended.status if real.ended else None
    theirs = (real.ids, "".join(parts), ended, real.epoch, real.h)
    ours = (account.ids, account.text, account.status, len(account.tenures), account.chain)
    names = ("ids", "text", "status", "epoch", "hash")
    differing = [name for name, a, b in zip(names, theirs, ours, strict=True) if a != b]
    if differing:
        out.fail("L1", witness(response, f"the folds differ in {', '.join(differing)}"))


def _chain(
    out: Report,
    response: history.Response,
    account: reference_fold.Account,
    content: Content | None,
) -> None:
    """L2."""
    out.judged("L2")
    if account.torn:
        out.fail(
            "L2",
            witness(
                response,
                "a record of the owner at the right index continues another prefix",
                account.torn[0],
            ),
        )
    elif (again := _shared_nonce(account)) is not None:
        out.fail("L2", witness(response, "two claims with one nonce", again))
    elif content is not None and (
        problems := [p for p in content(response, account) if not p.startswith("text")]
    ):
        out.fail("L2", witness(response, problems[0]))


def _shared_nonce(account: reference_fold.Account) -> int | None:
    """Position of a claim whose nonce another one has; a copy of the same claim, from a retry, is
    no other."""
    first: dict[str, records.Claim] = {}
    for at, e in enumerate(account.entries):
        if (
            isinstance(e.record, records.Claim)
            and first.setdefault(e.record.own, e.record) != e.record
        ):
            return at
    return None


def _shape(
    out: Report,
    response: history.Response,
    account: reference_fold.Account,
    settled: bool,
    fold_class: type[fold.Fold],
) -> None:
    """L3, on what readers emit; R1 as far as the log tells."""
    if response.entries:
        out.judged("L3")
        problem = _emitted(account.entries, fold_class)
        if problem is not None:
            out.fail("L3", witness(response, *problem))
    if not response.asked:
        return
    out.judged("R1")
    if account.ended_at is not None:
        return
    if settled:
        out.fail("R1", witness(response, "the request never reached an end"))
    else:
        out.note("response still open")


def _emitted(
    entries: Sequence[history.Placed], fold_class: type[fold.Fold]
) -> tuple[str, int] | None:
    """What a reader that emits the fold's effects would get wrong: (what, position)."""
    real, expected, ends = fold_class(), 0, 0
    for at, e in enumerate(entries):
        outcome = real.apply(e.record, e.offset, e.timestamp)
        if isinstance(outcome, fold.Void | fold.Yielded):
            continue
        if ends:
            return (
                "a second end"
                if isinstance(outcome, fold.Ended)
                else "something is accepted behind the end"
            ), at
        if isinstance(outcome, fold.Accepted):
            if outcome.seq != expected:
                return f"token {outcome.seq} where {expected} is due", at
            expected += len(outcome.ids)
        elif isinstance(outcome, fold.Ended):
            ends += 1
            if isinstance(e.record, records.End) and e.record.seq != expected:
                return f"END.seq is {e.record.seq}, accepted are {expected}", at
    return None


def _text(
    out: Report,
    response: history.Response,
    account: reference_fold.Account,
    content: Content | None,
) -> None:
    """L5. Without the tokenizer, what can be said of any text; ids that are characters are their
    own text."""
    out.judged("L5")
    if any(0xD800 <= ord(c) <= 0xDFFF for c in account.text):
        out.fail("L5", witness(response, "half a surrogate pair in the text"))
    elif account.tenures and account.tenures[0].claim.tokenizer_digest == CHARACTERS:
        whole = "".join(map(chr, account.ids))
        if not whole.startswith(account.text):
            out.fail("L5", witness(response, "the text is not the text of its ids"))
    elif content is not None and (
        problems := [p for p in content(response, account) if p.startswith("text")]
    ):
        out.fail("L5", witness(response, problems[0]))


def _usage(
    out: Report, response: history.Response, account: reference_fold.Account, settled: bool
) -> None:
    """L6. An ambiguous append may double a usage record; it is one bill as long as the copies say
    the same."""
    metered = response.metered
    if not metered and (account.ended_at is None or not account.tenures):
        return
    out.judged("L6")
    if account.ended_at is None:
        if metered:
            out.fail("L6", witness(response, "billed, but it has not ended"))
        return
    if not metered:
        if settled:
            out.fail("L6", witness(response, "it ended and was never billed"))
        else:
            out.note("response ended just now and not billed yet")
        return
    if len({(m.usage, m.status, m.ids_digest) for m in metered}) > 1:
        out.fail("L6", witness(response, f"{len(metered)} bills that differ"))
        return
    out.figures["usage records that repeat one"] += len(metered) - 1
    bill, counts = (
        metered[0],
        not account.tenures or account.tenures[0].claim.tokenizer_digest != CHARACTERS,
    )
    if counts and bill.usage.output_tokens != account.total:
        out.fail(
            "L6",
            witness(
                response, f"billed {bill.usage.output_tokens} tokens, accepted were {account.total}"
            ),
        )
    elif account.end is not None and bill.usage != account.end.usage:
        out.fail("L6", witness(response, "the bill differs from the usage in END"))
    elif bill.status != account.status:
        out.fail("L6", witness(response, f"billed as {bill.status}, ended as {account.status}"))
    elif bill.ids_digest != account.chain:
        out.fail("L6", witness(response, "the bill names other tokens"))


def attempts(account: reference_fold.Account) -> list[int]:
    """By claim: the number of attempts that count up to and with it (log rule §10)."""
    counts, total = [], 0
    for i, t in enumerate(account.tenures):
        before = account.tenures[i - 1].claim if i else None
        total += before is None or (
            before.own not in account.yielded and before.worker != t.claim.worker
        )
        counts.append(total)
    return counts


def _attempts(
    out: Report,
    response: history.Response,
    account: reference_fold.Account,
    settled: bool,
    *,
    has_dead: bool,
) -> None:
    """L7."""
    if not account.tenures:
        return
    out.judged("L7")
    closing = [
        t
        for i, (t, n) in enumerate(zip(account.tenures, attempts(account), strict=True))
        if n > MAX_ATTEMPTS or i >= MAX_CLAIMS
    ]
    for t in closing:
        wrote = [
            at
            for at, e in enumerate(account.entries)
            if isinstance(e.record, records.Tok) and e.record.own == t.claim.own
        ]
        if wrote:
            out.fail("L7", witness(response, "more attempts than are allowed", wrote[0]))
            return
    if closing and account.end is not None and account.status != "failed":
        out.fail(
            "L7",
            witness(
                response,
                f"attempts are used up, yet it ended as {account.status}",
                account.ended_at,
            ),
        )
        return
    if not has_dead:
        return
    letters = len({(d.reason, d.attempts, d.prompt_digest) for d in response.dead})
    out.figures["dead letters that repeat one"] += max(0, len(response.dead) - 1)
    if letters and account.status != "failed":
        out.fail("L7", witness(response, f"a dead letter, but it is {account.status or 'open'}"))
    elif letters > 1:
        out.fail("L7", witness(response, f"{letters} dead letters that differ"))
    elif closing and account.end is not None and account.end.reason == "failed" and not letters:
        if settled:
            out.fail("L7", witness(response, "failed by attempts without a dead letter"))
        else:
            out.note("response failed just now, without a dead letter yet")


def _expired(out: Report, response: history.Response, account: reference_fold.Account) -> None:
    """R5, on the broker's clock."""
    if account.reason != "expired" or account.ended_at is None:
        return
    out.judged("R5")
    if account.total:
        out.fail("R5", witness(response, f"expired with {account.total} tokens"))
        return
    if response.asked:
        waited = account.entries[account.ended_at].timestamp - min(
            a.timestamp for a in response.asked
        )
        if waited < response.asked[0].request.ttl_ms:
            out.fail(
                "R5",
                witness(
                    response, f"expired after {waited} ms of {response.asked[0].request.ttl_ms}"
                ),
            )


def _commits(out: Report, found: history.History, outcomes: dict[str, Outcome]) -> None:
    """R6 at the end of the input: what a group has committed is finished, and its metadata leads a
    successor to every claim that matters."""
    for (topic, partition), commit in found.committed.items():
        place = found.places.get((topic, partition), {})
        out.judged("R6")
        for offset, rid in sorted(place.items()):
            outcome = outcomes.get(rid) if rid else None
            if outcome is None or not outcome.whole:
                continue
            if offset < commit.offset and outcome.status is None:
                out.fail(
                    "R6",
                    Witness(
                        (
                            f"{topic}[{partition}]: {commit.offset} is committed, the request at "
                            f"{offset} has not ended"
                        ),
                        outcome.rid,
                        1,
                    ),
                )
                break
            problem = (
                _folds_from(found.responses[outcome.rid], commit)
                if offset >= commit.offset
                else None
            )
            if problem is not None:
                out.fail(
                    "R6", Witness(f"{topic}[{partition}] at {offset}: {problem}", outcome.rid, 1)
                )
                break


def _keys(out: Report, outcomes: Iterable[Outcome]) -> None:
    """R2 in the log itself: equal keys of one user share a partition, so both are in one
    history."""
    by_key: dict[tuple[str, str], set[str]] = defaultdict(set)
    for outcome in outcomes:
        if outcome.key is not None and outcome.owner is not None and outcome.requests:
            by_key[(outcome.owner.key, outcome.key)].add(outcome.rid)
    for rids in by_key.values():
        out.judged("R2")
        if len(rids) > 1:
            out.fail(
                "R2",
                Witness(
                    f"one key has {len(rids)} responses in the log: {', '.join(sorted(rids))}",
                    min(rids),
                    len(rids),
                ),
            )


def _folds_from(response: history.Response, commit: history.Commit) -> str | None:
    if not commit.metadata.isdigit() or not response.entries:
        return None
    first = next(
        (
            e.offset
            for e in response.entries
            if isinstance(e.record, records.Claim | records.Cancel)
        ),
        None,
    )
    if first is not None and first < int(commit.metadata):
        return f"its first record lies at {first}, a successor would fold from {commit.metadata}"
    return None


# ---- what it came to
# -------------------------------------------------------------------------------


def _figures(out: Report, response: history.Response, account: reference_fold.Account) -> None:
    out.figures["responses"] += 1
    out.figures["tokens"] += account.total
    out.figures[f"ended {account.status or 'open'}"] += 1
    out.figures["claims"] += len(account.tenures)
    out.figures["takeovers with k > 0"] += sum(1 for _, k in account.takeovers if k)
    counted = set(account.accepted())
    for at, e in enumerate(account.entries):
        if at not in counted and not isinstance(e.record, records.Yield):
            out.figures[f"void {type(e.record).__name__.upper()}"] += 1
            if isinstance(e.record, records.Tok):
                out.figures["void tokens"] += len(e.record.ids)
    times = [account.entries[f.at].timestamp for f in account.frames]
    if len(times) > 1:
        out.sample(
            "longest pause between tokens, ms", max(b - a for a, b in itertools.pairwise(times))
        )


def _outcome(response: history.Response, account: reference_fold.Account) -> Outcome:
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
        owner=response.owner,
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
        void=sum(not isinstance(e.record, records.Yield) for e in account.entries)
        - len(account.accepted()),
        dead=len({(d.reason, d.attempts, d.prompt_digest) for d in response.dead}),
    )


def _takeovers(account: reference_fold.Account) -> Iterable[Takeover]:
    times = [(f.at, account.entries[f.at].timestamp) for f in account.frames]
    for before, (t, k) in zip(account.tenures, account.takeovers, strict=False):
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
    """The client's series as it follows from the log: (type, delta, broker time), index =
    sequence_number."""
    out: list[tuple[str, str | None, int]] = [("response.created", None, 0)]
    if background:
        out.append(("response.queued", None, 0))
    if account.tenures:
        out.append(
            ("response.in_progress", None, account.entries[account.tenures[0].start].timestamp)
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
