"""The upgrade order of log rule §16: old and new readers of one log, side by side."""

from __future__ import annotations

import msgspec
from hypothesis import given

from tailrace.protocol import events, fold, records
from tests.support import cases, toy_parser, version_1
from tests.unit.tailrace.protocol.test_items import (
    ECHO,
    OWNER,
    RID,
    answers,
    claim,
    divisions,
    log_of,
    takeovers_,
)


def read(log: list[bytes], *, old: bool) -> tuple[fold.Fold, list[events.Event]]:
    state, series = fold.Fold(retain_ids=True), events.Series(ECHO)
    shown = series.open()
    for offset, value in enumerate(log):
        record = version_1.decode_token(value) if old else records.decode_token(value)
        if record is None:
            continue
        effect = state.apply(record, offset, 1000 + offset)
        if not isinstance(effect, fold.Ignored):
            shown += series.apply(effect)
    return state, shown


def plain(answer: str, sizes: list[int], takeovers: list[int]) -> list[bytes]:
    """The answer as a worker without a parser writes it: every character is text."""
    out = [records.encode(claim("n0", None, ""))]
    done: list[int] = []
    own, rest = "n0", toy_parser.ids_of(answer)
    for number, size in enumerate([*sizes, len(rest)]):
        if not rest:
            break
        if number in takeovers:
            own, before = f"n{number + 1}", own
            out.append(records.encode(claim(own, before, "")))
        new, rest = rest[:size], rest[size:]
        h = fold.roll(fold.H0, done)
        text = "".join(map(chr, new))
        out.append(records.encode(records.Tok(RID, own, len(done), new, text, h)))
        done += new
    h = fold.roll(fold.H0, done)
    usage = records.Usage(2, len(done))
    return [*out, records.encode(records.End(RID, own, len(done), "stop", h, "", usage))]


@given(answers, divisions, takeovers_)
def test_a_plain_response_is_the_same_to_both(
    answer: str, sizes: list[int], takeovers: list[int]
) -> None:
    log = plain(answer, sizes, takeovers)
    assert all(b'"v":' not in value for value in log)
    (old, shown_by_old), (new, shown_by_new) = read(log, old=True), read(log, old=False)
    assert [e.body for e in shown_by_old] == [e.body for e in shown_by_new]
    assert (old.ids, old.phase, old.h) == (new.ids, new.phase, new.h)
    assert new.phase is fold.Phase.DONE


@given(answers, divisions, takeovers_)
def test_an_old_reader_shows_nothing_of_a_response_with_a_parser(
    answer: str, sizes: list[int], takeovers: list[int]
) -> None:
    """It stalls, and shows no arguments as text; a new reader shows all."""
    log = [records.encode(r) for r in log_of(answer, sizes, takeovers)]
    state, shown = read(log, old=True)
    assert [e.type for e in shown] == ["response.created"]
    assert state.phase is fold.Phase.NEW
    assert read(log, old=False)[0].phase is fold.Phase.DONE


@cases.each("at", range(1, 6))
def test_an_old_reader_stalls_at_the_first_record_that_it_cannot_read(at: int) -> None:
    """Log probabilities need no parser, so its first claim is one that old readers know."""
    log: list[records.TokenRecord] = [claim("n0", None, "")]
    for n in range(6):
        lp = (records.lp(b"x", -1.0),) if n >= at else ()
        h = fold.roll(fold.H0, range(n))
        log.append(records.Tok(RID, "n0", n, [n], f"{n}", h, lp=lp))
    log.append(records.End(RID, "n0", 6, "stop", fold.roll(fold.H0, range(6))))
    values = [records.encode(record) for record in log]
    state, shown = read(values, old=True)
    assert "".join(e.delta or "" for e in shown) == "012345"[:at]
    assert state.phase is fold.Phase.LIVE
    assert not shown[-1].terminal
    assert read(values, old=False)[0].phase is fold.Phase.DONE


def test_an_old_worker_passes_over_a_request_that_it_would_answer_without_its_tools() -> None:
    request = records.Request(RID, OWNER, "m", [], records.Sampling(5), {})
    tool = {"type": "function", "function": {"name": "f"}}
    with_tools = records.Request(RID, OWNER, "m", [], records.Sampling(5), {}, tools=[tool])
    assert version_1.reads_request(records.encode(request))
    assert not version_1.reads_request(records.encode(with_tools))
    assert records.decode_request(records.encode(with_tools)) is not None


def test_an_old_worker_passes_over_a_request_for_embeddings() -> None:
    request = records.Request(
        RID, OWNER, "m", [], records.Sampling(0), {}, embed=records.Embed(["a"])
    )
    assert not version_1.reads_request(records.encode(request))
    assert records.decode_request(records.encode(request)) is not None


def test_an_old_reader_does_not_take_vectors_for_an_empty_answer() -> None:
    end = records.End(RID, "n0", 0, "stop", fold.H0, vectors=(b"\0" * 4,))
    values = [records.encode(record) for record in (claim("n0", None, ""), end)]
    assert read(values, old=True)[0].phase is fold.Phase.LIVE
    state = read(values, old=False)[0]
    assert state.ended is not None
    assert state.ended.vectors == (b"\0" * 4,)


def test_what_old_writers_wrote_is_the_same_to_new_readers() -> None:
    """Logs of former versions, and workers that are not upgraded yet."""
    for record in (
        version_1.Tok(RID, "n", 0, [1], "x", fold.H0, 1.5),
        version_1.End(RID, "n", 1, "stop", "h", "t", version_1.Usage(1, 2, 3)),
        version_1.Claim(RID, "n", None, OWNER, "w", "t", 0, "rev", "tok"),
    ):
        value = msgspec.json.encode(record)
        assert records.decode_token(value) == version_1.decode_token(value) is not None
