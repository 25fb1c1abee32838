"""The records of `llm.history`: a response that has ended (pure; log rule §18).

A `History` is a function of the request and of the records that took effect, so every worker that
writes it writes the same bytes. It is compact: members that follow from others (fencing order,
hashes, the index of each frame) are left out, and `to_records` computes them again.

Its JSON is cut into parts that fit into a record. The key of part 0 is the response id, that of
part n is `<rid>:<n>`. A value is a line with its header, and then bytes:

    {"t":"PART","rid":…,"part":0,"of":2,"digest":…}\\n<bytes>

The topic also holds the chunks of files that stored requests name, because `llm.files` deletes
them (`file_key`).
"""

from __future__ import annotations

import hashlib
import itertools
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from tailrace.protocol import events, fold, ids, records

PART_BYTES: Final = 900_000
MAX_PARTS: Final = 1_000
_HEADER_BYTES: Final = 512
# A request is one level deeper in a HISTORY than in its own record.
_MAX_DEPTH: Final = records.MAX_DEPTH + 1
_PART_KEY: Final = re.compile(r"(resp_[A-Za-z0-9_-]{32})(?::([1-9][0-9]{0,2}))?\Z")
_FILE_KEY: Final = re.compile(r"file:([0-9a-f]{32}):([0-9a-f]{64}):(0|[1-9][0-9]{0,3})\Z")


class Claimed(msgspec.Struct, array_like=True, frozen=True):
    """A CLAIM that took effect before token number `at`; the other members are the record's."""

    at: records.Count
    own: str
    worker: str
    model_rev: str
    tokenizer_digest: str
    parser: str = ""
    prompt_tokens: records.Count = 0
    copied: records.Count = 0


class Frame(msgspec.Struct, array_like=True, frozen=True):
    """How many ids and characters a frame has."""

    ids: Annotated[int, msgspec.Meta(ge=1)]
    characters: records.Count


class FrameMarks(msgspec.Struct, array_like=True, frozen=True):
    """The marks of frame number `frame`."""

    frame: records.Count
    marks: Annotated[tuple[records.Mark, ...], msgspec.Meta(min_length=1)]


class FrameLp(msgspec.Struct, array_like=True, frozen=True):
    """The log probabilities of frame number `frame`."""

    frame: records.Count
    lp: Annotated[tuple[records.Lp, ...], msgspec.Meta(min_length=1)]


class ClaimServed(msgspec.Struct, array_like=True, frozen=True):
    """The model that claim number `claim` names as the one that answers (log rule §22)."""

    claim: records.Count
    served: Annotated[str, msgspec.Meta(min_length=1)]


class ClaimAnswer(msgspec.Struct, array_like=True, frozen=True):
    """The response whose ids claim number `claim` writes again (log rule §24)."""

    claim: records.Count
    answer_of: Annotated[str, msgspec.Meta(min_length=1)]


