"""The compact form of events: read, it is what `tailrace.v1` sends, member by member; and it is
short."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

from hypothesis import example, given
from hypothesis import strategies as st

from tailrace.protocol import compact_events, events, fold, ids, queue_place, records
from tests.support import cases, compact_reader, toy_parser

RID = ids.mint(ids.Address(b"test", 5, 6), bytes(range(11)))
OTHER = ids.mint(ids.Address(b"test", 5, 7), bytes(range(11)))
OWNER = records.Owner("i", "s")
# Around a token's text, in a running answer.
BOUND_BYTES = 15


def claim(rid: str, parser: str = "") -> records.Claim:
    return records.Claim(rid, "n0", None, OWNER, "w", "t", 0, "rev", "tok", 9, {}, parser)


def series_of(
    log: Iterable[records.TokenRecord], rid: str = RID, places: Sequence[int] = ()
) -> list[events.Event]:
    """All events of a background response, with places in the queue before it begins."""
    state = fold.Fold()
    series = events.Series(events.echo(rid, 1_700_000_000, "m", background=True))
    shown = series.open()
    shown += [series.waiting(queue_place.Place(place, 1.5, False)) for place in places]
    for offset, record in enumerate(log):
        effect = state.apply(record, offset, 1_700_000_003_000)
        assert not isinstance(effect, fold.Ignored)
        shown += series.apply(effect)
    return shown


def parsed(answer: str, sizes: Iterable[int], *, logprobs: bool) -> list[records.TokenRecord]:
    """An answer with items of all kinds, cut into frames of these sizes."""
    found: list[records.TokenRecord] = [claim(RID, toy_parser.PARSER)]
    worker = toy_parser.Worker(RID, "n0", logprobs=logprobs)
    rest, cuts = toy_parser.ids_of(answer), iter(sizes)
    while rest:
        size = next(cuts, len(rest))
        found.append(worker.frame(rest[:size]))
        rest = rest[size:]
    return [*found, worker.end("stop")]


def plain(texts: Sequence[str], likely: Sequence[bool] = (), rid: str = RID) -> list[events.Event]:
    """An answer in one frame for each text; `likely`: which have log probabilities."""
    log: list[records.TokenRecord] = [claim(rid)]
    state = fold.Fold()
    state.apply(log[0], 0)
    for number, text in enumerate(texts):
        lp = (records.Lp(text or "x", -0.5),) if [*likely, *([False] * len(texts))][number] else ()
        log.append(records.Tok(rid, "n0", state.next, [number], text, state.h, lp=lp))
        state.apply(log[-1], number + 1)
    log.append(records.End(rid, "n0", state.next, "stop", state.h, "", records.Usage(2, 1)))
    return series_of(log, rid)


def cut(series: Sequence[events.Event], sizes: Iterable[int]) -> Iterator[Sequence[events.Event]]:
    """In batches of these sizes, and the rest one by one."""
    sizes, at = iter(sizes), 0
    while at < len(series):
        size = next(sizes, 1)
        yield series[at : at + size]
        at += size


def as_today(series: Iterable[events.Event]) -> list[str]:
    """With their members in their order."""
    return [json.dumps(json.loads(event.body)) for event in series]


def read(series: Sequence[events.Event], sizes: Iterable[int]) -> list[str]:
    watches = compact_events.Watches()
    messages = [watches.message(RID, batch) for batch in cut(series, sizes)]
    return [json.dumps(event) for event in compact_reader.Reader().events(messages, RID)]


PIECES = [
    "<r",
    "<m",
    '<cf|{"a":1}<e',
    "<cg|<e",
    "<ch|{",
    "Hello",
    "天気",
    "<",
    "é",
    '"',
    "\\",
    "\n",
]
answers = st.lists(st.sampled_from(PIECES), min_size=1, max_size=8).map("".join)
frames = st.lists(st.integers(1, 9), max_size=40)
batches = st.lists(st.integers(1, 12), max_size=40)


@given(answers, frames, batches, st.booleans(), st.lists(st.integers(1, 99)), st.integers(0, 60))
def test_what_is_read_is_what_v1_sends(
    answer: str,
    sizes: list[int],
    messages: list[int],
    logprobs: bool,
    places: list[int],
    after: int,
) -> None:
    """Items of all kinds, log probabilities, places in the queue; in any messages, behind any
    position."""
    series = series_of(parsed(answer, sizes, logprobs=logprobs), places=places)
    wanted = [event for event in series if event.sequence_number >= after]
    assert read(wanted, messages) == as_today(wanted)


@given(st.lists(st.tuples(st.text(max_size=5), st.booleans()), min_size=1, max_size=20), batches)
def test_any_text_with_and_without_log_probabilities(
    frames: list[tuple[str, bool]], messages: list[int]
) -> None:
    series = plain([text for text, _ in frames], [likely for _, likely in frames])
    assert read(series, messages) == as_today(series)


@example(
    'Hello<cf|{"a":1}<eHello', [1], [], {13, 14}
)  # another item had begun where two are missing
@given(answers, frames, batches, st.sets(st.integers(0, 60)))
def test_a_number_that_does_not_follow_is_told(
    answer: str, sizes: list[int], messages: list[int], missing: set[int]
) -> None:
    series = series_of(parsed(answer, sizes, logprobs=False))
    left = [event for event in series if event.sequence_number not in missing]
    assert read(left, messages) == as_today(left)


@given(
    st.lists(st.tuples(st.sampled_from([RID, OTHER]), st.integers(1, 4), st.booleans())),
)
def test_several_responses_on_one_socket_and_watches_that_begin_again(
    turns: list[tuple[str, int, bool]],
) -> None:
    """Each turn sends so many more events of one response; then the watch may begin anew, from
    any earlier event on."""
    all_of = {rid: plain(["a", "b", "c", "d", "e", "f"], rid=rid) for rid in (RID, OTHER)}
    watches, reader = compact_events.Watches(), compact_reader.Reader()
    at = {RID: 0, OTHER: 0}
    for rid, count, again in turns:
        batch = all_of[rid][at[rid] : at[rid] + count]
        if batch:
            found = reader.read(watches.message(rid, batch))
            assert found["response_id"] == rid
            assert list(map(json.dumps, found["events"])) == as_today(batch)
        at[rid] += len(batch)
        if again:
            watches.forget(rid)
            at[rid] //= 2


def test_numbers_of_watches_that_are_over_are_used_again() -> None:
    watches = compact_events.Watches()
    batch = plain(["a"])[:1]
    names = ["a", "b", "c"]
    assert [json.loads(watches.message(rid, batch))["number"] for rid in names] == [0, 1, 2]
    watches.forget("b")
    watches.forget("unknown")
    assert json.loads(watches.message("d", batch))["number"] == 1
    assert json.loads(watches.message("e", batch))["number"] == 3


@cases.each("size", [1, 2, 7])
def test_a_token_costs_few_bytes_beside_its_text(size: int) -> None:
    """The steady state of the 64th response of a socket: with an answer's first delta behind it,
    in messages of `size` events."""
    watches = compact_events.Watches()
    for number in range(63):
        watches.message(f"resp_{number}", plain(["a"])[:1])
    texts = [f' w"{number}é' for number in range(70)]
    series = plain(texts)
    deltas = [event for event in series if event.delta is not None]
    first = series.index(deltas[0])
    watches.message(RID, series[: first + 1])
    for batch in cut(deltas[1:], [size] * 70):
        body = watches.message(RID, batch)
        said = sum(len(json.dumps(e.delta, ensure_ascii=False).encode()) - 2 for e in batch)
        assert (len(body) - said) / len(batch) <= BOUND_BYTES
        # To be exact: the quotes and a comma; with brackets and the number for each message.
        assert len(body) - said == 3 * len(batch) + 4


def test_a_message_is_what_the_protocol_shows() -> None:
    watches = compact_events.Watches()
    series = plain(["Once", " upon", " a", " time"])
    at = next(n for n, event in enumerate(series) if event.delta is not None)
    first = watches.message(RID, series[: at + 2])
    head = f'{{"type":"watch.events","response_id":"{RID}","number":0,"events":[{{"type":'
    assert first.startswith(head.encode())
    assert first.endswith(b'"delta":"Once","logprobs":[]}," upon"]}')
    assert watches.message(RID, series[at + 2 : at + 4]) == b'[0," a"," time"]'
    ending = watches.message(RID, series[at + 4 :])
    assert ending.startswith(b'[0,{"type":"response.output_text.done","sequence_number":9,')
