"""The streams of one instance: watchers by response, and records turned into events (pure).

A stream begins in one of two ways. The gateway that minted its id *opens* it before the request is
appended, so the tail alone is enough. Every other instance *looks it up*: it registers the stream
at a tail position X and replays its records below X from the log. Live records (X and above) are
held back until the replay is done. Either way every record of the response passes the fold exactly
once and in offset order.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tailrace.delivery import kept_bytes, outbox
from tailrace.protocol import events, fold, log_words, queue_place, records


@dataclass(slots=True, eq=False)
class Stream:
    """One response as this instance sees it.

    Attributes:
        owner: whose it is; None until the first record (or the request) was seen.
        series: event numbering; None until the echo is known.
        emitted: all events so far, index = sequence_number; only grows.
        size: bytes of their bodies.
        held: live records that wait for the replay to finish; None when not replaying.
        hidden: `response.created` waits for the broker's acknowledgement; events pile up unseen
            until then.
        boxes: subscribers.
        request: the request record of the log, if it was needed (opened here, or found in the
            request topic). A response that has ended here has none.
        ttl_ms: how long the request may wait for a worker; 0 if it is not known here.
        kept: counts the bytes of `request`.
        replayed: counts the stream's bytes among its owner's replays; None if it was opened here.
        holders: calls that use the stream right now; it is not dropped while > 0.
        idle_since: when the last subscriber left (monotonic seconds of the caller); 0 while
            watched.
        archived: it comes from the archive, and so does its request.
        moment: the newest event with its place in the queue; None once it has begun.
        lost: why the log can no longer serve it; None normally.
        cancel: a CANCEL that was read before the owner was known; None normally.
        now: monotonic seconds of the last dispatch. With it outboxes distinguish a burst from a
            slow subscriber.
    """

    rid: str
    partition: int
    state: fold.Fold = field(default_factory=fold.Fold)
    owner: records.Owner | None = None
    series: events.Series | None = None
    emitted: list[events.Event] = field(default_factory=list)
    size: int = 0
    held: list[tuple[records.TokenRecord, int, int]] | None = None
    hidden: bool = False
    boxes: set[outbox.Outbox] = field(default_factory=set)
    request: bytes | None = None
    ttl_ms: int = 0
    kept: kept_bytes.KeptBytes | None = None
    replayed: kept_bytes.Account | None = None
    holders: int = 0
    idle_since: float = 0.0
    archived: bool = False
    moment: events.Event | None = None
    lost: Exception | None = None
    cancel: records.Cancel | None = None
    now: float = 0.0
    _unseen: int = 0

    @property
    def done(self) -> bool:
        """Whether the end was seen."""
        return self.state.phase is fold.Phase.DONE

    @property
    def waits(self) -> bool:
        """Whether subscribers wait for its beginning."""
        return (
            bool(self.boxes)
            and self.series is not None
            and not (self.series.claimed or self.done or self.hidden)
            and self.held is None
            and self.lost is None
        )

    @property
    def model(self) -> str:
        """The requested model; empty while the echo is not known."""
        return str(self.series.base["model"]) if self.series is not None else ""

    @property
    def unused(self) -> bool:
        """Whether it has no watcher and none is being added."""
        return not self.boxes and not self.holders and self.held is None and not self.hidden

    @property
    def memory(self) -> int:
        """Its estimated bytes."""
        logprobs = self.series.logprob_bytes if self.series is not None else 0
        vectors = sum(map(len, self.vectors))
        return STREAM_BYTES + EVENT_BYTES * len(self.emitted) + self.size + logprobs + vectors

    @property
    def vectors(self) -> tuple[bytes, ...]:
        """The vectors of an embeddings request that has ended; else none."""
        return self.state.ended.vectors if self.state.ended is not None else ()

    @property
    def shown(self) -> bool:
        """Whether clients may read it as a response."""
        return self.series is None or events.is_response(self.series.base)

    def identify(self, owner: records.Owner, echo: dict[str, Any]) -> None:
        """Owner and static part are known now: the series can start."""
        if self.series is None and events.is_echo(echo, self.rid):
            self.owner = owner
            self.state.belongs_to(owner)
            self.series = events.Series(echo)
            self._emit(self.series.open())
            if self.state.ended is not None:  # cancelled before this instance knew by whom
                self._emit(self.series.apply(self.state.ended))

    def identify_by_cancel(self) -> None:
        """Only a CANCEL names the owner. The response has neither a claim nor a request, so nothing
        else of it can be shown."""
        if self.cancel is not None:
            self.identify(self.cancel.by, self.cancel.echo)

    def store_request(self, value: bytes) -> None:
        """Store the request record. The owner is known.

        Raises:
            errors.ApiError: 429, the owner's requests take too much memory.
        """
        if self.owner is not None and self.kept is not None and self.request is None:
            self.kept.reserve(self.owner.key, len(value))
        self.request = value

    def forget_request(self) -> None:
        """Drop the request record; idempotent. The log has it."""
        if self.owner is not None and self.kept is not None and self.request is not None:
            self.kept.release(self.owner.key, len(self.request))
        self.request = None

    def charge_replay(self, budget: kept_bytes.KeptBytes) -> None:
        """Count its bytes, until it is dropped. The owner is known.

        Raises:
            errors.ApiError: 429, the owner's replays take too much memory.
        """
        assert self.owner is not None
        account = budget.account(self.owner.key)
        account.reserve(self.memory)
        self.replayed = account

    def forget(self) -> None:
        """The stream was dropped: stop counting its bytes."""
        self.forget_request()
        if self.replayed is not None:
            self.replayed.release(self.replayed.size)

    def live(self, record: records.TokenRecord, offset: int, timestamp: int) -> fold.Outcome | None:
        """A record from the tail; None while it is held back."""
        if self.held is not None:
            self.held.append((record, offset, timestamp))
            return None
        return self.apply(record, offset, timestamp)

    def apply(self, record: records.TokenRecord, offset: int, timestamp: int) -> fold.Outcome:
        """Fold one record and emit the events that follow from it."""
        outcome = self.state.apply(record, offset, timestamp)
        if isinstance(outcome, fold.Ignored):
            return outcome
        history_lost = isinstance(outcome, fold.Ended) and outcome.reason == fold.HISTORY_LOST
        if history_lost and not self.archived:
            # Only this instance has it in memory, and all readers must get the same answer.
            self.fail(log_words.HistoryLost(f"the log no longer holds all of {self.rid}"))
            return outcome
        if isinstance(record, records.Claim):
            if self.owner is not None and record.owner != self.owner:
                # A principal who forges a CANCEL or a request must not see another's answer.
                self.fail(log_words.HistoryLost(f"{self.rid} is another principal's"))
                return outcome
            self.identify(record.owner, record.echo)
            # A claim proves that the request is in the log, also without its acknowledgement.
            self.show()
        elif isinstance(record, records.Cancel):
            if self.series is None:
                self.cancel = record
            self.show()
        if self.series is not None and self.lost is None:
            self._emit(self.series.apply(outcome))
        return outcome

    def release(self) -> None:
        """The replay has reached the position at which the live records begin."""
        held, self.held = self.held or [], None
        for record, offset, timestamp in held:
            self.apply(record, offset, timestamp)

    def show(self) -> None:
        """The broker acknowledged the request: hidden events become visible."""
        if self.hidden:
            self.hidden = False
            self._announce(self._unseen)
            self._unseen = 0

    def publish(self, place: queue_place.Place) -> None:
        """Send every subscriber the response's place in the queue; it `waits`."""
        assert self.series is not None
        self.moment = self.series.waiting(place)
        for box in self.boxes:
            box.publish(self.moment)

    def fail(self, error: Exception) -> None:
        """The log can no longer serve this response; wakes every subscriber."""
        self.lost = error
        for box in self.boxes:
            box.on_arrival(0, self.now)

    def subscribe(self, after: int, wake: Callable[[], None]) -> outbox.Outbox:
        """Add a subscriber that has seen everything up to `after` (-1: nothing)."""
        box = outbox.Outbox(self.emitted, after + 1, wake)
        self.boxes.add(box)
        self.idle_since = 0.0
        if self.done and not self.hidden:
            box.finish(len(self.emitted) - 1)
        if self.moment is not None:
            box.publish(self.moment)
        return box

    @contextlib.contextmanager
    def in_use(self, clock: Callable[[], float]) -> Iterator[None]:
        """It is not dropped inside. `clock`: monotonic seconds."""
        self.holders += 1
        try:
            yield
        finally:
            self.holders -= 1
            if not self.boxes:
                self.idle_since = clock()

    def unsubscribe(self, box: outbox.Outbox, now: float) -> None:
        """Remove a subscriber; idempotent."""
        self.boxes.discard(box)
        box.close()
        if not self.boxes:
            self.idle_since = now
            if self.done:
                self.forget_request()

    def _emit(self, new: list[events.Event]) -> None:
        if not new:
            return
        self.moment = None
        self.emitted.extend(new)
        size = sum([len(e.body) for e in new])  # a list costs less where it has one item
        self.size += size
        if self.hidden:
            self._unseen += size
        else:
            self._announce(size)

    def _announce(self, size: int) -> None:
        last = len(self.emitted) - 1
        ended = bool(self.emitted) and self.emitted[-1].terminal
        for box in self.boxes:
            box.on_arrival(size, self.now)
            if ended:
                box.finish(last)