class History(msgspec.Struct, tag_field="t", tag="HISTORY", frozen=True, omit_defaults=True):
    """One response that has ended.

    `claims`, `frames`, `ids`, `text`: what was accepted, in order; `text` is without the end's.
    `marks` and `lp`: only of frames that have some, by frame. `dropped`: messages that its prompt
    lacks (log rule §21). `served`: only of claims that name a model. `answers`: only of claims
    that give an answer again. `continued`: the numbers of the claims that continue
    another model's text (log rule §25). `end`: the record that ended
    it, a CANCEL without its `echo`. `ended_ms`: broker time of that record.
    """

    rid: str
    owner: records.Owner
    request: records.Request
    claims: list[Claimed]
    frames: list[Frame]
    ids: list[records.TokenId]
    text: str
    end: records.End | records.Cancel
    ended_ms: records.Count
    marks: list[FrameMarks] = []
    lp: list[FrameLp] = []
    dropped: records.Count = 0
    served: list[ClaimServed] = []
    answers: list[ClaimAnswer] = []
    continued: list[records.Count] = []
    v: int = records.VERSION

    @property
    def model(self) -> str:
        """The model that answered: the last claim before the first token says which, or the last
        one that continues."""
        before = [number for number, claim in enumerate(self.claims) if claim.at == 0]
        before += [number for number in self.continued if self.claims[number].at]
        by_claim = {each.claim: each.served for each in self.served}
        return (by_claim.get(before[-1], "") if before else "") or self.request.model

    @property
    def consistent(self) -> bool:
        """Whether its members fit together, so that `to_records` can work."""
        if not self._is_one_response or not events.is_echo(self.request.echo, self.rid):
            return False
        ends = {0, *itertools.accumulate(frame.ids for frame in self.frames)}
        begins = [claim.at for claim in self.claims]
        if self.claims:
            began = begins[0] == 0 and begins == sorted(begins) and ends.issuperset(begins)
        else:
            began = not self.frames and isinstance(self.end, records.Cancel)
        return (
            began
            and sum(frame.ids for frame in self.frames) == len(self.ids)
            and sum(frame.characters for frame in self.frames) == len(self.text)
            and _are_numbers([each.frame for each in self.marks], len(self.frames))
            and _are_numbers([each.frame for each in self.lp], len(self.frames))
            and _are_numbers([each.claim for each in self.served], len(self.claims))
            and _are_numbers([each.claim for each in self.answers], len(self.claims))
            and _are_numbers(self.continued, len(self.claims))
        )

    @property
    def _is_one_response(self) -> bool:
        request, end = self.request, self.end
        if isinstance(end, records.Cancel):
            ended = end.by == self.owner and not end.withdrawn
        else:
            ended = end.seq == len(self.ids) and bool(self.claims)
            ended = ended and end.own == self.claims[-1].own
        return (
            ended
            and self.rid == request.rid == end.rid
            and self.owner == request.owner
            and request.v == request.version
            and end.v == records.version_of(end)
        )


def _are_numbers(numbers: Sequence[int], count: int) -> bool:
    """Whether these are numbers of some of `count` frames or claims, in order, each once."""
    return all(a < b for a, b in itertools.pairwise([-1, *numbers, count]))


# Measured: a frame without ids and text; a claim; a token in log probabilities.
_FRAME_BYTES: Final = 130
_CLAIM_BYTES: Final = 500
_LP_BYTES: Final = 160


@dataclass(slots=True)
class Draft:
    """A `History` while its response runs: the accepted records so far.

    Attributes:
        end: the END or CANCEL that took effect; None before.
        ended_ms: broker time of it.
        dropped: messages that its prompt lacks.
        size: its estimated bytes.
    """

    claims: list[Claimed] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    ids: array[int] = field(default_factory=lambda: array("I"))
    text: list[str] = field(default_factory=list)
    marks: list[FrameMarks] = field(default_factory=list)
    lp: list[FrameLp] = field(default_factory=list)
    served: list[ClaimServed] = field(default_factory=list)
    answers: list[ClaimAnswer] = field(default_factory=list)
    continued: list[int] = field(default_factory=list)
    end: records.End | records.Cancel | None = None
    ended_ms: int = 0
    dropped: int = 0
    size: int = 0

    def add(self, record: records.TokenRecord, timestamp: int) -> None:
        """A record that took effect, and its broker time. They are added in log order."""
        match record:
            case records.Tok():
                self._frame(record)
            case records.Claim():
                self._claim(record)
            case records.End():
                self.end, self.ended_ms = record, timestamp
                self.size += len(record.text_tail)
            case records.Cancel():
                self.end, self.ended_ms = msgspec.structs.replace(record, echo={}), timestamp
            case records.Yield():
                pass

    def _frame(self, record: records.Tok) -> None:
        if record.marks:
            self.marks.append(FrameMarks(len(self.frames), record.marks))
        if record.lp:
            self.lp.append(FrameLp(len(self.frames), record.lp))
            self.size += _LP_BYTES * sum(1 + len(each.top) for each in record.lp)
        self.frames.append(Frame(len(record.ids), len(record.text)))
        self.ids.extend(record.ids)
        self.text.append(record.text)
        self.size += _FRAME_BYTES + 4 * len(record.ids) + len(record.text)

    def _claim(self, record: records.Claim) -> None:
        # A first CLAIM shows that a CANCEL before it was a stranger's.
        self.end = None
        self.dropped = self.dropped if self.claims else record.dropped
        if record.served:
            self.served.append(ClaimServed(len(self.claims), record.served))
        if record.answer_of:
            self.answers.append(ClaimAnswer(len(self.claims), record.answer_of))
        if record.continues:
            self.continued.append(len(self.claims))
        self.claims.append(
            Claimed(
                len(self.ids),
                record.own,
                record.worker,
                record.model_rev,
                record.tokenizer_digest,
                record.parser,
                record.prompt_tokens,
                record.copied,
            )
        )
        self.size += _CLAIM_BYTES

    def to_history(self, request: records.Request) -> History:
        """The `History` of a response that has ended."""
        assert self.end is not None
        return History(
            request.rid,
            request.owner,
            msgspec.structs.replace(request, v=request.version),
            self.claims,
            self.frames,
            list(self.ids),
            "".join(self.text),
            msgspec.structs.replace(self.end, v=records.version_of(self.end)),
            self.ended_ms,
            self.marks,
            self.lp,
            self.dropped,
            self.served,
            self.answers,
            self.continued,
        )


