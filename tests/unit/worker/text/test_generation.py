"""Engine outputs to frames and one end; the seam of a takeover."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.protocol import fold, ids, records
from tests.support import cases
from worker.engines import scripted
from worker.text import generation, visible
from worker.text.stop_strings import StopStrings

RID = ids.mint(ids.Address(b"abcd", 0, 0), b"r" * 11)
OWNER = records.Owner("i", "s")


class Letters:
    """Ids are bytes of UTF-8."""

    def __init__(self) -> None:
        self._held = b""

    def push(self, ids: Sequence[int]) -> str:
        self._held += bytes(ids)
        text = self._held.decode(errors="ignore")
        self._held = self._held[len(text.encode()) :]
        return text

    def flush(self) -> str:
        held, self._held = self._held, b""
        return held.decode(errors="replace")


def make(
    own: str = "a",
    state: fold.Fold | None = None,
    *,
    stop: tuple[str, ...] = (),
    max_tokens: int = 1_000,
    stop_ids: tuple[int, ...] = (),
    stops_after: int = 0,
    logprobs: bool = False,
) -> generation.Generation:
    attempt = generation.Generation(
        rid=RID,
        fencing_token=own,
        view=visible.PlainText(Letters(), stop, stops_after),
        max_tokens=max_tokens,
        stop_ids=stop_ids,
        logprobs=logprobs,
    )
    attempt.resume(visible.Accepted.from_fold(state or fold.Fold()))
    return attempt


class Reader:
    """A fold that keeps the text."""

    def __init__(self) -> None:
        self.fold = fold.Fold(retain_ids=True)
        self.text = ""
        self._offset = 0

    def claim(self, own: str) -> None:
        self.apply(records.Claim(RID, own, self.fold.owner, OWNER, f"w-{own}", "t", 0, "m", "t"))

    def apply(self, record: records.TokenRecord) -> fold.Outcome:
        outcome = self.fold.apply(record, self._offset)
        self._offset += 1
        if isinstance(outcome, fold.Accepted):
            self.text += outcome.text
        elif isinstance(outcome, fold.Ended):
            self.text += outcome.text_tail
        return outcome

    def read(self, made: generation.Generation) -> None:
        for frame in made.frames(0):
            assert isinstance(self.apply(frame), fold.Accepted)


def run(
    text: str,
    steps: list[int],
    *,
    stop: tuple[str, ...] = (),
    max_tokens: int = 1_000,
    seam: int | None = None,
) -> Reader:
    """Generate `text`, cut into steps, taken over by a second owner after `seam` steps; the engine
    goes on with the same text."""
    raw, reader = text.encode(), Reader()
    reader.claim("a")
    made = make(stop=stop, max_tokens=max_tokens)
    at, step = 0, 0
    while made.phase is generation.Phase.RUNNING:
        if seam is not None and step == seam:
            reader.read(made)
            made.stand_down()
            reader.claim("b")
            made = make("b", reader.fold, stop=stop, max_tokens=max_tokens)
            at = len(reader.fold.ids)
            seam = None
            continue
        size = steps[step % len(steps)] if steps else 1
        piece = raw[at : at + size]
        at += len(piece)
        made.push(list(piece), "stop" if at >= len(raw) else None)
        if step % 2:
            reader.read(made)
        step += 1
    reader.read(made)
    assert isinstance(reader.apply(made.end(records.Usage())), fold.Ended)
    return reader


def test_frames_chain_by_seq_and_hash_and_the_end_names_their_sum() -> None:
    reader = run("hello world", [1, 3])
    assert reader.text == "hello world"
    assert reader.fold.next == 11
    assert reader.fold.phase is fold.Phase.DONE


def test_half_a_character_is_never_emitted_and_at_the_end_it_becomes_u_fffd() -> None:
    made = make()
    made.push(list("é".encode()[:1]))
    assert [f.text for f in made.frames(0)] == [""]
    made.push([], "stop")
    assert made.end(records.Usage()).text_tail == "\ufffd"


def test_text_that_may_begin_a_stop_string_is_held_back_and_released_when_it_was_none() -> None:
    made = make(stop=("END",))
    made.push(list(b"abE"))
    made.push(list(b"N"))
    assert [f.text for f in made.frames(0)] == ["ab"]
    made.push(list(b"x"))
    assert [f.text for f in made.frames(0)] == ["ENx"]


def test_held_back_text_comes_with_the_end_when_the_engine_stops_there() -> None:
    made = make(stop=("END",))
    made.push(list(b"abEN"), "stop")
    assert [f.text for f in made.frames(0)] == ["ab"]
    end = made.end(records.Usage())
    assert (end.text_tail, end.reason, end.seq) == ("EN", "stop", 4)


def test_a_stop_string_ends_the_answer_before_it_and_drops_later_ids_of_the_same_step() -> None:
    made = make(stop=("END", "zzz"))
    made.push(list(b"abENDmore"), "length")
    frames = made.frames(0)
    assert "".join(f.text for f in frames) == "ab"
    assert sum(len(f.ids) for f in frames) == 5
    assert (made.reason, made.end(records.Usage()).text_tail) == ("stop", "")


def likely(raw: bytes) -> list[records.Lp]:
    return [records.Lp(chr(each), -1.0) for each in raw]


@cases.each("sizes", [[1], [2], [3], [99], [1, 99]])
def test_tokens_that_a_stop_string_cuts_away_have_no_log_probabilities(sizes: list[int]) -> None:
    """As their text, they were shown while the stop string was not complete."""
    raw, made, frames = b"abEcENDmore", make(stop=("END", "zzz"), logprobs=True), []
    steps = itertools.cycle(sizes)
    while raw and made.phase is generation.Phase.RUNNING:
        step, raw = raw[: (size := next(steps))], raw[size:]
        made.push(list(step), None, likely(step))
        frames += made.frames(0)
    assert "".join(f.text for f in frames) == "abEc"
    assert "".join(lp.token for f in frames for lp in f.lp) == "abEc"
    assert [len(f.lp) for f in frames] == [len(f.ids) for f in frames]
    assert made.end(records.Usage()).seq == len("abEcEND")


@given(
    st.text(alphabet="abEN", min_size=1, max_size=30),
    st.lists(st.sampled_from(["EN", "NEa", "bb", "ENEN"]), max_size=2),
    st.lists(st.integers(1, 9), min_size=1, max_size=9),
    st.integers(0, 30),
)
def test_log_probabilities_are_those_of_the_text(
    text: str, stop: list[str], sizes: list[int], seam: int
) -> None:
    """A token is a character here. Another owner goes on after `seam` tokens."""
    reader, frames, steps = Reader(), list[records.Tok](), itertools.cycle(sizes)
    reader.claim("a")
    made = make(stop=tuple(stop), logprobs=True)
    while made.phase is generation.Phase.RUNNING:
        if made.total >= seam and made.fencing_token == "a":
            made.stand_down()
            reader.claim("b")
            made = make("b", reader.fold, stop=tuple(stop), logprobs=True)
            continue
        step = text.encode()[made.total : made.total + next(steps)]
        is_last = made.total + len(step) >= len(text)
        made.push(list(step), "length" if is_last else None, likely(step))
        for frame in made.frames(0):
            frames.append(frame)
            assert isinstance(reader.apply(frame), fold.Accepted)
    assert isinstance(reader.apply(made.end(records.Usage())), fold.Ended)
    assert "".join(lp.token for frame in frames for lp in frame.lp) == reader.text


def test_log_probabilities_are_held_back_with_the_text_and_released_with_it() -> None:
    made = make(stop=("END",), logprobs=True)
    made.push(list(b"abEN"), None, likely(b"abEN"))
    assert [(f.text, len(f.ids)) for f in made.frames(0)] == [("ab", 2)]
    assert not made.pending
    assert made.stand_down() == 2
    made = make(stop=("END",), logprobs=True)
    made.push(list(b"abEN"), "length", likely(b"abEN"))
    frames = made.frames(0)
    assert "".join(lp.token for f in frames for lp in f.lp) == "abEN"
    assert [f.text for f in frames] == ["ab"]
    assert made.end(records.Usage()).text_tail == "EN"


def test_a_token_that_goes_on_beyond_its_stop_string_is_cut_away_too() -> None:
    cut = StopStrings(["END"])
    for text in ("ab", "E", "NDmore"):
        cut.begin_token()
        cut.push(text)
    assert cut.complete
    assert cut.hidden_tokens == 2


def test_a_token_that_a_stop_string_cuts_in_two_keeps_its_log_probability() -> None:
    cut = StopStrings(["\n\n"])
    for text in ("a", "b\n", "\n", "more"):
        cut.begin_token()
        cut.push(text)
        if cut.complete:
            break
    assert cut.hidden_tokens == 1


@cases.each(
    ("stop", "after", "shown"),
    [
        *(("|", 0, "ab"), ("|", 2, "ab"), ("|", 3, "ab|cd"), ("|", 6, "ab|cd|e")),
        *(("|", 8, "ab|cd|e|"), ("|", 20, "ab|cd|e|")),
        *(("d|e", 6, "ab|c"), ("d|e", 7, "ab|cd|e|")),
    ],
)
@cases.each("taken_over_at", range(9))
def test_a_stop_string_counts_only_after_the_least_number_of_tokens(
    stop: str, after: int, shown: str, taken_over_at: int
) -> None:
    """vLLM's `min_tokens`: the first stop string ended an answer that had fewer tokens."""
    answer, reader = b"ab|cd|e|", Reader()
    reader.claim("a")
    made = make(stop=(stop,), stops_after=after)
    made.push(list(answer[:taken_over_at]))
    reader.read(made)
    if made.phase is generation.Phase.RUNNING:
        reader.claim("b")
        made = make("b", reader.fold, stop=(stop,), stops_after=after)
        made.push(list(answer[made.total :]), "length")
        reader.read(made)
    reader.apply(made.end(records.Usage()))
    assert reader.text == shown


