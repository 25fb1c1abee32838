"""Streams: every record once, in order, from replay or live; a reader sees only acknowledged
records."""

import gc
import itertools
import json
import tracemalloc
import weakref

import msgspec
import pytest

from tailrace import log
from tailrace.delivery import hub, outbox, subscription
from tailrace.protocol import events, fold, records, topics
from tests.support import cases, collected

OWNER = records.Owner("iss", "alice")
RID = "resp_" + "A" * 32
OTHER = "resp_" + "B" * 32


def echo(rid: str = RID, background: bool = False) -> dict[str, object]:
    return events.echo(rid, 1, "m", background=background)


def history(rid: str = RID, tokens: int = 4, own: str = "a") -> list[records.TokenRecord]:
    out: list[records.TokenRecord] = [
        records.Claim(
            rid,
            own,
            None,
            OWNER,
            "w1",
            topics.requests("default", "interactive"),
            0,
            "rev",
            "tok",
            echo=echo(rid),
        )
    ]
    h = fold.H0
    for i in range(tokens):
        out.append(records.Tok(rid, own, i, [i], f"t{i} ", h))
        h = fold.roll(h, [i])
    out.append(records.End(rid, own, tokens, "stop", h, usage=records.Usage(3, tokens)))
    return out


def as_log(items: list[records.TokenRecord], start: int = 100) -> list[log.Record]:
    return [
        log.Record(topics.TOKENS, 0, start + i, 5000 + i, r.rid.encode(), records.encode(r), ())
        for i, r in enumerate(items)
    ]


def opened() -> tuple[hub.Hub, hub.Stream]:
    h = hub.Hub()
    s = hub.Stream(RID, 0, hidden=True)
    s.identify(OWNER, echo())
    h.add(s)
    return h, s


def numbers(s: hub.Stream) -> list[int]:
    return [e.sequence_number for e in s.emitted]


def test_an_opened_stream_shows_nothing_before_the_acknowledgement() -> None:
    woken: list[bool] = []
    s = hub.Stream(RID, 0, hidden=True)
    box = s.subscribe(-1, lambda: woken.append(True))
    s.identify(OWNER, echo())
    assert [e.type for e in s.emitted] == ["response.created"]
    assert not woken
    s.show()
    assert woken
    assert [e.type for e in box.dequeue()] == ["response.created"]


def test_what_was_hidden_counts_against_a_subscriber_that_takes_nothing() -> None:
    s = hub.Stream(RID, 0, hidden=True)
    box = s.subscribe(-1, lambda: None)
    s.identify(OWNER, events.echo(RID, 1, "m", instructions="x" * outbox.LIVE_BOUND_BYTES))
    s.show()
    s.now = outbox.SLOW_AFTER_S + 1
    s.live(history()[0], 1, 1)
    assert box.slow


def test_a_claim_shows_the_stream_even_if_the_acknowledgement_is_late() -> None:
    h, s = opened()
    for r in as_log(history()):
        h.dispatch(r)
    assert not s.hidden
    assert s.emitted[-1].terminal


def test_events_are_dense_and_end_once() -> None:
    h, s = opened()
    for r in as_log(history()):
        h.dispatch(r)
    assert numbers(s) == list(range(len(s.emitted)))
    assert sum(e.terminal for e in s.emitted) == 1


@cases.each("cut", range(7))
def test_a_lookup_equals_the_live_stream_wherever_the_tail_stood(cut: int) -> None:
    h, live = opened()
    written = as_log(history())
    for r in written:
        h.dispatch(r)
    cold_hub, cold = hub.Hub(), hub.Stream(RID, 0, held=[])
    cold_hub.add(cold)
    for r in written[cut:]:  # live records arrive first and are held back
        cold_hub.dispatch(r)
    assert cold.emitted == []
    for r in written[:cut]:
        decoded = records.decode_token(r.value)
        assert decoded is not None
        cold.apply(decoded, r.offset, r.timestamp)
    cold.release()
    assert [e.body for e in cold.emitted] == [e.body for e in live.emitted]


def test_replay_and_tail_overlapping_change_nothing() -> None:
    h, live = opened()
    written = as_log(history())
    for r in written:
        h.dispatch(r)
    cold_hub, cold = hub.Hub(), hub.Stream(RID, 0, held=[])
    cold_hub.add(cold)
    for r in written[2:]:
        cold_hub.dispatch(r)
    for r in written[:5]:
        decoded = records.decode_token(r.value)
        assert decoded is not None
        cold.apply(decoded, r.offset, r.timestamp)
    cold.release()
    assert [e.body for e in cold.emitted] == [e.body for e in live.emitted]


