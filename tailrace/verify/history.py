"""The records of a log by response, from one partition or from all of them (pure)."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from tailrace.protocol import activity, commits, ids, log_words, records, topics
from tailrace.verify import conversation_fold, transcript

_metered = msgspec.json.Decoder(records.UsageRecord)
# Topics with partitions of their own, not those of `llm.tokens`.
SIDE_TOPICS = (topics.USAGE, topics.DLQ, topics.DELETIONS, topics.ACTIVITY)
# Topics of which only the tags are judged.
TAGS_ONLY = (topics.META, topics.REVOCATIONS, topics.AUDIT, topics.CONVERSATIONS)
# Topics of whose records the tags are judged apart: of `llm.history` only some are read.
TAGGED_TOPICS = (*TAGS_ONLY, topics.HISTORY)
_dead = msgspec.json.Decoder(records.DeadLetter)


class RequestEntry(NamedTuple):
    """A request record and where it lies in the log."""

    topic: str
    offset: int
    timestamp: int
    request: records.Request


class RerouteEntry(NamedTuple):
    """A reroute and where it lies in the log."""

    topic: str
    offset: int
    reroute: records.Reroute


class Entry(NamedTuple):
    """A record of `llm.tokens` with its offset. `timestamp` is the broker's, in milliseconds."""

    offset: int
    timestamp: int
    record: records.TokenRecord


@dataclass(slots=True)
class Response:
    """Everything the log has about one response.

    Attributes:
        entries: its token records by offset, ignored ones included.
        requests: its requests by topic and offset. There are several when a gateway repeated an
            append of unknown outcome, and none once retention removed them.
        reroutes: the reroutes of its request.
        bills: its usage records.
        dead: its dead letters.
        deleted: who wrote that it is deleted.
        notices: its records in `llm.activity`.
        stored_records: its records of `llm.history`, tombstones too.
        whole: the log still has everything from the lower bound in the id on.
        foreign: the id was made on another log.
    """

    rid: str
    partition: int
    entries: list[Entry] = field(default_factory=list)
    requests: list[RequestEntry] = field(default_factory=list)
    reroutes: list[RerouteEntry] = field(default_factory=list)
    bills: list[records.UsageRecord] = field(default_factory=list)
    dead: list[records.DeadLetter] = field(default_factory=list)
    deleted: list[records.Owner] = field(default_factory=list)
    notices: list[activity.Notice] = field(default_factory=list)
    stored_records: list[log_words.Record] = field(default_factory=list)
    whole: bool = True
    foreign: bool = False

    @property
    def owner(self) -> records.Owner | None:
        """Its owner: from the request or, without one, from the first claim or cancel."""
        if self.requests:
            return self.requests[0].request.owner
        for e in self.entries:
            if isinstance(e.record, records.Claim):
                return e.record.owner
            if isinstance(e.record, records.Cancel):
                return e.record.by
        return None

    @property
    def oldest(self) -> int:
        """Broker time of its first record, ms."""
        return min(
            [*(e.timestamp for e in self.entries[:1]), *(a.timestamp for a in self.requests[:1])],
            default=0,
        )

    @property
    def newest(self) -> int:
        """Broker time of its last record, ms."""
        return max(
            [*(e.timestamp for e in self.entries), *(a.timestamp for a in self.requests)], default=0
        )


@dataclass(slots=True)
class Commit:
    """A committed offset of a request partition, with its metadata."""

    offset: int
    metadata: str

    @property
    def finished_below(self) -> int:
        """Every request below it has ended, as a worker says. Offsets that somebody else has moved
        say nothing."""
        return commits.finished_below((self.offset, self.metadata))