def from_records(
    request: records.Request, accepted_records: Iterable[records.TokenRecord], ended_ms: int
) -> History:
    """The `History` of a response, from the records that took effect, in log order. The last is its
    END or CANCEL, with broker time `ended_ms`."""
    draft = Draft()
    for record in accepted_records:
        draft.add(record, ended_ms)
    return draft.to_history(request)


def to_records(history: History) -> Iterator[records.TokenRecord]:
    """The records that took effect again, in order. Applied to a fold or a stream they have the
    effects of the ones in the log."""
    marks = {each.frame: each.marks for each in history.marks}
    lp = {each.frame: each.lp for each in history.lp}
    claims = list(_claims(history))[::-1]
    seq, at, h = 0, 0, fold.H0
    own = ""
    for number, frame in enumerate(history.frames):
        while claims and claims[-1][0] <= seq:
            own = claims[-1][1].own
            yield claims.pop()[1]
        token_ids = history.ids[seq : seq + frame.ids]
        text = history.text[at : at + frame.characters]
        yield records.Tok(
            history.rid,
            own,
            seq,
            token_ids,
            text,
            h,
            marks=marks.get(number, ()),
            lp=lp.get(number, ()),
        )
        seq, at, h = seq + frame.ids, at + frame.characters, fold.roll(h, token_ids)
    for _, claim in reversed(claims):
        yield claim
    if isinstance(history.end, records.Cancel):
        yield msgspec.structs.replace(history.end, echo=history.request.echo)
    else:
        yield history.end


def _claims(history: History) -> Iterator[tuple[int, records.Claim]]:
    prev = None
    served = {each.claim: each.served for each in history.served}
    answers = {each.claim: each.answer_of for each in history.answers}
    for number, each in enumerate(history.claims):
        claim = records.Claim(
            history.rid,
            each.own,
            prev,
            history.owner,
            each.worker,
            "",
            0,
            each.model_rev,
            each.tokenizer_digest,
            each.prompt_tokens,
            history.request.echo if prev is None else {},
            each.parser,
            each.copied,
            history.dropped if prev is None else 0,
            served.get(number, ""),
            answers.get(number, ""),
            number in history.continued,
        )
        yield each.at, claim
        prev = each.own


def has_history(request: records.Request, ended: fold.Ended) -> bool:
    """Whether a response that has ended has a `History`: its client requested to store it and can
    read it."""
    return will_have_history(request) and ended.reason != "withdrawn"


def will_have_history(request: records.Request) -> bool:
    """Whether a response will have a `History` unless it is withdrawn."""
    return request.store and request.generate and events.is_response(request.echo)


class Part(NamedTuple):
    """One record of a `History`: part number `part` of `of`; `digest` is that of the whole."""

    rid: str
    part: int
    of: int
    digest: str
    data: bytes


class _Header(msgspec.Struct, tag_field="t", tag="PART", frozen=True):
    rid: str
    part: Annotated[int, msgspec.Meta(ge=0)]
    of: Annotated[int, msgspec.Meta(ge=1, le=MAX_PARTS)]
    digest: str


_encode = msgspec.json.Encoder().encode
_history = msgspec.json.Decoder(History)
_header = msgspec.json.Decoder(_Header)


