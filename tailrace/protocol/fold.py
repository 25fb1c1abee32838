"""The reader rule: how records of one response become one token sequence (pure; log rule §4).

    phase NEW  --CLAIM prev==null-->  LIVE  --END of the owner, complete-->  DONE
                                      LIVE  --CLAIM prev==owner-->           LIVE (epoch + 1)
    phase NEW or LIVE                 --CANCEL of the principal-->           DONE
    everything else                   ignored: counted by reason, no effect

Readers that apply the same prefix of the partition hold the same state. What was accepted is never
revoked. There is at most one end. The rule itself: log rule §4.

"Owner" is who may write (a fencing token), "principal" is whose response it is. A reader knows the
principal from the first CLAIM, or earlier from the request (`belongs_to`). While it knows neither,
it treats a CANCEL as the principal's; a first CLAIM for another principal shows that it was not.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from tailrace.protocol import items, records

H0 = "0" * 16
HISTORY_LOST: Final = "history_lost"  # the reason of an end, and the code of its error


class Phase(enum.Enum):
    """Where a response stands. DONE is final."""

    NEW = "new"
    LIVE = "live"
    DONE = "done"


class Ignored(enum.Enum):
    """Why a record was ignored, that is, had no effect."""

    SEEN = "seen"
    AFTER_DONE = "after_done"
    LOST_RACE = "lost_race"
    STALE_OWNER = "stale_owner"
    DUPLICATE = "duplicate"
    GAP = "gap"
    CHAIN = "chain"
    END = "end"
    FOREIGN = "foreign"


@dataclass(frozen=True, slots=True)
class Claimed:
    """A CLAIM took effect. `epoch` 1 is the first claim; a higher one is a takeover, which readers
    show as "resumed". `served`: `Fold.served` from now on. `model_rev`: the revision of
    `Fold.model`. `answer_of`: `Fold.answer_of` from now on. `continues`: a segment
    begins (log rule §25)."""

    claim: records.Claim
    epoch: int
    served: str = ""
    model_rev: str = ""
    answer_of: str = ""
    continues: bool = False


@dataclass(frozen=True, slots=True)
class Accepted:
    """Tokens `seq .. seq+len(ids)-1` are accepted, with the frame's text, marks and log
    probabilities."""

    seq: int
    ids: list[int]
    text: str
    marks: tuple[records.Mark, ...] = ()
    lp: tuple[records.Lp, ...] = ()


@dataclass(frozen=True, slots=True)
class Ended:
    """The end. `reason` is END's, or cancelled, withdrawn, expired or history_lost. `status` is the
    one clients see: completed, incomplete, failed or cancelled. `timestamp` is the broker's, in ms.
    `marks` are those in `text_tail`. `vectors`: of the inputs that were to be embedded. `failure`:
    the member `failed` of a CANCEL. `param`: the request's field at fault, or ""."""

    reason: str
    status: str
    text_tail: str
    usage: records.Usage
    error: tuple[str, str] | None
    timestamp: int
    marks: tuple[records.Mark, ...] = ()
    vectors: tuple[bytes, ...] = ()
    failure: records.Failure = ""
    param: str = ""


@dataclass(frozen=True, slots=True)
class Yielded:
    """The owner asks to be taken over now."""

    own: str


Effect = Claimed | Accepted | Ended | Yielded
Outcome = Effect | Ignored

STATUS_OF_REASON = {
    "stop": "completed",
    "warmup": "completed",
    "length": "incomplete",
    "expired": "failed",
    "failed": "failed",
}


# A copy costs a fifth less than a new one, and every reader makes one for each token.
_EMPTY = hashlib.blake2b(digest_size=8)


# What a CANCEL says that ends a response as failed.
_FAILURES = {
    "expired": "The request waited longer than its time to live and was not started.",
    HISTORY_LOST: "The log has lost the beginning of this response, and its worker is gone.",
}