@dataclass
class History:
    """What was read of a log.

    Attributes:
        tag: the log's incarnation tag; None if it is unknown.
        partitions: number of token partitions; None if it is unknown.
        responses: by response id.
        places: (topic, partition) -> offset -> rid, or None for a record that is not a
            request. Request topics only.
        beginnings: (topic, partition) -> the oldest offset held.
        ends: (topic, partition) -> the offset up to which it was read.
        committed: by request (topic, partition).
        has_usage, has_dead: whether these topics are part of the input.
        garbage: records that every reader ignores, by topic.
        late: requests that the broker appended after their `append_by`. They do not count.
        misplaced: garbage that would be a record but for its key, one line each.
        keyed: the records were read with record keys.
        forgeries: records without a good tag.
        newest: highest broker time seen, ms.
        complete: it holds every partition of the log. Otherwise a missing response proves
            nothing.
        digests: (topic, partition) -> offset -> digest of the record's bytes; None if L4 is not
            judged.
        conversation_records: key and value of the records of `llm.conversations`, by partition.
    """

    tag: bytes | None = None
    partitions: int | None = None
    responses: dict[str, Response] = field(default_factory=dict)
    places: dict[tuple[str, int], dict[int, str | None]] = field(default_factory=dict)
    beginnings: dict[tuple[str, int], int] = field(default_factory=dict)
    ends: dict[tuple[str, int], int] = field(default_factory=dict)
    committed: dict[tuple[str, int], Commit] = field(default_factory=dict)
    has_usage: bool = False
    has_dead: bool = False
    garbage: Counter[str] = field(default_factory=Counter)
    late: int = 0
    misplaced: list[str] = field(default_factory=list)
    keyed: bool = False
    forgeries: list[log_words.Record] = field(default_factory=list)
    newest: int = 0
    complete: bool = True
    digests: dict[tuple[str, int], dict[int, str]] | None = None
    conversation_records: dict[int, list[tuple[bytes | None, bytes | None]]] = field(
        default_factory=dict
    )

    @functools.cached_property
    def trees(self) -> dict[str, conversation_fold.Tree]:
        """The conversations by id, once everything was read."""
        trees: dict[str, conversation_fold.Tree] = {}
        for pairs in self.conversation_records.values():
            trees |= conversation_fold.fold(pairs)
        return trees

    def response(self, rid: str, address: ids.Address) -> Response:
        """The response with this id; made if it is not known yet."""
        response = self.responses.get(rid)
        if response is None:
            foreign = self.tag is not None and address.incarnation != self.tag
            whole = self.beginnings.get((topics.TOKENS, address.partition), 0) <= address.offset
            response = self.responses[rid] = Response(
                rid, address.partition, whole=whole and not foreign, foreign=foreign
            )
        return response

    def add(self, r: log_words.Record) -> None:
        """Add one record. Within a partition, records come in offset order."""
        self.newest = max(self.newest, r.timestamp)
        if r.forgery:
            self.forgeries.append(r)
        if self.digests is not None:
            self.digests.setdefault((r.topic, r.partition), {})[r.offset] = transcript.digest(
                r.value or b""
            )
        if r.topic == topics.TOKENS:
            self._add_token(r)
        elif r.topic in SIDE_TOPICS:
            self._add_side(r)
        elif r.topic == topics.HISTORY:
            self._add_stored(r)
        elif r.topic == topics.CONVERSATIONS:
            if not r.forgery:
                self.conversation_records.setdefault(r.partition, []).append((r.key, r.value))
        elif r.topic.startswith("llm.requests."):
            self._add_request(r)

    def _address(self, rid: str, topic: str) -> ids.Address | None:
        try:
            return ids.parse(rid, self.partitions)
        except ids.InvalidId:
            self.garbage[topic] += 1
            return None

    def _under_its_key(self, r: log_words.Record, rid: str | None) -> bool:
        if rid is None or r.key == rid.encode():
            return rid is not None
        self.misplaced.append(
            f"{place(r)}: the key is {printable(r.key)}, the record is of {rid[:80]!r}"
        )
        return False

    def _add_token(self, r: log_words.Record) -> None:
        record = records.decode_token(r.value)
        if not self._under_its_key(r, record.rid if record else None):
            record = None
        address = self._address(record.rid, r.topic) if record is not None else None
        if record is None or address is None or address.partition != r.partition:
            self.garbage[r.topic] += record is None or address is not None
            return
        self.response(record.rid, address).entries.append(Entry(r.offset, r.timestamp, record))

    def _add_request(self, r: log_words.Record) -> None:
        place = self.places.setdefault((r.topic, r.partition), {})
        place[r.offset] = None
        reroute = records.reroute_of(r.key, r.value)
        if reroute is not None:
            self._add_reroute(r, reroute)
            return
        request = records.decode_request(r.value)
        if not self._under_its_key(r, request.rid if request else None):
            request = None
        address = self._address(request.rid, r.topic) if request is not None else None
        if request is None or address is None or address.partition != r.partition:
            self.garbage[r.topic] += request is None or address is not None
            return
        if request.append_by and r.timestamp > request.append_by:
            self.late += 1
            return
        place[r.offset] = request.rid
        self.response(request.rid, address).requests.append(
            RequestEntry(r.topic, r.offset, r.timestamp, request)
        )

    def _add_reroute(self, r: log_words.Record, reroute: records.Reroute) -> None:
        address = self._address(reroute.rid, r.topic)
        if address is None or address.partition != r.partition:
            self.garbage[r.topic] += address is not None
            return
        self.places[r.topic, r.partition][r.offset] = reroute.rid
        entry = RerouteEntry(r.topic, r.offset, reroute)
        self.response(reroute.rid, address).reroutes.append(entry)

    def _add_stored(self, r: log_words.Record) -> None:
        """Files and metadata that lie in the same topic are not judged."""
        name = stored_rid(r.key, self.partitions)
        if name is not None and not r.forgery:
            self.response(*name).stored_records.append(r)

    def _add_side(self, r: log_words.Record) -> None:
        record = side_records(r)
        address = self._address(record.rid, r.topic) if record is not None else None
        if record is None or address is None:
            self.garbage[r.topic] += record is None and r.value is not None
            return
        if isinstance(record, records.Deleted):
            if self._under_its_key(r, record.rid) and record.rid in self.responses:
                self.responses[record.rid].deleted.append(record.by)
            return
        if isinstance(record, activity.Started | activity.Ended):
            # The retention of its topic is longer than that of the response.
            if record.rid in self.responses:
                self.responses[record.rid].notices.append(record)
            return
        response = self.response(record.rid, address)
        if isinstance(record, records.UsageRecord):
            response.bills.append(record)
        else:
            response.dead.append(record)