def encode(history: History) -> bytes:
    """Its JSON, whole."""
    return _encode(history)


def decode(value: bytes) -> History | None:
    """A `History` of its whole JSON; None for garbage, and for one whose members do not fit."""
    if records.too_deep(value, _MAX_DEPTH):
        return None
    try:
        history = _history.decode(value)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    return history if history.v == records.VERSION and history.consistent else None


def part_key(rid: str, part: int) -> str:
    """The key of a part."""
    return f"{rid}:{part}" if part else rid


def part_keys(rid: str, count: int) -> list[str]:
    """The keys of all parts, each of which needs a tombstone for an erasure."""
    return [part_key(rid, part) for part in range(count)]


def parts(history: History) -> list[tuple[str, bytes]]:
    """Key and value of each of its records, part 0 first."""
    whole = encode(history)
    size = PART_BYTES - _HEADER_BYTES
    pieces = [whole[at : at + size] for at in range(0, len(whole), size)]
    return [
        (
            part_key(history.rid, n),
            _encode(_Header(history.rid, n, len(pieces), _digest(whole))) + b"\n" + data,
        )
        for n, data in enumerate(pieces)
    ]


def part_from_key(key: bytes | None) -> tuple[str, int] | None:
    """Response id and part number of a record key, also of a tombstone; None for a key of another
    kind."""
    match = _match(_PART_KEY, key)
    return None if match is None else (match[1], int(match[2] or 0))


def decode_part(key: bytes | None, value: bytes | None) -> Part | None:
    """The part that a record holds. None for a tombstone, for garbage, and where the key names
    another."""
    line, _, data = (value or b"").partition(b"\n")
    if len(line) > _HEADER_BYTES:
        return None
    try:
        head = _header.decode(line)
    except (msgspec.MsgspecError, UnicodeError):
        return None
    if part_from_key(key) != (head.rid, head.part) or head.part >= head.of:
        return None
    return Part(head.rid, head.part, head.of, head.digest, data)


def join(pieces: Iterable[Part]) -> History | None:
    """The `History` of all its parts, in any order. None if one is missing, the parts belong to
    several histories, or the bytes are not valid. Equal copies do not matter."""
    by_number = {each.part: each for each in pieces}
    whole = [by_number[n] for n in sorted(by_number)]
    if not whole or len(whole) != whole[0].of:
        return None  # the most frequent case, found without a digest
    value = b"".join(each.data for each in whole)
    if {_digest(value)} != {each.digest for each in whole}:
        return None
    history = decode(value)
    return history if history is not None and history.rid == whole[0].rid else None


def partition(rid: str, partitions: int) -> int:
    """Where the records of a response are written. Raises ids.InvalidId."""
    return ids.parse(rid).partition % partitions


_METADATA: Final = ":metadata"


def metadata_key(rid: str) -> str:
    """The key of the record with metadata that a response's owner gave it later."""
    return rid + _METADATA


def metadata_rid(key: bytes | None) -> str | None:
    """The response whose metadata a key names; None for a key of another kind."""
    rid = (key or b"").removesuffix(_METADATA.encode())
    part = part_from_key(rid) if rid != key else None
    return part[0] if part is not None and part[1] == 0 else None


def file_key(scope: str, sha256: str, chunk: int) -> str:
    """The key of a chunk of a file that a stored request names; `scope` is `Owner.cache_scope` of
    its owner. Its partition follows from the digest (`files.partition`), its value are bytes of the
    file."""
    return f"file:{scope}:{sha256}:{chunk}"


class FileChunk(NamedTuple):
    """The names in the key of a file's chunk. `scope`: `Owner.cache_scope` of those who may read
    it."""

    scope: str
    sha256: str
    chunk: int


def file_from_key(key: bytes | None) -> FileChunk | None:
    """The chunk that a key names; None for a key of another kind."""
    match = _match(_FILE_KEY, key)
    return None if match is None else FileChunk(match[1], match[2], int(match[3]))


def _match(shape: re.Pattern[str], key: bytes | None) -> re.Match[str] | Any:
    try:
        return shape.match((key or b"").decode("ascii"))
    except UnicodeError:
        return None


def _digest(whole: bytes) -> str:
    return hashlib.blake2b(whole, digest_size=16).hexdigest()