def test_foreign_and_malformed_records_touch_nothing() -> None:
    seen: list[str] = []
    h = hub.Hub(on_ignored=seen.append)
    s = hub.Stream(RID, 0)
    s.identify(OWNER, echo())
    h.add(s)
    before = list(s.emitted)
    for value in (b"", b"{", b"null", b'{"t":"NEW_KIND","rid":"x"}', b"\xff\xfe", b"[" * 10_000):
        h.dispatch(log.Record(topics.TOKENS, 0, 1, 0, RID.encode(), value, ()))
    h.dispatch(log.Record(topics.TOKENS, 0, 2, 0, None, None, ()))
    h.dispatch(as_log(history(OTHER))[0])
    # A record whose key says one response and whose body says another belongs to neither.
    h.dispatch(
        log.Record(topics.TOKENS, 0, 3, 0, RID.encode(), records.encode(history(OTHER)[0]), ())
    )
    assert s.emitted == before
    assert seen == ["garbage"] * 7


def test_a_record_in_another_partition_touches_nothing() -> None:
    """Its offset says nothing about the response's own partition."""
    seen: list[str] = []
    h = hub.Hub(on_ignored=seen.append)
    s = hub.Stream(RID, 0)
    h.add(s)
    written = as_log(history())
    h.dispatch(written[0])
    for r in written:
        h.dispatch(r._replace(partition=3, offset=r.offset + 1_000_000))
    assert seen == ["garbage"] * len(written)
    for r in written[1:]:
        h.dispatch(r)
    assert s.done
    assert seen == ["garbage"] * len(written)


def test_a_claim_without_a_usable_echo_does_not_start_a_series() -> None:
    s = hub.Stream(RID, 0)
    s.apply(records.Claim(RID, "a", None, OWNER, "w", "t", 0, "r", "d", echo={}), 1, 0)
    s.apply(records.Cancel(RID, OWNER, echo={"id": OTHER, "background": False}), 2, 0)
    assert s.series is None
    assert s.owner is None


def test_cancel_before_any_claim_is_a_complete_short_series() -> None:
    s = hub.Stream(RID, 0)
    s.apply(records.Cancel(RID, OWNER, echo=echo()), 1, 0)
    assert s.emitted == []  # a request or a claim may yet say that it is another's
    s.identify_by_cancel()
    assert [e.type for e in s.emitted] == ["response.created", "response.incomplete"]
    assert s.emitted[-1].response is not None
    assert s.emitted[-1].response["status"] == "cancelled"


def test_a_strangers_cancel_ends_no_stream() -> None:
    stranger = records.Owner("i", "mallory")
    for known in (True, False):
        s = hub.Stream(RID, 0)
        if known:
            s.identify(OWNER, echo())
        s.apply(records.Cancel(RID, stranger, echo=echo()), 0, 0)
        if not known:
            s.identify(OWNER, echo())
        assert not s.done
        assert [e.type for e in s.emitted] == ["response.created"]
        for n, r in enumerate(history(), 1):
            s.apply(r, n, 0)
        assert s.owner == OWNER
        assert s.emitted[-1].type == "response.completed"


def test_who_forged_a_cancel_does_not_see_the_answer() -> None:
    h = hub.Hub()
    s = hub.Stream(RID, 0)
    h.add(s)
    stranger = records.Owner("i", "mallory")
    s.apply(records.Cancel(RID, stranger, echo=echo()), 0, 0)
    s.identify_by_cancel()
    s.subscribe(-1, lambda: None)
    before = list(s.emitted)
    for r in as_log(history()):
        h.dispatch(r._replace(offset=r.offset + 1))
    assert s.emitted == before
    assert s.lost is not None
    assert h.get(RID) is None  # the next look-up reads it again


def test_a_late_subscriber_of_a_finished_stream_gets_all_and_the_end() -> None:
    h, s = opened()
    for r in as_log(history()):
        h.dispatch(r)
    box = s.subscribe(-1, lambda: None)
    assert len(box.dequeue()) == len(s.emitted)
    assert box.ended