def status_of(end: records.End | records.Cancel) -> str:
    """The status that clients see, by the record that ended the response."""
    if isinstance(end, records.Cancel):
        return "failed" if end.failed else "cancelled"
    return STATUS_OF_REASON.get(end.reason, "failed")


def roll(h: str, ids: Iterable[int]) -> str:
    """The rolling 8-byte hash after `ids`. It is rolled per token, so that it does not depend on
    how tokens were cut into frames."""
    state = bytes.fromhex(h)
    for token in ids:
        digest = _EMPTY.copy()
        digest.update(state + token.to_bytes(4, "little"))
        state = digest.digest()
    return state.hex()


class Former(NamedTuple):
    """What a response had when another model continued its text (log rule §25): the number of its
    ids and characters, and the model that had answered, as `Fold.served`."""

    ids: int = 0
    characters: int = 0
    served: str = ""


class Pace(NamedTuple):
    """When the tokens of a response were accepted, by frames: broker times in ms of the first frame
    whose ids were generated and of the last one, 0 before; and the number of ids up to the end of
    that first frame. Ids that were copied (log rule §19) have no time."""

    first_ms: int = 0
    last_ms: int = 0
    first_ids: int = 0

    def token_ms(self, total: int) -> float | None:
        """Mean time between two tokens in ms, to the microsecond, of a response of `total` ids;
        None without two frames. Tokens of one frame came together, so those of the first frame are
        no interval."""
        later_ids = total - self.first_ids
        if not self.first_ms or later_ids <= 0:
            return None
        return round((self.last_ms - self.first_ms) / later_ids, 3)


