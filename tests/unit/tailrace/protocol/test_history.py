"""What is kept of a response that has ended gives the same events as the log did, and garbage gives
nothing."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from tailrace.delivery import hub
from tailrace.protocol import events, fold, history, ids, records
from tests.support import cases

RID = ids.mint(ids.Address(b"abcd", 5, 6), bytes(11))
OTHER = ids.mint(ids.Address(b"abcd", 5, 6), bytes([1] * 11))
OWNER = records.Owner("i", "s", "t")
STRANGER = records.Owner("i", "stranger")
ENDED_MS = 1_700_000_003_999


def asked(rid: str = RID, owner: records.Owner = OWNER, **more: Any) -> records.Request:
    messages = [{"role": "user", "content": "Ünïted \U0001f600"}]
    echo = events.echo(rid, 1_700_000_000, "m", background=bool(more.pop("background", False)))
    return records.Request(rid, owner, "m", messages, records.Sampling(99), echo, **more)


class Writer:
    """Makes records as workers do, of which all take effect."""

    def __init__(self, request: records.Request) -> None:
        self.request, self.made = request, list[records.TokenRecord]()
        self.seq, self.h, self.own = 0, fold.H0, ""

    def claim(self, parser: str = "", copied: int = 0, **more: Any) -> None:
        own, prev = f"n{len(self.made)}", self.own or None
        self.own = own
        echo = {} if prev else self.request.echo
        owner = self.request.owner
        self.made.append(
            records.Claim(
                self.request.rid,
                own,
                prev,
                owner,
                "w",
                "q",
                7,
                "rev",
                "tok",
                9,
                echo,
                parser,
                copied,
                **more,
            )
        )

    def frame(
        self,
        made: list[int],
        text: str,
        marks: Sequence[records.Mark] = (),
        lp: Sequence[records.Lp] = (),
    ) -> None:
        self.made.append(
            records.Tok(
                self.request.rid,
                self.own,
                self.seq,
                made,
                text,
                self.h,
                3.5,
                tuple(marks),
                tuple(lp),
            )
        )
        self.seq, self.h = self.seq + len(made), fold.roll(self.h, made)

    def end(self, reason: str, **more: Any) -> None:
        usage = records.Usage(9, self.seq, 4)
        self.made.append(
            records.End(self.request.rid, self.own, self.seq, reason, self.h, usage=usage, **more)
        )

    def cancel(self) -> None:
        echo = {} if self.own else self.request.echo
        self.made.append(records.Cancel(self.request.rid, self.request.owner, echo))


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
marks = st.builds(
    records.Mark,
    st.integers(0, 7),
    st.integers(0, 4),
    st.sampled_from(["m", "r", "c", "x"]),
    st.sampled_from(["", "f"]),
    st.sampled_from(["", "call_1"]),
)
logprobs = st.floats(-20, 0, allow_nan=False)
tops = st.builds(records.Likely, texts, logprobs, st.sampled_from(["", "ff"]))
lps = st.builds(records.Lp, texts, logprobs, st.lists(tops, max_size=2).map(tuple))


@st.composite
def responses(draw: st.DrawFn) -> tuple[records.Request, list[records.TokenRecord]]:
    """A request and the records that took effect."""
    request = asked(background=draw(st.booleans()), max_tool_calls=draw(st.sampled_from([None, 3])))
    w = Writer(request)
    if draw(st.integers(0, 9)) == 0:
        w.cancel()
        return request, w.made
    parser = draw(st.sampled_from(["", "p"]))
    copied = draw(st.sampled_from([0, 2]))  # of a fork
    named = st.fixed_dictionaries(
        {}, optional={"served": st.just("m2"), "answer_of": st.just("resp_x")}
    )
    w.claim(parser, copied, **draw(named))
    marked, likely = draw(st.booleans()), draw(st.booleans())
    for _ in range(draw(st.integers(0, 8))):
        if draw(st.integers(0, 4)) == 0:
            w.claim(parser, copied, **draw(named))
            continue
        made = draw(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=3))
        each = st.lists(lps, min_size=len(made), max_size=len(made))
        w.frame(
            made,
            draw(texts),
            draw(st.lists(marks, max_size=2)) if marked else (),
            draw(each) if likely and draw(st.booleans()) else (),
        )
    if draw(st.booleans()):
        w.cancel()
        return request, w.made
    reason = draw(st.sampled_from(sorted(fold.STATUS_OF_REASON)))
    more: dict[str, Any] = {"text_tail": draw(texts)}
    if marked:
        more["marks"] = tuple(draw(st.lists(marks, max_size=2)))
    if reason == "failed":
        more["error"] = ("server_error", draw(texts))
    w.end(reason, **more)
    return request, w.made


def effects(made: Sequence[records.TokenRecord]) -> list[fold.Effect]:
    state = fold.Fold()
    found = [state.apply(record, offset, ENDED_MS) for offset, record in enumerate(made)]
    assert not any(isinstance(each, fold.Ignored) for each in found), found
    return [each for each in found if not isinstance(each, fold.Ignored)]


def shown(request: records.Request, made: Sequence[records.TokenRecord]) -> tuple[Any, ...]:
    """Every event, and the final object."""
    series = events.Series(request.echo)
    out = series.open() + [e for each in effects(made) for e in series.apply(each)]
    return [(e.type, e.sequence_number, e.body, e.sse()) for e in out], series.final


def streamed(made: Sequence[records.TokenRecord]) -> list[bytes]:
    """Every event of a stream that knows nothing but the records."""
    stream = hub.Stream(RID, 5)
    for offset, record in enumerate(made):
        stream.apply(record, offset, ENDED_MS)
    if stream.series is None:
        stream.identify_by_cancel()
    assert stream.done
    assert stream.owner == OWNER
    return [event.body for event in stream.emitted]


def again(kept: history.History) -> history.History:
    """Written and read."""
    read = history.join(
        [p for k, v in history.parts(kept) if (p := history.decode_part(k.encode(), v)) is not None]
    )
    assert read is not None
    return read


@given(responses())
def test_the_events_of_what_is_kept_are_those_of_the_log(
    response: tuple[records.Request, list[records.TokenRecord]],
) -> None:
    request, made = response
    kept = history.from_records(request, made, ENDED_MS)
    read = again(kept)
    assert read == kept
    assert read.request == msgspec.structs.replace(request, v=request.version)
    redone = list(history.to_records(read))
    assert shown(read.request, redone) == shown(request, made)
    assert streamed(redone) == streamed(made)
    assert history.encode(
        history.from_records(read.request, redone, read.ended_ms)
    ) == history.encode(kept)


@given(responses(), st.integers(0, 30))
def test_records_without_an_effect_and_yields_leave_no_trace(
    response: tuple[records.Request, list[records.TokenRecord]], place: int
) -> None:
    request, made = response
    draft = history.Draft()
    for record in [
        *made[:-1][: place % len(made)],
        records.Yield(RID, "n0", 0),
        *made[:-1][place % len(made) :],
        made[-1],
    ]:
        draft.add(record, ENDED_MS)
    assert draft.to_history(request) == history.from_records(request, made, ENDED_MS)


def test_a_strangers_cancel_before_the_first_claim_is_no_end() -> None:
    w = Writer(asked())
    w.claim()
    draft = history.Draft()
    draft.add(records.Cancel(RID, STRANGER), 7)
    draft.add(w.made[0], 8)
    assert draft.end is None


def response_of(text: str, frames: int = 3) -> history.History:
    w = Writer(asked())
    w.claim()
    for n in range(frames):
        w.frame([n], text)
    w.end("stop", text_tail="!")
    return history.from_records(w.request, w.made, ENDED_MS)


def cut(kept: history.History) -> list[history.Part]:
    return [history.decode_part(k.encode(), v) for k, v in history.parts(kept)]  # type: ignore[misc]


def test_a_large_one_is_cut_into_records_that_the_log_takes() -> None:
    kept = response_of("\x01é" * 200_000)
    written = history.parts(kept)
    assert [key for key, _ in written] == [RID, *(f"{RID}:{n}" for n in range(1, len(written)))]
    assert len(written) > 2
    assert max(len(value) for _, value in written) <= history.PART_BYTES < records.MAX_RECORD_BYTES
    assert history.part_keys(RID, len(written)) == [key for key, _ in written]
    parts = cut(kept)
    assert [part.of for part in parts] == [len(parts)] * len(parts)
    assert history.join(parts) == history.join([*parts[::-1], *parts]) == kept


def test_missing_and_mixed_parts_give_nothing() -> None:
    one, other = [
        cut(response_of("".join(map(str, range(n, n + 170_000))))) for n in (10**5, 10**6)
    ]
    other = other[: len(one)]
    assert len(one) > 2
    assert history.join([]) is None
    for n in range(len(one)):
        assert history.join([*one[:n], *one[n + 1 :]]) is None
        assert history.join([*one[:n], other[n], *one[n + 1 :]]) is None
    swapped = one[1]._replace(data=one[2].data), one[2]._replace(data=one[1].data)
    assert history.join([one[0], *swapped, *one[3:]]) is None
    assert history.join([one[0]._replace(of=1)]) is None


def test_a_small_one_is_one_record_whose_second_line_is_json() -> None:
    kept = response_of("hi")
    ((key, value),) = history.parts(kept)
    head, whole = value.split(b"\n")
    assert key == RID
    digest = json.loads(head)["digest"]
    assert json.loads(head) == {"t": "PART", "rid": RID, "part": 0, "of": 1, "digest": digest}
    assert json.loads(whole)["t"] == "HISTORY"
    assert json.loads(whole)["frames"] == [[1, 2]] * 3
    assert json.loads(whole)["claims"] == [[0, "n0", "w", "rev", "tok", "", 9, 0]]


def test_a_request_as_deep_as_the_log_takes_is_kept() -> None:
    deep: Any = []
    for _ in range(records.MAX_DEPTH - 4):
        deep = [deep]
    request = asked()
    request = msgspec.structs.replace(request, messages=[{"role": "user", "content": deep}])
    while records.decode_request(records.encode(request)) is not None:
        last, deep = request, [deep]
        request = msgspec.structs.replace(request, messages=[{"role": "user", "content": deep}])
    w = Writer(last)
    w.claim()
    w.frame([1], "x")
    w.end("stop")
    assert again(history.from_records(last, w.made, 1)).request == last


BROKEN: dict[str, Any] = {
    "another version": {"v": 2},
    "another response": {"rid": OTHER},
    "of another owner": {"owner": {"issuer": "i", "subject": "x"}},
    "too few ids": {"ids": [0, 1]},
    "an id too large": {"ids": [0, 1, 2**32]},
    "too much text": {"text": "x" * 7},
    "an empty frame": {"frames": [[1, 2], [0, 0], [2, 4]]},
    "a negative frame": {"frames": [[1, 2], [1, -2], [1, 6]]},
    "fewer frames": {"frames": [[1, 2], [1, 2]]},
    "no claim": {"claims": []},
    "a claim in a frame": {"frames": [[3, 6]], "claims": [[1, "n0", "w", "r", "t", "", 0]]},
    "a late first claim": {"claims": [[1, "n0", "w", "r", "t", "", 0]]},
    "claims out of order": {
        "claims": [[0, "a", "w", "r", "t"], [2, "b", "w", "r", "t"], [1, "n0", "w", "r", "t"]]
    },
    "the end of another claim": {"claims": [[0, "nx", "w", "rev", "tok", "", 9]]},
    "marks of no frame": {"marks": [[3, [[0, 0, "m", "", ""]]]]},
    "marks twice": {"marks": [[1, [[0, 0, "m", "", ""]]]] * 2},
    "log probabilities of no frame": {"lp": [[-1, [["a", -1.0, [], ""]]]]},
    "a withdrawal": {"end": {"t": "CANCEL", "rid": RID, "by": {}, "withdrawn": True}},
    "a stranger's cancel": {
        "end": {"t": "CANCEL", "rid": RID, "by": {"issuer": "i", "subject": "z"}}
    },
    "no end": {"end": None},
    "an end elsewhere": {"end": {"t": "END", "rid": RID, "own": "n0", "seq": 2, "reason": "stop"}},
    "a bad time": {"ended_ms": -1},
    "no echo": {"request": {}},
}


@cases.each("name", BROKEN)
def test_what_does_not_fit_together_is_garbage(name: str) -> None:
    whole = json.loads(history.encode(response_of("hi")))
    assert history.decode(json.dumps(whole).encode()) is not None
    changed = whole | BROKEN[name]
    if name == "no echo":
        changed["request"] = whole["request"] | {"echo": {"id": RID}}
    if "end" in BROKEN[name] and BROKEN[name]["end"]:
        changed["end"] = whole["end"] | BROKEN[name]["end"]
        if name == "a withdrawal":
            changed["end"] = {"t": "CANCEL", "rid": RID, "by": whole["owner"], "withdrawn": True}
    assert history.decode(json.dumps(changed).encode()) is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)


@given(responses(), st.data())
def test_no_change_of_any_member_makes_a_reader_raise(
    response: tuple[records.Request, list[records.TokenRecord]], data: st.DataObject
) -> None:
    """What is read is either garbage or can be shown."""
    whole = json.loads(history.encode(history.from_records(*response, ENDED_MS)))
    where: Any = whole
    name = data.draw(st.sampled_from(sorted(whole)))
    if isinstance(where[name], list | dict) and where[name] and data.draw(st.booleans()):
        where = where[name]
        keys = range(len(where)) if isinstance(where, list) else sorted(where)
        name = data.draw(st.sampled_from(list(keys)))
    where[name] = data.draw(json_values | st.integers(-1, 4))
    read = history.decode(json.dumps(whole).encode())
    if read is not None:
        list(history.to_records(read))


@given(st.binary(max_size=60), st.binary(max_size=60))
@example(b"x", b"\xff\n{}")
@example(b"\xff", b"")
def test_any_bytes_are_no_part_and_no_history(key: bytes, value: bytes) -> None:
    assert history.decode_part(key, value) is None
    assert history.decode_part(RID.encode(), value) is None
    assert history.decode(value) is None
    assert history.part_from_key(key) is None
    assert history.file_from_key(key) is None


@cases.each("place", range(40))
def test_a_changed_byte_gives_nothing(place: int) -> None:
    ((key, value),) = history.parts(response_of("hi"))
    at = place * len(value) // 40
    changed = value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :]
    part = history.decode_part(key.encode(), changed)
    assert part is None or history.join([part]) is None


def test_a_part_counts_only_under_its_own_key() -> None:
    ((key, value),) = history.parts(response_of("hi"))
    assert history.decode_part(key.encode(), value) is not None
    for other in (OTHER, f"{RID}:1", f"{RID}:0", f"{RID}\n", ""):
        assert history.decode_part(other.encode(), value) is None
    assert history.decode_part(None, value) is None
    assert history.decode_part(key.encode(), None) is None


def test_keys_say_what_they_name() -> None:
    assert history.part_from_key(RID.encode()) == (RID, 0)
    assert history.part_from_key(f"{RID}:12".encode()) == (RID, 12)
    for bad in (f"{RID}:0", f"{RID}:01", f"{RID}:1000", f"{RID}:x", f"x{RID}", "resp_"):
        assert history.part_from_key(bad.encode()) is None
    key = history.file_key(OWNER.cache_scope, "ab" * 32, 3)
    assert history.file_from_key(key.encode()) == (OWNER.cache_scope, "ab" * 32, 3)
    assert history.file_from_key(RID.encode()) is None
    assert history.part_from_key(key.encode()) is None
    assert history.part_from_key(None) is None


def test_a_responses_partition_is_its_own_in_the_topics_count() -> None:
    assert [history.partition(RID, count) for count in (1, 4, 12)] == [0, 1, 5]


@cases.each(
    ("more", "reason", "kept"),
    [
        ({}, "stop", True),
        ({}, "cancelled", True),
        ({}, "failed", True),
        ({}, "withdrawn", False),
        ({"store": False}, "stop", False),
        ({"generate": False}, "warmup", False),
        ({"echo": events.embeddings_echo(RID, 0, "m", None)}, "stop", False),
    ],
)
def test_what_clients_stored_and_can_read_is_kept(
    more: dict[str, Any], reason: str, kept: bool
) -> None:
    request = msgspec.structs.replace(asked(), **more)
    ended = fold.Ended(reason, "completed", "", records.Usage(), None, 1)
    assert history.has_history(request, ended) == kept


def test_the_estimate_of_a_drafts_size_grows_with_all_that_it_holds() -> None:
    w = Writer(asked())
    w.claim()
    w.frame([1], "a")
    w.frame([1] * 50, "a")
    w.frame([1], "a" * 500)
    w.frame([1], "a", lp=[records.Lp("a", -1.0, (records.Likely("b", -2.0),) * 20)])
    w.end("stop", text_tail="a" * 99)
    draft, sizes = history.Draft(), [0]
    for record in w.made:
        draft.add(record, 1)
        sizes.append(draft.size)
    grown = [b - a for a, b in itertools.pairwise(sizes)]
    assert grown[1] < grown[2] < grown[3] < grown[4]
    assert grown[5] >= 99