UNWATCHED_S = 30.0  # how long a stream without subscribers stays
UNWATCHED_BYTES = 64 << 20
# Measured: bytes of a stream and of an event, without the bodies.
STREAM_BYTES = 8_000
EVENT_BYTES = 226


class Hub:
    """All streams of this instance, by the bytes of their key: records of other responses are
    skipped before they are decoded. `on_ignored(reason)` is called for each ignored record;
    `garbage` is one that did not decode."""

    def __init__(self, on_ignored: Callable[[str], None] | None = None) -> None:
        self._streams: dict[bytes, Stream] = {}
        self._load: dict[int, int] = {}
        self._on_ignored = on_ignored or (lambda _reason: None)

    def __len__(self) -> int:
        return len(self._streams)

    def get(self, rid: str) -> Stream | None:
        """The stream of `rid`, if this instance has it."""
        return self._streams.get(rid.encode())

    def add(self, stream: Stream) -> None:
        """Register; `rid` must be new."""
        key = stream.rid.encode()
        if key in self._streams:
            raise ValueError(f"{stream.rid} is registered already")
        self._streams[key] = stream
        self._load[stream.partition] = self._load.get(stream.partition, 0) + 1

    def drop(self, rid: str) -> None:
        """Forget; idempotent."""
        stream = self._streams.pop(rid.encode(), None)
        if stream is not None:
            self._load[stream.partition] -= 1
            stream.forget()

    def waiting(self) -> list[Stream]:
        """Streams whose subscribers wait for the beginning."""
        return [s for s in self._streams.values() if s.waits]

    def unclaimed(self) -> list[Stream]:
        """Streams of requests that are in the log and not claimed by a worker."""
        return [
            s
            for s in self._streams.values()
            if s.ttl_ms
            and s.state.phase is fold.Phase.NEW
            and not s.hidden
            and s.held is None
            and s.lost is None
        ]

    def load(self, partition: int) -> int:
        """Streams registered on `partition`."""
        return self._load.get(partition, 0)

    def streams_on(self, partition: int) -> list[Stream]:
        """Streams registered on `partition`."""
        return [s for s in self._streams.values() if s.partition == partition]

    def dispatch(self, record: log_words.Record, now: float = 0.0) -> None:
        """One record from the tail, read at `now` (monotonic seconds)."""
        stream = self._streams.get(record.key or b"")
        if stream is None:
            return
        token_record = records.token_of(record.key, record.value)
        # With offsets of another partition the fold would ignore its next records as seen.
        if token_record is None or record.partition != stream.partition:
            self._on_ignored("garbage")
            return
        stream.now = now
        outcome = stream.live(token_record, record.offset, record.timestamp)
        if stream.lost is not None:
            self.drop(stream.rid)
        if isinstance(outcome, fold.Ignored):
            self._on_ignored(outcome.value)

    def drop_unused(self, owner: records.Owner, before: float) -> None:
        """Drop the streams of `owner` without a watcher since `before` (monotonic seconds).
        A new one is about to be watched."""
        idle = [s for s in self._streams.values() if s.owner == owner and s.unused]
        for s in idle:
            if 0 < s.idle_since < before:
                self.drop(s.rid)

    def sweep(self, now: float) -> None:
        """Drop streams that were not watched for a while, and the longest unwatched ones above the
        memory bound. The log still has them."""
        unwatched = [s for s in self._streams.values() if s.unused]
        for s in unwatched:
            s.idle_since = s.idle_since or now
        unwatched.sort(key=lambda s: s.idle_since)
        total = sum(s.memory for s in unwatched)
        for s in unwatched:
            if now - s.idle_since >= UNWATCHED_S or total > UNWATCHED_BYTES:
                total -= s.memory
                self.drop(s.rid)