def test_a_stop_string_completed_by_the_last_flush_still_stops() -> None:
    made = make(stop=("x\ufffd",))
    made.push([*b"abx", "é".encode()[0]], "stop")
    made.frames(0)
    assert made.end(records.Usage()).text_tail == ""


@pytest.mark.parametrize(
    ("stop_id", "reason"),
    [((), "length"), ((ord("c"),), "stop")],
    ids=["plain", "the last one is an end token"],
)
def test_max_tokens_bounds_the_ids_whatever_the_engine_gives(
    stop_id: tuple[int, ...], reason: str
) -> None:
    made = make(max_tokens=3, stop_ids=stop_id)
    made.push(list(b"abcdef"))
    assert made.total == 3
    assert made.reason == reason


def test_an_attempt_that_takes_over_a_complete_answer_only_ends_it() -> None:
    reader = Reader()
    reader.claim("a")
    first = make(max_tokens=3)
    first.push(list(b"abc"))
    reader.read(first)
    reader.claim("b")
    second = make("b", reader.fold, max_tokens=3)
    assert second.phase is generation.Phase.FINISHED
    assert second.remaining == 0
    reader.read(second)
    reader.apply(second.end(records.Usage()))
    assert (reader.text, second.reason) == ("abc", "length")


def test_an_accepted_end_token_ends_a_takeover_at_once() -> None:
    state = fold.Fold(retain_ids=True, ids=[65, 2], next=2, text_length=1)
    assert make("b", state, stop_ids=(2,)).reason == "stop"