def test_every_subscriber_gets_the_same_bytes_at_any_pace() -> None:
    h, s = opened()
    s.show()
    boxes = [s.subscribe(-1, lambda: None) for _ in range(3)]
    got: list[list[bytes]] = [[], [], []]
    for step, r in enumerate(as_log(history(tokens=20))):
        h.dispatch(r)
        for i, box in enumerate(boxes):
            if step % (i + 1) == 0:
                got[i] += [e.body for e in box.dequeue()]
    for i, box in enumerate(boxes):
        got[i] += [e.body for e in box.dequeue()]
        assert box.ended
    assert got[0] == got[1] == got[2] == [e.body for e in s.emitted]


def test_failing_a_stream_wakes_its_subscribers() -> None:
    _, s = opened()
    wakes: list[int] = []
    s.subscribe(-1, lambda: wakes.append(1))
    s.fail(log.HistoryLost("gone"))
    assert wakes
    assert isinstance(s.lost, log.HistoryLost)


def test_sweep_keeps_what_is_watched_held_or_hidden_and_drops_the_rest_after_a_while() -> None:
    h = hub.Hub()
    kinds = {}
    for name, letter in zip(("watched", "held", "hidden", "idle", "in_use"), "CDEFG", strict=True):
        s = hub.Stream(
            "resp_" + letter * 32,
            3,
            held=[] if name == "held" else None,
            hidden=name == "hidden",
            holders=int(name == "in_use"),
        )
        h.add(s)
        kinds[name] = s
    kinds["watched"].subscribe(-1, lambda: None)
    h.sweep(1000.0)
    assert len(h) == 5
    h.sweep(1000.0 + hub.UNWATCHED_S + 1)
    assert h.get(kinds["idle"].rid) is None
    assert len(h) == 4
    assert h.load(3) == 4


def test_memory_of_unwatched_streams_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    h = hub.Hub()
    for i, letter in zip(itertools.count(), "CDEFGHIJ"):
        rid = "resp_" + letter * 32
        s = hub.Stream(rid, 0, idle_since=float(i + 1))
        for r in history(rid, tokens=10):
            s.apply(r, len(s.emitted) + 1000 * i + 1, 0)
        h.add(s)
    monkeypatch.setattr(hub, "UNWATCHED_BYTES", 3 * s.memory)
    assert s.memory > s.size + hub.STREAM_BYTES, "events are more than their bodies"
    h.sweep(10.0)
    assert len(h) == 3
    assert h.get("resp_" + "J" * 32) is not None, "the most recently used one goes last"


@pytest.mark.parametrize("ended", [False, True])
def test_memory_counts_log_probabilities(ended: bool) -> None:
    """Of 256 tokens, each with 20 likely ones: what a stream takes is what it says it takes."""
    count = 256
    likely = [records.likely(f"word{i}".encode(), -i / 7) for i in range(20)]
    lps = [records.lp(f"token{i}".encode(), -0.25, likely) for i in range(count)]
    made = history(tokens=count)
    toks = [r for r in made if isinstance(r, records.Tok)]
    with_lp = [msgspec.structs.replace(tok, lp=(lp,)) for tok, lp in zip(toks, lps, strict=True)]
    wanted = [made[0], *with_lp, *([made[-1]] if ended else [])]
    s = hub.Stream(RID, 0)
    gc.collect()
    tracemalloc.start()
    try:
        for i, record in enumerate(wanted):
            s.apply(record, i, 0)
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert taken < 1.1 * s.memory
    assert s.memory < 1.25 * taken + hub.STREAM_BYTES
    if ended:
        assert json.loads(s.emitted[-1].body)["response"]["output"][0]["content"][0]["logprobs"]


@cases.each("missing", sorted(events.ESSENTIAL))
def test_an_incomplete_echo_starts_no_series(missing: str) -> None:
    s = hub.Stream(RID, 0)
    incomplete = {k: v for k, v in echo().items() if k != missing}
    s.apply(records.Claim(RID, "a", None, OWNER, "w", "t", 0, "r", "d", echo=incomplete), 1, 0)
    assert s.series is None


def test_what_a_subscriber_held_is_freed_when_it_closes() -> None:
    """It holds all events of the response, and is woken by an outbox that it holds itself."""
    h, s = opened()
    s.show()

    class Watcher:
        def __init__(self) -> None:
            self.watched = subscription.Subscription(s, -1, self.ready)

        def ready(self) -> None: ...

    watcher = Watcher()
    there = weakref.ref(watcher), weakref.ref(watcher.watched)
    for record in as_log(history()):
        h.dispatch(record)
    assert watcher.watched.pending()
    watcher.watched.close()
    with collected.by_hand():
        del watcher
        assert [each() for each in there] == [None, None]