@dataclass(slots=True)
class Fold:
    """State of one response under the reader rule.

    Attributes:
        owner: fencing token of the accepted claim; None while NEW.
        epoch: number of accepted claims.
        next: index of the next token.
        h: rolling hash of all accepted ids.
        phase: NEW, LIVE or DONE.
        ids: all accepted ids; stored only if `retain_ids` (a worker needs them for takeover, a
            reader does not), else empty.
        text: all accepted text as UTF-8; stored as `ids` are.
        text_length: characters of text accepted so far.
        mark_count: marks accepted so far. Like `text_length` without those of an END.
        last_mark: the last of them in the present segment, `at` and `ids` counted from the
            beginning of the response; None before the first. A worker that takes over compares it
            with its own.
        reasoning: ids that belong to reasoning items, of those accepted so far and not copied.
        copied: how many ids the response begins with that were copied (log rule §19). By the last
            claim before its first token that has some.
        first: the first accepted claim; None while NEW.
        model: model revision, tokenizer and parser of the claim under which its first token was
            made; of the last claim while there is none; of the last one that continues. These made
            all tokens of the present segment.
        served: public name of the model that answers, if it is not the requested one (log rule
            §22); else empty. By the last claim before its first token, or the last one that
            continues.
        answer_of: the response whose answer is given again (log rule §24); empty: it is generated.
            By the last claim before its first token.
        former: for each claim that continues, the state before it. The present segment begins
            after the last one.
        prompt: length of the prompt in tokens. By the last claim before its first token that says
            it: another model may have another tokenizer.
        topic: the request topic that the owner's claim names; empty while NEW.
        claims: accepted claims in order, as (fencing token, worker).
        starts: for each of them, how many tokens were accepted before it.
        yielded: fencing tokens whose workers asked to be taken over.
        hedged: fencing tokens of claims that replaced an owner whose first token was late (log rule
            §26).
        ended: the end; None until DONE.
        principal: whose response it is, according to the request; None while no request is known.
            The first claim has precedence.
        cancelled_by: the ends that CANCELs before any claim were, by who wrote them.
        last_offset: offset of the last applied record, -1 before the first. After a reconnect
            records at older offsets come again.
        last_active: broker time in ms of the last record that had an effect; 0 before.
        pace: when its tokens were appended, by the broker's clock.
        ignored: ignored records, counted by reason.
    """

    retain_ids: bool = False
    owner: str | None = None
    epoch: int = 0
    next: int = 0
    h: str = H0
    phase: Phase = Phase.NEW
    ids: list[int] = field(default_factory=list)
    text: bytearray = field(default_factory=bytearray)
    text_length: int = 0
    mark_count: int = 0
    last_mark: records.Mark | None = None
    reasoning: int = 0
    copied: int = 0
    first: records.Claim | None = None
    model: tuple[str, str, str] = ("", "", "")
    served: str = ""
    answer_of: str = ""
    former: list[Former] = field(default_factory=list)
    prompt: int = 0
    topic: str = ""
    claims: list[tuple[str, str]] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    yielded: set[str] = field(default_factory=set)
    hedged: set[str] = field(default_factory=set)
    ended: Ended | None = None
    principal: records.Owner | None = None
    cancelled_by: dict[records.Owner, Ended] = field(default_factory=dict)
    last_offset: int = -1
    last_active: int = 0
    pace: Pace = field(default_factory=Pace)
    ignored: dict[Ignored, int] = field(default_factory=dict)

    def apply(self, record: records.TokenRecord, offset: int, timestamp: int = 0) -> Outcome:
        """Apply the record at `offset`; `timestamp` is the broker's, in ms."""
        if offset <= self.last_offset:
            return Ignored.SEEN  # not counted: no writer caused it
        self.last_offset = offset
        outcome = self._decide(record, timestamp)
        if isinstance(outcome, Ignored):
            self.ignored[outcome] = self.ignored.get(outcome, 0) + 1
        elif not isinstance(outcome, Yielded):
            self.last_active = timestamp
            if isinstance(outcome, Accepted):
                self._record_pace(timestamp)
        return outcome

    @property
    def generated_count(self) -> int:
        """How many of the accepted ids were generated for this response."""
        return max(0, self.next - self.copied)

    @property
    def dropped(self) -> int:
        """How many messages were left out of the prompt (log rule §21)."""
        return self.first.dropped if self.first is not None else 0

    @property
    def before(self) -> Former:
        """The state when the present segment began."""
        return self.former[-1] if self.former else Former()

    @property
    def open_kind(self) -> str:
        """The kind of the item that the next character belongs to (log rule §16)."""
        return "m" if self.last_mark is None else self.last_mark.kind

    def belongs_to(self, principal: records.Owner) -> None:
        """The request of this response was read: a CANCEL before any claim counts only if it is by
        `principal`. No effect after a claim, which says it too."""
        if self.owner is not None:
            return
        self.principal = principal
        self.ended = self.cancelled_by.get(principal)
        self.phase = Phase.NEW if self.ended is None else Phase.DONE

    def _decide(self, record: records.TokenRecord, timestamp: int) -> Outcome:
        if self.phase is Phase.DONE and (self.owner is not None or not self._claimable(record)):
            if self.owner is None and isinstance(record, records.Cancel):
                self._note_cancel(record, timestamp)
            return Ignored.AFTER_DONE
        match record:
            case records.Tok():
                return self._token(record)
            case records.Claim():
                return self._claim(record)
            case records.End():
                return self._end(record, timestamp)
            case records.Cancel():
                return self._cancel(record, timestamp)
            case records.Yield():
                return self._yield(record)

    def _claim(self, record: records.Claim) -> Outcome:
        if record.prev != self.owner:
            return Ignored.LOST_RACE
        if self.owner is None and not self._claimable(record):
            return Ignored.AFTER_DONE
        self.owner = record.own
        self.epoch += 1
        self.phase = Phase.LIVE
        self.first = self.first or record
        if not self.next:
            self.model = (record.model_rev, record.tokenizer_digest, record.parser)
            self.copied = record.copied or self.copied
            self.served = record.served
            self.answer_of = record.answer_of
            self.prompt = record.prompt_tokens or self.prompt
        elif record.continues:
            self.former.append(Former(self.next, self.text_length, self.served))
            self.model = (record.model_rev, record.tokenizer_digest, record.parser)
            self.served = record.served
            self.last_mark = None
        self.topic = record.req_topic
        self.ended = None
        self.cancelled_by.clear()
        self.claims.append((record.own, record.worker))
        self.starts.append(self.next)
        if record.hedged:
            self.hedged.add(record.own)
        continues = record.continues and self.next > 0
        return Claimed(record, self.epoch, self.served, self.model[0], self.answer_of, continues)

    def _token(self, record: records.Tok) -> Outcome:
        if record.own != self.owner:
            return Ignored.STALE_OWNER
        if record.seq < self.next:
            return Ignored.DUPLICATE
        if record.seq > self.next:
            return Ignored.GAP
        if record.parent != self.h:
            return Ignored.CHAIN
        if record.marks or self.last_mark is not None:
            self._count_items(record)
        self.next += len(record.ids)
        self.h = roll(self.h, record.ids)
        self.text_length += len(record.text)
        if self.retain_ids:
            self.ids.extend(record.ids)
            self.text += record.text.encode(errors="surrogatepass")
        return Accepted(record.seq, record.ids, record.text, record.marks, record.lp)

    def _record_pace(self, timestamp: int) -> None:
        if self.pace.first_ms:
            self.pace = self.pace._replace(last_ms=timestamp)
        elif self.next > self.copied:  # no frame has ids of both sorts
            self.pace = Pace(timestamp, timestamp, self.next)

    def _count_items(self, record: records.Tok) -> None:
        """Before the frame is counted: its marks, and its ids by the item they belong to."""
        kind = self.open_kind
        for piece in items.pieces(record.text, record.marks, len(record.ids)):
            kind = piece.mark.kind if piece.mark is not None else kind
            if kind == "r" and self.next >= self.copied:  # no frame has ids of both sorts
                self.reasoning += piece.ids
        if record.marks:
            self.mark_count += len(record.marks)
            last = record.marks[-1]
            self.last_mark = msgspec.structs.replace(
                last, at=self.text_length + last.at, ids=self.next + last.ids
            )

    def _end(self, record: records.End, timestamp: int) -> Outcome:
        if record.own != self.owner or record.seq != self.next or record.digest != self.h:
            return Ignored.END
        return self._finish(
            Ended(
                record.reason,
                status_of(record),
                record.text_tail,
                record.usage,
                record.error,
                timestamp,
                record.marks,
                record.vectors,
                param=record.param,
            )
        )

    def _claimable(self, record: records.TokenRecord) -> bool:
        """Whether it is a first CLAIM for a principal who has not cancelled."""
        return (
            isinstance(record, records.Claim)
            and record.prev is None
            and record.owner not in self.cancelled_by
        )

    def _cancel(self, record: records.Cancel, timestamp: int) -> Outcome:
        if self.owner is None:
            self._note_cancel(record, timestamp)
        elif record.failed == "expired":
            return Ignored.LOST_RACE
        principal = self.first.owner if self.first is not None else self.principal
        if principal is not None and record.by != principal:
            return Ignored.FOREIGN
        usage = records.Usage(
            input_tokens=self.prompt,
            output_tokens=self.generated_count,
            reasoning_tokens=self.reasoning,
        )
        return self._finish(_cancelled(record, usage, timestamp))

    def _note_cancel(self, record: records.Cancel, timestamp: int) -> None:
        self.cancelled_by.setdefault(record.by, _cancelled(record, records.Usage(), timestamp))

    def _finish(self, ended: Ended) -> Ended:
        self.phase = Phase.DONE
        self.ended = ended
        return ended

    def _yield(self, record: records.Yield) -> Outcome:
        if record.own != self.owner:
            return Ignored.STALE_OWNER
        self.yielded.add(record.own)
        return Yielded(record.own)


def _cancelled(record: records.Cancel, usage: records.Usage, timestamp: int) -> Ended:
    reason = record.failed or ("withdrawn" if record.withdrawn else "cancelled")
    error = (record.failed, _FAILURES[record.failed]) if record.failed else None
    return Ended(reason, status_of(record), "", usage, error, timestamp, failure=record.failed)