def test_withheld_text_reappears_after_a_takeover_that_ends_at_once() -> None:
    reader = Reader()
    reader.claim("a")
    first = make(stop=("END",))
    first.push(list(b"abEN"))
    reader.read(first)
    assert reader.text == "ab"
    reader.claim("b")
    second = make("b", reader.fold, stop=("END",))
    second.push([], "stop")
    reader.read(second)
    reader.apply(second.end(records.Usage()))
    assert reader.text == "abEN"


def test_standing_down_drops_what_was_not_written_and_names_the_next_seq() -> None:
    made = make()
    made.push(list(b"abc"))
    made.frames(0)
    made.push(list(b"de"))
    assert made.stand_down() == 3
    assert not made.pending
    made.push(list(b"f"), "stop")
    assert made.phase is generation.Phase.STOPPED


def test_a_huge_step_is_cut_into_bounded_frames() -> None:
    made = make(max_tokens=10**6)
    made.push([97] * 10_000, "stop")
    frames = made.frames(0)
    assert [len(f.ids) for f in frames] == [4096, 4096, 10_000 - 2 * 4096]
    assert [f.seq for f in frames] == [0, 4096, 8192]


TEXTS = st.text(alphabet="abcE N😀é", min_size=1, max_size=40)


@settings(max_examples=300, deadline=None)
@given(
    text=TEXTS,
    steps=st.lists(st.integers(1, 5), min_size=1, max_size=8),
    stop=st.lists(TEXTS.map(lambda t: t[:4]), max_size=2),
    seam=st.integers(0, 30),
)
def test_a_seam_anywhere_changes_neither_text_nor_ids(
    text: str, steps: list[int], stop: list[str], seam: int
) -> None:
    whole, joined = (
        run(text, steps, stop=tuple(stop)),
        run(text, steps, stop=tuple(stop), seam=seam),
    )
    assert joined.text == whole.text
    assert joined.fold.ids == whole.fold.ids
    assert "\ufffd" not in joined.text
    # Of the stop strings the one completed first counts; of several completed at once the longest.
    first = min(
        ((text.index(s) + len(s), text.index(s)) for s in stop if s in text), default=(0, len(text))
    )
    assert joined.text == text[: first[1]]


@given(n=st.integers(1, 80), seam=st.integers(0, 80))
def test_the_scripted_engines_tokens_survive_a_seam(n: int, seam: int) -> None:
    messages = [{"role": "user", "content": "q"}]
    answer = scripted.expected_ids(messages, n)
    detok = scripted.Detokenizer()
    before = detok.push(answer[:seam])
    again = scripted.Detokenizer()
    assert again.push(answer)[: len(before)] == before


def test_ids_that_are_copied_are_frames_of_their_own() -> None:
    made = make()
    made.copy([1, 2, 3])
    assert (made.total, made.prior_total) == (3, 0)
    made.push([4])
    assert [(f.seq, f.ids) for f in made.frames(0)] == [(0, [1, 2, 3]), (3, [4])]


def test_no_id_is_copied_once_nobody_wants_more() -> None:
    made = make()
    made.copy([1, 2, 3], should_continue=lambda: False)
    assert not made.pending
