"""The checks of one response on the log alone: L1-L3, L5-L7, R1 and R5 (pure)."""

from __future__ import annotations

import bisect
import itertools
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from tailrace.protocol import fold, records
from tailrace.verify import history, reference_fold
from tailrace.verify.report import EXCERPT, Counterexample, Report

MAX_ATTEMPTS: Final = 3
MAX_CLAIMS: Final = 16
MAX_STARTS: Final = 6
PROGRESS: Final = 16
# Reasons of dead letters whose last claim only closed the response.
CLOSING_CODES: Final = ("attempts_exhausted", "model_changed")
# Tokenizer name of engines whose ids are code points. Such engines count tokens themselves.
CHARACTERS: Final = "unicode"

# Returns the problems of a response's ids, text or marks. The caller knows what the engine had
# to write. A problem of text or marks begins with "text". No problems: nothing.
Content = Callable[[history.Response, reference_fold.Account], Iterable[str]]


def counterexample(
    response: history.Response, message: str, at: int | None = None
) -> Counterexample:
    """A counterexample with the records around position `at`, or with the last records."""
    entries = response.entries
    at = len(entries) - 1 if at is None else at
    first = max(0, min(at - EXCERPT // 2, len(entries) - EXCERPT))
    excerpt = entries[first : first + EXCERPT]
    lines = tuple(
        f"{'>' if first + i == at else ' '} {e.offset:>8} {_describe(e.record)}"
        for i, e in enumerate(excerpt)
    )
    return Counterexample(message, response.rid, len(entries), lines)


def _describe(r: records.TokenRecord) -> str:
    """One record on one line, without its text: text may be private."""
    match r:
        case records.Claim():
            return f"CLAIM own={r.own[:8]} prev={(r.prev or 'null')[:8]} by {r.worker}"
        case records.Tok():
            marks = " marks=" + "".join(m.kind for m in r.marks) if r.marks else ""
            return f"TOK   own={r.own[:8]} seq={r.seq} n={len(r.ids)} parent={r.parent[:8]}{marks}"
        case records.End():
            return (
                f"END   own={r.own[:8]} seq={r.seq} {r.reason} digest={r.digest[:8]} "
                f"usage={r.usage.output_tokens}"
            )
        case records.Cancel():
            return f"CANCEL by {r.by.key}"
        case _:
            return f"YIELD own={r.own[:8]} seq={r.seq}"


def check_fold_agreement(
    out: Report,
    response: history.Response,
    account: reference_fold.Account,
    fold_class: type[fold.Fold],
) -> None:
    """L1: both folds accept the same records and come to the same result."""
    out.count("L1")
    real = fold_class(retain_ids=True, principal=account.principal)
    accepted: list[int] = []
    parts: list[str] = []
    marks: list[tuple[int, int, str, str, str]] = []
    id_count = 0
    for at, e in enumerate(account.entries):
        outcome = real.apply(e.record, e.offset, e.timestamp)
        if isinstance(outcome, fold.Claimed | fold.Accepted | fold.Ended):
            accepted.append(at)
        if isinstance(outcome, fold.Accepted | fold.Ended):
            before = outcome.seq if isinstance(outcome, fold.Accepted) else real.next
            marks += [
                (id_count + m.at, before + m.ids, m.kind, m.name, m.call_id) for m in outcome.marks
            ]
            parts.append(outcome.text if isinstance(outcome, fold.Accepted) else outcome.text_tail)
            id_count += len(parts[-1])
    expected = account.accepted()
    if accepted != expected:
        at = next(
            (a if b is None else b if a is None else min(a, b))
            for a, b in itertools.zip_longest(accepted, expected)
            if a != b
        )
        message = (
            "the product's fold accepts a record that it must ignore"
            if at in accepted
            else "the product's fold ignores a record that counts"
        )
        out.fail("L1", counterexample(response, message, at))
        return
    ended = real.ended.status if real.ended else None
    mark_count = real.mark_count + len(real.ended.marks if real.ended else ())
    product = (
        real.ids,
        "".join(parts),
        ended,
        real.epoch,
        real.h,
        marks,
        mark_count,
        real.reasoning,
        real.ended.vectors if real.ended else (),
        real.served,
        real.prompt,
        real.answer_of,
        [tuple(each) for each in real.former],
        sorted(real.hedged),
    )
    reference = (
        account.ids,
        account.text,
        account.status,
        len(account.epochs),
        account.chain,
        account.marks,
        len(account.marks),
        account.reasoning,
        account.vectors,
        account.served,
        account.prompt,
        account.answer_of,
        account.former,
        sorted(account.hedged),
    )
    names = (
        "ids",
        "text",
        "status",
        "epoch",
        "hash",
        "marks",
        "number of marks",
        "reasoning",
        "vectors",
        "model that answers",
        "length of the prompt",
        "answer that is given again",
        "segments",
        "hedged claims",
    )
    differing = [name for name, a, b in zip(names, product, reference, strict=True) if a != b]
    if differing:
        out.fail("L1", counterexample(response, f"the folds differ in {', '.join(differing)}"))


def check_prefix(
    out: Report,
    response: history.Response,
    account: reference_fold.Account,
    content: Content | None,
) -> None:
    """L2: every accepted token continues exactly the accepted prefix."""
    out.count("L2")
    if account.torn:
        out.fail(
            "L2",
            counterexample(
                response,
                "a record of the owner at the right index continues another prefix",
                account.torn[0],
            ),
        )
    elif (shared := _shared_token(account)) is not None:
        out.fail("L2", counterexample(response, "two claims with one fencing token", shared))
    elif (mixed := _other_model(account)) is not None:
        message = "tokens of two models or tokenizers"
        out.fail("L2", counterexample(response, message, mixed))
    elif content is not None and (
        problems := [p for p in content(response, account) if not p.startswith("text")]
    ):
        out.fail("L2", counterexample(response, problems[0]))


def _shared_token(account: reference_fold.Account) -> int | None:
    """Position of a claim that reuses another claim's fencing token; None if there is none.

    An equal claim is a copy from a retried append and does not count.
    """
    first: dict[str, records.Claim] = {}
    for at, e in enumerate(account.entries):
        if (
            isinstance(e.record, records.Claim)
            and first.setdefault(e.record.own, e.record) != e.record
        ):
            return at
    return None


def _other_model(account: reference_fold.Account) -> int | None:
    """Position of an accepted frame by an owner of another model or tokenizer than the first
    frame's of its segment (log rule §25); None if there is none."""
    models = {e.claim.own: (e.claim.model_rev, e.claim.tokenizer_digest) for e in account.epochs}
    begins = [epoch.start for epoch in account.continued]
    first: dict[int, tuple[str, str]] = {}
    for f in account.frames:
        model, segment = models[f.tok.own], bisect.bisect_left(begins, f.at)
        if first.setdefault(segment, model) != model:
            return f.at
    return None


def check_sequence(
    out: Report,
    response: history.Response,
    account: reference_fold.Account,
    settled: bool,
    fold_class: type[fold.Fold],
) -> None:
    """L3 on the events of readers, and the part of R1 that follows from the log."""
    if response.entries:
        out.count("L3")
        problem = _emitted_numbers(account, fold_class)
        if problem is not None:
            out.fail("L3", counterexample(response, *problem))
    if not response.requests:
        return
    out.count("R1")
    if account.ended_at is not None:
        return
    if settled:
        out.fail("R1", counterexample(response, "the request never reached an end"))
    else:
        out.note("response still open")


def _emitted_numbers(
    account: reference_fold.Account, fold_class: type[fold.Fold]
) -> tuple[str, int] | None:
    """The first mistake of a reader that emits the fold's effects: (what, position)."""
    real, expected, ends = fold_class(principal=account.principal), 0, 0
    for at, e in enumerate(account.entries):
        outcome = real.apply(e.record, e.offset, e.timestamp)
        if isinstance(outcome, fold.Ignored | fold.Yielded):
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


def check_text(
    out: Report,
    response: history.Response,
    account: reference_fold.Account,
    content: Content | None,
) -> None:
    """L5. Without the tokenizer only validity is judged. Ids that are characters spell the text."""
    out.count("L5")
    if any(0xD800 <= ord(c) <= 0xDFFF for c in account.text):
        out.fail("L5", counterexample(response, "half a surrogate pair in the text"))
    elif _are_characters(account):
        whole = "".join(map(chr, account.ids))
        if not whole.startswith(account.text):
            out.fail("L5", counterexample(response, "the text is not the text of its ids"))
    elif content is not None and (
        problems := [p for p in content(response, account) if p.startswith("text")]
    ):
        out.fail("L5", counterexample(response, problems[0]))


def _are_characters(account: reference_fold.Account) -> bool:
    """Whether the ids of the whole response are. Another model's are none (L17)."""
    owners = account.epochs[:1] if not account.continued else []
    return any(epoch.claim.tokenizer_digest == CHARACTERS for epoch in owners)


def check_usage(
    out: Report, response: history.Response, account: reference_fold.Account, settled: bool
) -> None:
    """L6. A retried append may double a usage record; equal copies are one bill."""
    bills = response.bills
    if not bills and (account.ended_at is None or not account.epochs):
        return
    out.count("L6")
    if account.ended_at is None:
        if bills:
            out.fail("L6", counterexample(response, "billed, but it has not ended"))
        return
    if not bills:
        if settled:
            out.fail("L6", counterexample(response, "it ended and was never billed"))
        else:
            out.note("response ended just now and not billed yet")
        return
    if len({(m.usage, m.status, m.ids_digest) for m in bills}) > 1:
        out.fail("L6", counterexample(response, f"{len(bills)} bills that differ"))
        return
    out.figures["usage records that repeat one"] += len(bills) - 1
    # Prices may have changed in between: the first one counts.
    out.figures["usage records of another cost than the first"] += sum(
        m.cost_nano != bills[0].cost_nano for m in bills
    )
    bill, counts = (
        bills[0],
        not account.epochs or account.epochs[0].claim.tokenizer_digest != CHARACTERS,
    )
    if counts and bill.usage.output_tokens != account.generated_count:
        out.fail(
            "L6",
            counterexample(
                response,
                f"billed {bill.usage.output_tokens} tokens, "
                f"generated were {account.generated_count}",
            ),
        )
    elif (
        counts
        and account.end is not None
        and account.epochs
        and bill.usage.input_tokens != account.prompt
    ):
        out.fail(
            "L6",
            counterexample(
                response,
                f"billed {bill.usage.input_tokens} prompt tokens, the claims say {account.prompt}",
            ),
        )
    elif account.end is not None and bill.usage != account.end.usage:
        out.fail("L6", counterexample(response, "the bill differs from the usage in END"))
    elif bill.usage.reasoning_tokens != account.reasoning:
        out.fail(
            "L6",
            counterexample(
                response,
                f"billed {bill.usage.reasoning_tokens} reasoning tokens, by the marks "
                f"{account.reasoning}",
            ),
        )
    elif bill.status != account.status:
        out.fail(
            "L6", counterexample(response, f"billed as {bill.status}, ended as {account.status}")
        )
    elif response.requests and bill.model != (account.served or response.requests[0].request.model):
        out.fail("L6", counterexample(response, f"billed is the model '{bill.model}'"))
    elif bill.ids_digest != account.chain:
        out.fail("L6", counterexample(response, "the bill names other tokens"))
    elif any(not _may_cost(m) for m in bills):
        out.fail("L6", counterexample(response, "a bill's cost is none of its tokens"))
    elif any(not _possible_waits(m, response, account) for m in bills):
        out.fail("L6", counterexample(response, "a bill's times are not those of its tokens"))


def _may_cost(bill: records.UsageRecord) -> bool:
    """Whether a bill may have its cost. Prices are not in the log. Without them it is only known
    that a cost needs tokens, and that a cached answer has no cost."""
    cost, tokens = bill.cost_nano, bill.usage.input_tokens + bill.usage.output_tokens
    return not cost or (cost > 0 and tokens > 0 and not bill.answer_of)


def _possible_waits(
    bill: records.UsageRecord, response: history.Response, account: reference_fold.Account
) -> bool:
    """Whether a bill may have its times: those of the log, or none, as old workers say."""
    first_generated = next(
        (i for i, f in enumerate(account.frames) if f.tok.seq >= account.copied), None
    )
    if first_generated is None or account.answer_of:
        return bill.first_token_ms is None and bill.inter_token_ms is None
    first, last = account.frames[first_generated], account.frames[-1]
    at, end_ms = account.entries[first.at].timestamp, account.entries[last.at].timestamp
    waits = {at - entry.timestamp for entry in response.requests}
    wait, step = bill.first_token_ms, bill.inter_token_ms
    later_ids = account.total - first.total
    if wait is not None and (wait < 0 or (waits and wait not in waits)):
        return False
    if step is None:
        return True
    # Of a mean that is written to the microsecond, half of one is lost for each token.
    return (
        later_ids > 0
        and not _are_characters(account)
        and step >= 0
        and abs(step * later_ids - (end_ms - at)) <= later_ids / 1000
    )


class Attempts(NamedTuple):
    """Attempts up to and including one claim: those that count, and all that were begun."""

    counted: int
    begun: int

    @property
    def used_up(self) -> bool:
        return self.counted > MAX_ATTEMPTS or self.begun > MAX_STARTS


def attempts(account: reference_fold.Account) -> list[Attempts]:
    """The attempts by claim (log rule §10)."""
    generated: Counter[str] = Counter()
    for f in account.frames:
        generated[f.tok.own] += len(f.tok.ids)
    result: list[Attempts] = []
    for epoch, before in zip(account.epochs, [None, *account.epochs], strict=False):
        if before is None:
            result.append(Attempts(1, 1))
            continue
        lost_race = (
            before.claim.own not in account.yielded
            and before.claim.worker != epoch.claim.worker
            and not epoch.claim.hedged
        )
        first = result[-1].counted == 1
        counts = lost_race and (first or generated[before.claim.own] < PROGRESS)
        result.append(Attempts(result[-1].counted + counts, result[-1].begun + lost_race))
    return result


def _attempts_that_ran(account: reference_fold.Account, reason: str) -> int:
    """Counted attempts by a dead letter's `reason`: a claim that only closes runs none."""
    counts = [n.counted for n in attempts(account)]
    return counts[-2] if reason in CLOSING_CODES and len(counts) > 1 else counts[-1]


def check_attempts(
    out: Report,
    response: history.Response,
    account: reference_fold.Account,
    settled: bool,
    *,
    has_dead: bool,
) -> None:
    """L7: attempts are bounded, and a response that failed by them has one dead letter."""
    if not account.epochs:
        return
    out.count("L7")
    closing = [
        t
        for i, (t, n) in enumerate(zip(account.epochs, attempts(account), strict=True))
        if n.used_up or i >= MAX_CLAIMS
    ]
    for t in closing:
        wrote = [
            at
            for at, e in enumerate(account.entries)
            if isinstance(e.record, records.Tok) and e.record.own == t.claim.own
        ]
        if wrote:
            out.fail("L7", counterexample(response, "more attempts than are allowed", wrote[0]))
            return
    if closing and account.end is not None and account.status != "failed":
        out.fail(
            "L7",
            counterexample(
                response,
                f"attempts are used up, yet it ended as {account.status}",
                account.ended_at,
            ),
        )
        return
    if not has_dead:
        return
    letters = len({(d.reason, d.attempts, d.prompt_digest) for d in response.dead})
    miscounted = [
        (d.attempts, ran)
        for d in response.dead
        if d.attempts != (ran := _attempts_that_ran(account, d.reason))
    ]
    out.figures["dead letters that repeat one"] += max(0, len(response.dead) - 1)
    if letters and account.status != "failed":
        out.fail(
            "L7", counterexample(response, f"a dead letter, but it is {account.status or 'open'}")
        )
    elif letters > 1:
        out.fail("L7", counterexample(response, f"{letters} dead letters that differ"))
    elif miscounted:
        count, ran = miscounted[0]
        out.fail("L7", counterexample(response, f"a dead letter says {count} attempts, {ran} ran"))
    elif closing and account.end is not None and account.end.reason == "failed" and not letters:
        if settled:
            out.fail("L7", counterexample(response, "failed by attempts without a dead letter"))
        else:
            out.note("response failed just now, without a dead letter yet")


def check_principal(
    out: Report, response: history.Response, account: reference_fold.Account
) -> None:
    """A1: only its owner cancels or deletes a response. Without a claim and a request its
    owner is not known."""
    for at, e in enumerate(account.entries):
        if isinstance(e.record, records.Cancel) and account.principal is not None:
            out.count("A1")
            if e.record.by != account.principal:
                out.fail("A1", counterexample(response, "cancelled by another principal", at))
    for by in response.deleted:
        if account.principal is not None:
            out.count("A1")
            if by != account.principal:
                out.fail("A1", counterexample(response, f"deleted by {by.key}, not by its owner"))


def check_expiry(out: Report, response: history.Response, account: reference_fold.Account) -> None:
    """R5: expired only after the time to live by the broker's clock, and without tokens."""
    if account.reason != "expired" or account.ended_at is None:
        return
    out.count("R5")
    if account.total:
        out.fail("R5", counterexample(response, f"expired with {account.total} tokens"))
        return
    if response.requests:
        waited = account.entries[account.ended_at].timestamp - min(
            a.timestamp for a in response.requests
        )
        if waited < response.requests[0].request.ttl_ms:
            out.fail(
                "R5",
                counterexample(
                    response, f"expired after {waited} ms of {response.requests[0].request.ttl_ms}"
                ),
            )