def stored_rid(key: bytes | None, partitions: int | None) -> tuple[str, ids.Address] | None:
    """The response of whose content a key of `llm.history` names a part, and its address; None for
    another key."""
    rid, _, part = (key or b"").decode(errors="replace").partition(":")
    if part and not part.isdigit():
        return None
    try:
        return rid, ids.parse(rid, partitions)
    except ids.InvalidId:
        return None


def place(r: log_words.Record) -> str:
    """Where a record lies, for people."""
    return f"{r.topic}[{r.partition}] at {r.offset}"


def printable(key: bytes | None) -> str:
    """A key, for people; the bytes may be anything."""
    return repr((key or b"").decode(errors="replace")[:80])


def side_records(
    r: log_words.Record,
) -> records.UsageRecord | records.DeadLetter | records.Deleted | activity.Notice | None:
    """Decode a record of the topics in `SIDE_TOPICS`. Returns None for garbage."""
    if r.topic == topics.ACTIVITY:
        return None if r.forgery else activity.decode(r.key, r.value)
    if r.topic == topics.DELETIONS:
        return records.decode_deletion(r.value)
    try:
        return (_metered if r.topic == topics.USAGE else _dead).decode(r.value or b"")
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def gather(
    records_: Iterable[log_words.Record],
    *,
    incarnation: str | None = None,
    partitions: int | None = None,
) -> History:
    """Make a history from records of all topics."""
    tag = ids.incarnation_tag(incarnation) if incarnation else None
    history = History(tag=tag, partitions=partitions, has_usage=True, has_dead=True)
    for r in records_:
        history.add(r)
    return history
