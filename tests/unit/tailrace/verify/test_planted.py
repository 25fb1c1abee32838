"""M1: a judge that cannot fail is worth nothing. One thing is broken in a good history; the check
that is there for it has to say so."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tailrace.protocol import activity, conversations, fold, records, topics
from tailrace.protocol import history as kept
from tailrace.verify import history, reference_fold, report, transcript
from tests.support import cases, toy_parser
from tests.unit.tailrace.verify import histories as worlds
from worker.engines import scripted

Planting = Callable[[worlds.Good, random.Random], None]
PLANTED: dict[str, tuple[str, Planting]] = {}
ITEMS: list[str] = []


def planted(check: str) -> Callable[[Planting], Planting]:
    """Register a planting and the check that has to catch it."""

    def register(planting: Planting) -> Planting:
        PLANTED[planting.__name__] = (check, planting)
        return planting

    return register


def drop(w: worlds.World, index: int) -> None:
    del w.log[index]
    w.renumber()


def edit(w: worlds.World, index: int, **changes: Any) -> None:
    w.replace(index, msgspec.structs.replace(w.decoded(index), **changes))


def beside(w: worlds.World, topic: str, rid: str) -> int:
    return next(
        i for i, r in enumerate(w.log) if r.topic == topic and rid.encode() in (r.value or b"")
    )


def watch_of(
    w: worlds.World, request: records.Request, watcher: str = "steady"
) -> list[transcript.Line]:
    """All lines of one watcher, in order; they are the objects in the file."""
    lines = w.lines["client"]
    mine = {
        line.n
        for line in lines
        if line.op == "watch" and line.f == "invoke" and line.watcher == f"{watcher}-{request.rid}"
    }
    return [line for line in lines if line.n in mine]


def batches(
    w: worlds.World, request: records.Request, watcher: str = "steady"
) -> list[transcript.Line]:
    return [line for line in watch_of(w, request, watcher) if line.op == "events"]


def end_line(w: worlds.World, request: records.Request, watcher: str = "steady") -> transcript.Line:
    return next(line for line in watch_of(w, request, watcher) if line.op == "end")


# ---- in the log


@planted("R1")
def a_frame_is_missing_in_the_log(g: worlds.Good, rng: random.Random) -> None:
    drop(g.world, g.world.find(g.plain.rid, records.Tok, rng.randrange(9)))


@planted("R1")
def two_frames_are_swapped_in_the_log(g: worlds.Good, rng: random.Random) -> None:
    w, n = g.world, rng.randrange(8)
    a, b = w.find(g.plain.rid, records.Tok, n), w.find(g.plain.rid, records.Tok, n + 1)
    w.log[a], w.log[b] = w.log[b], w.log[a]
    w.renumber()


@planted("R1")
def the_end_is_missing(g: worlds.Good, _: random.Random) -> None:
    drop(g.world, g.world.find(g.plain.rid, records.End))


@planted("R1")
def the_end_counts_wrong(g: worlds.Good, _: random.Random) -> None:
    edit(g.world, g.world.find(g.plain.rid, records.End), seq=19)


@planted("R1")
def the_request_has_no_answer_at_all(g: worlds.Good, _: random.Random) -> None:
    g.world.log = [
        r for r in g.world.log if r.topic != topics.TOKENS or r.key != g.plain.rid.encode()
    ]
    g.world.renumber()


@planted("R1")
def an_acknowledged_request_is_not_in_the_log(g: worlds.Good, _: random.Random) -> None:
    drop(g.world, beside(g.world, worlds.REQUESTS, g.plain.rid))


@planted("L2")
def the_end_has_another_digest(g: worlds.Good, _: random.Random) -> None:
    edit(
        g.world,
        g.world.find(g.plain.rid, records.End),
        digest=reference_fold.link(reference_fold.START, [1]).hex(),
    )


@planted("L2")
def two_generations_are_spliced_at_a_random_index(g: worlds.Good, rng: random.Random) -> None:
    """Every hash is right: only who knows what the engine had to write can tell."""
    w, keep = g.world, 2 * rng.randrange(1, 9)
    other = scripted.expected_ids([{"role": "user", "content": "another prompt"}], 20)
    frames = [
        i
        for i, r in enumerate(w.log)
        if r.key == g.plain.rid.encode() and isinstance(records.decode_token(r.value), records.Tok)
    ]
    own = scripted.expected_ids(g.plain.messages, 20)
    mixed = own[:keep] + other[keep:]
    for n, index in enumerate(frames):
        before = mixed[: 2 * n]
        edit(
            w,
            index,
            ids=mixed[2 * n : 2 * n + 2],
            parent=reference_fold.link(reference_fold.START, before).hex(),
        )
    edit(
        w,
        w.find(g.plain.rid, records.End),
        digest=reference_fold.link(reference_fold.START, mixed).hex(),
    )


@planted("L2")
def a_takeover_continues_a_prefix_it_did_not_read_to_its_claim(
    g: worlds.Good, _: random.Random
) -> None:
    """No barrier: the successor's first frame that fits by index was generated behind other
    tokens."""
    w = g.world
    at = w.find(g.taken.rid, records.Tok, 7)
    edit(w, at, parent=reference_fold.link(reference_fold.START, [7] * 14).hex())


@planted("L2")
def a_worker_of_another_model_revision_goes_on(g: worlds.Good, _: random.Random) -> None:
    edit(g.world, g.world.find(g.taken.rid, records.Claim, 1), model_rev="another")


@planted("L2")
def two_workers_claim_with_one_nonce(g: worlds.Good, _: random.Random) -> None:
    w = g.world
    claim = w.decoded(w.find(g.taken.rid, records.Claim, 1))
    assert isinstance(claim, records.Claim)
    twin = records.Claim(
        claim.rid,
        claim.own,
        claim.prev,
        claim.owner,
        "worker-9/z",
        claim.req_topic,
        0,
        claim.model_rev,
        claim.tokenizer_digest,
    )
    w.token(twin)


@planted("L5")
def the_text_of_a_frame_is_another(g: worlds.Good, rng: random.Random) -> None:
    edit(g.world, g.world.find(g.plain.rid, records.Tok, rng.randrange(10)), text=" gap")


@planted("L5")
def withheld_text_is_lost_at_the_end(g: worlds.Good, _: random.Random) -> None:
    w = g.world
    frames = [w.find(g.plain.rid, records.Tok, n) for n in range(10)]
    last = next(i for i in reversed(frames) if w.decoded(i).text)  # type: ignore[union-attr]
    edit(w, last, text=w.decoded(last).text[:-1])  # type: ignore[union-attr]


@planted("L5")
def a_character_is_torn_at_the_seam(g: worlds.Good, _: random.Random) -> None:
    w = g.world
    at = w.find(g.taken.rid, records.Tok, 7)
    edit(w, at, text="�" + w.decoded(at).text)  # type: ignore[union-attr]


def planted_item(planting: Planting) -> Planting:
    """Register a planting in the response with items, which L5 has to catch."""
    ITEMS.append(planting.__name__)
    return planted("L5")(planting)


def frame(g: worlds.Good, index: int) -> records.Tok:
    record = g.world.decoded(index)
    assert isinstance(record, records.Tok)
    return record


def marked(g: worlds.Good, kind: str, nth: int = 0) -> tuple[int, records.Mark]:
    """Index of the nth frame with a mark of a kind, which is its only mark."""
    found = [
        (at, frame(g, at).marks[0])
        for at in g.world.frames(g.items.rid)
        if [m.kind for m in frame(g, at).marks] == [kind]
    ]
    return found[nth]


def change_mark(g: worlds.Good, kind: str, nth: int = 0, **changes: Any) -> None:
    """Change the mark of a kind in the nth frame that has one."""
    at, mark = marked(g, kind, nth)
    edit(g.world, at, marks=(msgspec.structs.replace(mark, **changes),))


@planted_item
def a_mark_is_one_character_late(g: worlds.Good, _: random.Random) -> None:
    """The call loses its brace to the message before it."""
    at, mark = marked(g, "c", 0)
    assert mark.at < len(frame(g, at).text)
    change_mark(g, "c", 0, at=mark.at + 1)


@planted_item
def a_message_begins_one_character_early(g: worlds.Good, _: random.Random) -> None:
    """Only who knows what the parser had to find can tell."""
    change_mark(g, "m", at=marked(g, "m")[1].at - 1)


@planted_item
def a_parser_is_fed_two_ids_at_once(g: worlds.Good, _: random.Random) -> None:
    worker = toy_parser.Worker(g.items.rid, "", step=2)
    for at in g.world.frames(g.items.rid):
        written = worker.frame(frame(g, at).ids)
        edit(g.world, at, text=written.text, marks=written.marks)


@planted_item
def a_mark_lies_outside_of_its_frame(g: worlds.Good, _: random.Random) -> None:
    change_mark(g, "c", at=5)


@planted_item
def a_mark_names_an_id_outside_of_its_frame(g: worlds.Good, _: random.Random) -> None:
    change_mark(g, "c", ids=5)


@planted_item
def a_mark_of_the_end_lies_outside_of_its_text(g: worlds.Good, _: random.Random) -> None:
    w = g.world
    edit(w, w.find(g.items.rid, records.End), marks=(records.Mark(1, 0, "m"),))


@planted_item
def marks_are_not_in_order(g: worlds.Good, _: random.Random) -> None:
    at, mark = marked(g, "m")
    edit(g.world, at, marks=(mark, msgspec.structs.replace(mark, ids=mark.ids - 1)))


@planted_item
def a_call_has_a_random_id(g: worlds.Good, rng: random.Random) -> None:
    change_mark(g, "c", 1, call_id=f"call_{rng.getrandbits(96):024x}")


@planted_item
def two_calls_have_one_id(g: worlds.Good, _: random.Random) -> None:
    change_mark(g, "c", 1, call_id=marked(g, "c")[1].call_id)


@planted_item
def a_call_has_no_name(g: worlds.Good, _: random.Random) -> None:
    change_mark(g, "c", name="")


@planted_item
def a_message_has_a_name(g: worlds.Good, _: random.Random) -> None:
    change_mark(g, "m", name="weather")


@planted_item
def a_mark_is_lost(g: worlds.Good, _: random.Random) -> None:
    """The second call's: its arguments are shown behind those of the first."""
    edit(g.world, marked(g, "c", 1)[0], marks=())


@planted_item
def a_takeover_writes_the_marks_once_more(g: worlds.Good, _: random.Random) -> None:
    """It counts from its own claim, not from the fold."""
    claim = g.world.decoded(g.world.find(g.items.rid, records.Claim, 1))
    assert isinstance(claim, records.Claim)
    first = next(at for at in g.world.frames(g.items.rid) if frame(g, at).own == claim.own)
    again = msgspec.structs.replace(marked(g, "c", 1)[1], at=0, ids=0)
    edit(g.world, first, marks=(again, *frame(g, first).marks))


@planted_item
def arguments_lose_a_character(g: worlds.Good, _: random.Random) -> None:
    at = next(i for i in g.world.frames(g.items.rid) if ":" in frame(g, i).text)
    edit(g.world, at, text=frame(g, at).text.replace(":", ""))


@planted_item
def there_are_marks_and_nobody_parses(g: worlds.Good, _: random.Random) -> None:
    for n in (0, 1):
        edit(g.world, g.world.find(g.items.rid, records.Claim, n), parser="")


@planted_item
def another_parser_takes_over(g: worlds.Good, _: random.Random) -> None:
    edit(g.world, g.world.find(g.items.rid, records.Claim, 1), parser="toy@2")


@planted_item
def a_log_probability_is_missing(g: worlds.Good, rng: random.Random) -> None:
    at = rng.choice(g.world.frames(g.items.rid))
    edit(g.world, at, lp=frame(g, at).lp[:-1])


@planted_item
def a_frame_has_no_log_probabilities(g: worlds.Good, rng: random.Random) -> None:
    edit(g.world, rng.choice(g.world.frames(g.items.rid)), lp=())


@planted("L5")
def log_probabilities_that_nobody_asked_for(g: worlds.Good, _: random.Random) -> None:
    at = g.world.find(g.plain.rid, records.Tok)
    edit(g.world, at, lp=(records.lp(b"x", -1.0),) * 2)


@planted("L5")
def a_message_is_not_of_its_json_format(g: worlds.Good, _: random.Random) -> None:
    with_format(g, g.plain, {"type": "json_object"})


def with_format(g: worlds.Good, request: records.Request, asked: dict[str, Any]) -> None:
    """As if the request had asked for a format."""
    at = beside(g.world, worlds.REQUESTS, request.rid)
    g.world.replace(at, msgspec.structs.replace(request, format=asked))


@planted("L6")
def reasoning_is_billed_wrong(g: worlds.Good, _: random.Random) -> None:
    w, at = g.world, beside(g.world, topics.USAGE, g.items.rid)
    end = w.find(g.items.rid, records.End)
    usage = w.decoded(end).usage  # type: ignore[union-attr]
    was = f'"reasoning_tokens":{usage.reasoning_tokens}'.encode()
    assert was in (w.log[at].value or b"")
    edit(w, end, usage=msgspec.structs.replace(usage, reasoning_tokens=1))
    w.log[at] = w.log[at]._replace(
        value=(w.log[at].value or b"").replace(was, b'"reasoning_tokens":1')
    )


@planted("C2")
def arguments_are_shown_as_text(g: worlds.Good, _: random.Random) -> None:
    """What a gateway would do that does not know marks."""
    for line in batches(g.world, g.items):
        for event in line.events:
            if event[1] == "response.function_call_arguments.delta":
                event[1] = "response.output_text.delta"


@planted("L6")
def the_bill_counts_another_number(g: worlds.Good, _: random.Random) -> None:
    w, at = g.world, beside(g.world, topics.USAGE, g.plain.rid)
    w.log[at] = w.log[at]._replace(
        value=(w.log[at].value or b"").replace(b'"output_tokens":20', b'"output_tokens":21')
    )


@planted("L6")
def usage_in_end_and_bill_is_wrong_alike(g: worlds.Good, _: random.Random) -> None:
    w, at = g.world, beside(g.world, topics.USAGE, g.plain.rid)
    edit(w, w.find(g.plain.rid, records.End), usage=records.Usage(2, 40))
    w.log[at] = w.log[at]._replace(
        value=(w.log[at].value or b"").replace(b'"output_tokens":20', b'"output_tokens":40')
    )


@planted("L6")
def a_response_is_never_billed(g: worlds.Good, _: random.Random) -> None:
    drop(g.world, beside(g.world, topics.USAGE, g.taken.rid))


@planted("L6")
def a_response_is_billed_twice_and_differently(g: worlds.Good, _: random.Random) -> None:
    g.world.bill(g.plain, "completed", records.Usage(2, 19), "0" * 16)


@planted("L6")
def the_bill_names_other_tokens(g: worlds.Good, _: random.Random) -> None:
    w, at = g.world, beside(g.world, topics.USAGE, g.plain.rid)
    metered = history.side_records(w.log[at])
    assert isinstance(metered, records.UsageRecord)
    w.log[at] = w.log[at]._replace(
        value=(w.log[at].value or b"").replace(metered.ids_digest.encode(), b"0" * 16)
    )


def priced(g: worlds.Good, request: records.Request, cost_nano: int) -> None:
    """The bill of a response has this cost."""
    w, at = g.world, beside(g.world, topics.USAGE, f'"rid":"{request.rid}')
    metered = history.side_records(w.log[at])
    assert isinstance(metered, records.UsageRecord)
    changed = msgspec.structs.replace(metered, cost_nano=cost_nano)
    w.log[at] = w.log[at]._replace(value=records.encode(changed))


@planted("L6")
def a_bill_has_a_negative_cost(g: worlds.Good, _: random.Random) -> None:
    priced(g, g.plain, -1)


@planted("L6")
def an_answer_that_is_given_again_has_a_cost(g: worlds.Good, _: random.Random) -> None:
    priced(g, g.given, 1)


def timed(g: worlds.Good, request: records.Request, **times: float | None) -> None:
    """The bill of a response has these times, or others by so much."""
    w, at = g.world, beside(g.world, topics.USAGE, f'"rid":"{request.rid}')
    metered = history.side_records(w.log[at])
    assert isinstance(metered, records.UsageRecord)
    changed = msgspec.structs.replace(metered, **times)
    assert changed != metered
    w.log[at] = w.log[at]._replace(value=records.encode(changed))


@planted("L6")
def a_first_token_is_counted_from_another_time(g: worlds.Good, _: random.Random) -> None:
    timed(g, g.plain, first_token_ms=19)


@planted("L6")
def a_takeover_begins_the_first_token_anew(g: worlds.Good, _: random.Random) -> None:
    """As if the second owner had counted the first token that it made itself."""
    w = g.world
    asked = next(r for r in w.log if r.key == g.taken.rid.encode() and r.topic != topics.TOKENS)
    entries = w.entries(g.taken.rid)
    claims = [i for i, e in enumerate(entries) if isinstance(e.record, records.Claim)]
    own = next(e for e in entries[claims[1] :] if isinstance(e.record, records.Tok))
    timed(g, g.taken, first_token_ms=own.timestamp - asked.timestamp)


@planted("L6")
def a_mean_time_between_tokens_is_another_one(g: worlds.Good, _: random.Random) -> None:
    timed(g, g.plain, inter_token_ms=11.5)


@planted("L6")
def a_response_without_tokens_has_a_first_one(g: worlds.Good, _: random.Random) -> None:
    timed(g, g.expired, first_token_ms=20)


@planted("L6")
def an_answer_that_is_given_again_has_times(g: worlds.Good, _: random.Random) -> None:
    timed(g, g.given, first_token_ms=20)


@planted("L6")
def the_prompt_is_not_billed(g: worlds.Good, _: random.Random) -> None:
    """END of a closing claim and the bill agree, and both forgot the prompt."""
    w, at = g.world, beside(g.world, topics.USAGE, g.failed.rid)
    edit(w, w.find(g.failed.rid, records.End), usage=records.Usage(0, 6))
    w.log[at] = w.log[at]._replace(
        value=(w.log[at].value or b"").replace(b'"input_tokens":2,', b"")
    )


@planted("L6")
def an_open_response_is_billed(g: worlds.Good, _: random.Random) -> None:
    drop(g.world, g.world.find(g.keyed.rid, records.End))


@planted("L7")
def a_fourth_attempt_generates(g: worlds.Good, _: random.Random) -> None:
    """The closing claim writes a token before its end."""
    w = g.world
    closing = w.decoded(w.find(g.failed.rid, records.Claim, 3))
    assert isinstance(closing, records.Claim)
    ids = scripted.expected_ids(g.failed.messages, 8)
    end = w.find(g.failed.rid, records.End)
    chain = reference_fold.link(reference_fold.START, ids[:6]).hex()
    w.log.insert(
        end,
        w.log[end]._replace(
            value=records.encode(records.Tok(g.failed.rid, closing.own, 6, ids[6:], " x", chain))
        ),
    )
    w.renumber()


@planted("L7")
def attempts_are_used_up_and_nobody_fails_it(g: worlds.Good, _: random.Random) -> None:
    edit(g.world, g.world.find(g.failed.rid, records.End), reason="stop")


@planted("L7")
def the_dead_letter_is_missing(g: worlds.Good, _: random.Random) -> None:
    drop(g.world, beside(g.world, topics.DLQ, g.failed.rid))


@planted("L7")
def the_dead_letter_counts_the_closing_claim(g: worlds.Good, _: random.Random) -> None:
    w, at = g.world, beside(g.world, topics.DLQ, g.failed.rid)
    w.log[at] = w.log[at]._replace(
        value=(w.log[at].value or b"").replace(b'"attempts":3', b'"attempts":4')
    )


@planted("L7")
def there_are_two_dead_letters_that_differ(g: worlds.Good, _: random.Random) -> None:
    w = g.world
    w.append(
        topics.DLQ,
        0,
        g.failed.rid,
        records.DeadLetter(
            g.failed.rid, g.failed.owner, "m", "engine_failed", 2, worlds.REQUESTS, 0, ""
        ),
    )


@planted("L7")
def a_good_response_has_a_dead_letter(g: worlds.Good, _: random.Random) -> None:
    w = g.world
    w.append(
        topics.DLQ,
        0,
        g.plain.rid,
        records.DeadLetter(
            g.plain.rid, g.plain.owner, "m", "attempts_exhausted", 3, worlds.REQUESTS, 0, ""
        ),
    )


@planted("R5")
def an_expired_response_has_tokens(g: worlds.Good, _: random.Random) -> None:
    edit(g.world, g.world.find(g.plain.rid, records.End), reason="expired")


@planted("R5")
def a_request_expires_before_its_time(g: worlds.Good, _: random.Random) -> None:
    w, at = g.world, beside(g.world, worlds.REQUESTS, g.expired.rid)
    w.log[at] = w.log[at]._replace(timestamp=w.log[at].timestamp + 1900)


@planted("R6")
def an_offset_is_committed_past_unfinished_work(g: worlds.Good, _: random.Random) -> None:
    drop(g.world, g.world.find(g.keyed.rid, records.End))


@planted("R6")
def an_offset_was_committed_before_the_end(g: worlds.Good, _: random.Random) -> None:
    """All is well when the log is read; at the time of the commit it was not."""
    next(line for line in g.world.lines["worker"] if line.op == "commit").wall -= 3.0


@planted("R6")
def a_successor_would_fold_from_behind_a_claim(g: worlds.Good, _: random.Random) -> None:
    g.world.committed[(worlds.REQUESTS, worlds.PARTITION)] = history.Commit(5, "10000")


@planted("R2")
def one_key_has_two_responses_in_the_log(g: worlds.Good, _: random.Random) -> None:
    again = g.world.ask("once", key="k-1")
    g.world.writer(again, "worker-2/b").frames(20).end()


@planted("R2")
def a_request_that_lost_its_race_runs_to_its_end(g: worlds.Good, _: random.Random) -> None:
    """No client was told of it. But its key is answered by another one."""
    g.world.writer(g.world.ask("once", key="k-1", answer="info"), "worker-2/b").frames(20).end()


@planted("R2")
def one_key_is_answered_with_two_responses(g: worlds.Good, _: random.Random) -> None:
    w, n = g.world, next(g.world.numbers)
    w.line("other", op="submit", f="invoke", n=n, user="alice", key="k-1")
    w.line("other", op="submit", f="ok", n=n, rid=g.plain.rid)


@planted("R3")
def a_refused_request_runs(g: worlds.Good, _: random.Random) -> None:
    done = next(
        line for line in g.world.lines["client"] if line.op == "submit" and line.rid == g.plain.rid
    )
    done.f, done.rid = "fail", ""


@planted("R3")
def a_refused_request_that_came_too_late_runs(g: worlds.Good, _: random.Random) -> None:
    g.world.writer(g.late, "worker-1/a").frames(20).end()


@planted("R3")
def a_refused_request_is_in_the_log_and_withdrawn(g: worlds.Good, _: random.Random) -> None:
    """Nothing ran. But the answer said that nothing was written."""
    w = g.world
    refused = w.ask("refused", answer="fail")
    w.token(records.Cancel(refused.rid, refused.owner, refused.echo, withdrawn=True))


@planted("R3")
def a_request_of_unknown_outcome_is_not_withdrawn_and_its_retry_runs_too(
    g: worlds.Good, _: random.Random
) -> None:
    drop(g.world, g.world.find(g.unknown.rid, records.Cancel))
    g.world.writer(g.unknown, "worker-2/b").frames(20).end()


@planted("R3")
def one_request_became_two_responses(g: worlds.Good, _: random.Random) -> None:
    w = g.world
    marks = [line.mark for line in w.lines["client"] if line.op == "submit" and line.f == "invoke"]
    at = beside(w, worlds.REQUESTS, g.taken.rid)
    w.log[at] = w.log[at]._replace(
        value=(w.log[at].value or b"").replace(f'"{marks[1]}"'.encode(), f'"{marks[0]}"'.encode())
    )


@planted("R4")
def a_cancel_was_acknowledged_and_the_response_completed(g: worlds.Good, _: random.Random) -> None:
    w, n = g.world, next(g.world.numbers)
    w.line("client", op="cancel", f="invoke", n=n, user="alice", rid=g.plain.rid)
    w.line("client", op="cancel", f="ok", n=n, status="cancelled")


@planted("R4")
def an_acknowledged_cancel_is_not_in_the_log(g: worlds.Good, _: random.Random) -> None:
    drop(g.world, g.world.find(g.cancelled.rid, records.Cancel))


@planted("L4")
def an_acknowledged_record_is_gone(g: worlds.Good, _: random.Random) -> None:
    """The last one, so that nothing else shows it."""
    places = [i for i, r in enumerate(g.world.log) if r.topic == topics.USAGE]
    del g.world.log[places[-1]]


@planted("L4")
def an_acknowledged_record_has_other_bytes(g: worlds.Good, _: random.Random) -> None:
    at = beside(g.world, topics.DLQ, g.failed.rid)
    g.world.log[at] = g.world.log[at]._replace(value=(g.world.log[at].value or b"") + b" ")


def forget(w: worlds.World, request: records.Request) -> None:
    """As if nothing had been written of it to `llm.history`."""
    w.log = [
        r
        for r in w.log
        if r.topic != topics.HISTORY or not (r.key or b"").startswith(request.rid.encode())
    ]
    w.renumber()


def rewrite(g: worlds.Good, request: records.Request, /, **changes: Any) -> None:
    """As if another content had been written."""
    forget(g.world, request)
    g.world.keep(request, **changes)


def what_is_kept(g: worlds.Good, request: records.Request) -> kept.History:
    values = [
        kept.decode_part(r.key, r.value)
        for r in g.world.log
        if r.topic == topics.HISTORY and (r.key or b"").startswith(request.rid.encode())
    ]
    found = kept.join([part for part in values if part is not None])
    assert found is not None
    return found


@planted("L9")
def what_is_kept_misses_a_frame(g: worlds.Good, rng: random.Random) -> None:
    was, n = what_is_kept(g, g.plain), rng.randrange(9)
    at, start = sum(f.ids for f in was.frames[:n]), sum(f.characters for f in was.frames[:n])
    lost = was.frames[n]
    rewrite(
        g,
        g.plain,
        frames=was.frames[:n] + was.frames[n + 1 :],
        ids=was.ids[:at] + was.ids[at + lost.ids :],
        text=was.text[:start] + was.text[start + lost.characters :],
    )


@planted("L9")
def what_is_kept_has_another_text(g: worlds.Good, _: random.Random) -> None:
    was = what_is_kept(g, g.taken)
    rewrite(g, g.taken, text=was.text[::-1] + "")


@planted("L9")
def what_is_kept_has_other_frame_boundaries(g: worlds.Good, _: random.Random) -> None:
    """Ids and text are right; the events would be others."""
    was = what_is_kept(g, g.plain)
    a, b, *rest = was.frames
    rewrite(g, g.plain, frames=[kept.Frame(a.ids + b.ids, a.characters + b.characters), *rest])


@planted("L9")
def what_is_kept_is_another_owners(g: worlds.Good, _: random.Random) -> None:
    other = worlds.owner("mallory")
    request = msgspec.structs.replace(g.plain, owner=other)
    rewrite(g, g.plain, owner=other, request=request)


@planted("L9")
def what_is_kept_has_another_request(g: worlds.Good, _: random.Random) -> None:
    messages = [{"role": "user", "content": "another"}]
    rewrite(g, g.plain, request=msgspec.structs.replace(g.plain, messages=messages))


@planted("L9")
def what_is_kept_forgets_the_takeover(g: worlds.Good, _: random.Random) -> None:
    rewrite(g, g.taken, claims=what_is_kept(g, g.taken).claims[1:])


@planted("L9")
def what_is_kept_puts_the_takeover_elsewhere(g: worlds.Good, _: random.Random) -> None:
    first, second = what_is_kept(g, g.taken).claims
    moved = kept.Claimed(second.at - 2, *msgspec.structs.astuple(second)[1:])
    rewrite(g, g.taken, claims=[first, moved])


@planted("L9")
def what_is_kept_has_lost_its_marks(g: worlds.Good, _: random.Random) -> None:
    rewrite(g, g.items, marks=[])


@planted("L9")
def what_is_kept_has_lost_its_log_probabilities(g: worlds.Good, _: random.Random) -> None:
    rewrite(g, g.items, lp=what_is_kept(g, g.items).lp[1:])


@planted("L9")
def what_is_kept_ended_at_another_time(g: worlds.Good, _: random.Random) -> None:
    rewrite(g, g.cancelled, ended_ms=what_is_kept(g, g.cancelled).ended_ms + 1)


@planted("L9")
def a_cancelled_response_is_kept_as_complete(g: worlds.Good, _: random.Random) -> None:
    was = what_is_kept(g, g.cancelled)
    rewrite(g, g.cancelled, end=records.End(was.rid, was.claims[-1].own, 10, "stop", "0" * 16))


@planted("L9")
def a_committed_response_is_not_kept(g: worlds.Good, rng: random.Random) -> None:
    forget(g.world, rng.choice([g.plain, g.taken, g.cancelled, g.failed, g.expired]))


@planted("L9")
def copies_of_what_is_kept_differ(g: worlds.Good, _: random.Random) -> None:
    g.world.keep(g.plain, ended_ms=1)


@planted("L9")
def half_of_a_large_one_is_kept(g: worlds.Good, rng: random.Random) -> None:
    large = [{"role": "user", "content": "x" * 2_000_000}]
    rewrite(g, g.plain, request=msgspec.structs.replace(g.plain, messages=large))
    numbers = [i for i, r in enumerate(g.world.log) if (r.key or b"").startswith(b"resp_")]
    there = [i for i in numbers if g.world.log[i].topic == topics.HISTORY][-3:]
    drop(g.world, rng.choice(there))


@planted("L9")
def what_is_not_stored_is_kept(g: worlds.Good, _: random.Random) -> None:
    at = beside(g.world, worlds.REQUESTS, g.plain.rid)
    g.world.replace(at, msgspec.structs.replace(g.plain, store=False))


@planted("L9")
def what_was_withdrawn_is_kept(g: worlds.Good, _: random.Random) -> None:
    g.world.keep(g.unknown)


@planted("L9")
def what_has_not_ended_is_kept(g: worlds.Good, _: random.Random) -> None:
    drop(g.world, g.world.find(g.keyed.rid, records.End))


@planted("L9")
def what_is_kept_lies_in_another_partition(g: worlds.Good, _: random.Random) -> None:
    at = next(i for i, r in enumerate(g.world.log) if r.topic == topics.HISTORY)
    g.world.log[at] = g.world.log[at]._replace(partition=worlds.PARTITION + 1)


@planted("L9")
def what_nobody_deleted_is_erased(g: worlds.Good, _: random.Random) -> None:
    g.world.put(topics.HISTORY, worlds.PARTITION, g.plain.rid, None)


@planted("L9")
def garbage_is_kept(g: worlds.Good, rng: random.Random) -> None:
    forget(g.world, g.plain)
    value = rng.choice([b"", b"{", b"\xff", b'{"t":"PART","part":0,"of":1}\n{}', b"[" * 5_000])
    g.world.put(topics.HISTORY, worlds.PARTITION, g.plain.rid, value)


@planted("A1")
def another_principal_cancelled(g: worlds.Good, _: random.Random) -> None:
    w = g.world
    at = w.find(g.plain.rid, records.Tok, 3)
    w.token(records.Cancel(g.plain.rid, worlds.owner("mallory"), g.plain.echo))
    w.log.insert(at, w.log.pop())
    w.renumber()


@planted("A1")
def another_principal_cancelled_before_any_claim(g: worlds.Good, _: random.Random) -> None:
    w = g.world
    at = w.find(g.plain.rid, records.Claim)
    w.token(records.Cancel(g.plain.rid, worlds.owner("mallory"), g.plain.echo))
    w.log.insert(at, w.log.pop())
    w.renumber()


@planted("A1")
def another_principal_deleted(g: worlds.Good, _: random.Random) -> None:
    record = records.Deleted(g.plain.rid, worlds.owner("mallory"))
    g.world.append(topics.DELETIONS, 0, g.plain.rid, record)


@planted("A1")
def a_record_lies_under_another_responses_key(g: worlds.Good, rng: random.Random) -> None:
    kind = rng.choice(["token", "request", "deletion"])
    other, w = g.taken.rid, g.world
    if kind == "token":
        w.append(topics.TOKENS, 0, other, records.Cancel(g.plain.rid, g.plain.owner))
    elif kind == "request":
        w.append(worlds.REQUESTS, 0, other, g.plain)
    else:
        w.append(topics.DELETIONS, 0, other, records.Deleted(g.plain.rid, g.plain.owner))


@planted("A2")
def a_record_has_no_good_tag(g: worlds.Good, rng: random.Random) -> None:
    """Readers see that it is there and not what it says."""
    topic = rng.choice([topics.TOKENS, worlds.REQUESTS, topics.DELETIONS, topics.REVOCATIONS])
    g.world.append(topic, 0, g.plain.rid, records.Cancel(g.plain.rid, g.plain.owner))
    reason = rng.choice(["no tag", "unknown key", "wrong tag", "not its writer"])
    g.world.log[-1] = g.world.log[-1]._replace(value=None, forgery=reason)


# ---- at the watchers


@planted("C1")
def a_watcher_misses_one_event(g: worlds.Good, rng: random.Random) -> None:
    line = rng.choice(batches(g.world, g.plain)[:-1])
    del line.events[rng.randrange(len(line.events))]


@planted("C1")
def a_watcher_gets_one_event_twice(g: worlds.Good, rng: random.Random) -> None:
    line = rng.choice(batches(g.world, g.plain))
    line.events.insert(1, line.events[0])


@planted("C1")
def two_events_are_swapped(g: worlds.Good, rng: random.Random) -> None:
    events = rng.choice(batches(g.world, g.plain)[:-1]).events
    events[0], events[1] = events[1], events[0]


@planted("C1")
def a_reconnect_resumes_one_event_too_late(g: worlds.Good, _: random.Random) -> None:
    del batches(g.world, g.taken, "shaky")[1].events[0]


@planted("C1")
def a_reconnect_resumes_one_event_too_early(g: worlds.Good, _: random.Random) -> None:
    first, second = batches(g.world, g.taken, "shaky")[:2]
    second.events.insert(0, first.events[-1])


@planted("C1")
def an_event_follows_the_end(g: worlds.Good, _: random.Random) -> None:
    last = batches(g.world, g.plain)[-1]
    last.events.append([last.events[-1][0] + 1, "response.output_text.delta", " more"])


@planted("C1")
def the_end_is_announced_without_a_terminal_event(g: worlds.Good, _: random.Random) -> None:
    batches(g.world, g.plain)[-1].events.pop()


@planted("C1")
def a_watcher_waits_in_vain(g: worlds.Good, _: random.Random) -> None:
    w, mine = g.world, watch_of(g.world, g.plain)
    gone = [id(end_line(w, g.plain))]
    w.lines["client"] = [line for line in w.lines["client"] if id(line) not in gone]
    mine[-1].code = transcript.IN_VAIN


@planted("C2")
def one_watchers_text_is_changed(g: worlds.Good, rng: random.Random) -> None:
    event = rng.choice(
        [e for line in batches(g.world, g.plain) for e in line.events if len(e) > 2 and e[2]]
    )
    event[2] = event[2][::-1] + "!"


@planted("C2")
def a_watcher_gets_two_texts_spliced(g: worlds.Good, rng: random.Random) -> None:
    """From a random index on, the deltas of another response; the numbers are right."""
    deltas = [e for line in batches(g.world, g.plain) for e in line.events if len(e) > 2 and e[2]]
    foreign = [
        e[2] for line in batches(g.world, g.taken) for e in line.events if len(e) > 2 and e[2]
    ]
    for i in range(rng.randrange(1, len(deltas) - 1), len(deltas)):
        deltas[i][2] = foreign[i]


@planted("C2")
def push_reads_from_a_lossy_path(g: worlds.Good, rng: random.Random) -> None:
    """Events are numbered where they are delivered, so a lost one leaves no gap in the numbers."""
    lines = batches(g.world, g.plain)
    lost = rng.choice([e for line in lines for e in line.events if len(e) > 2 and e[2]])[0]
    for line in lines:
        line.events = [[e[0] - (e[0] > lost), *e[1:]] for e in line.events if e[0] != lost]


@planted("C2")
def the_final_text_is_another(g: worlds.Good, _: random.Random) -> None:
    line = end_line(g.world, g.plain)
    line.text = (line.text or "") + "!"


@planted("C3")
def an_index_overwriting_client_mixes_two_generations(g: worlds.Good, _: random.Random) -> None:
    """It keeps the last writer's token for every index: the zombie's win."""
    w, kept = g.world, dict[int, str]()
    claim = w.decoded(w.find(g.taken.rid, records.Claim))
    assert isinstance(claim, records.Claim)
    for e in w.entries(g.taken.rid):
        if isinstance(e.record, records.Tok):
            kept[e.record.seq] = e.record.text + ("?" if e.record.own == claim.own else "")
    end_line(w, g.taken).text = "".join(kept[seq] for seq in sorted(kept))


@planted("C3")
def watchers_count_different_tokens(g: worlds.Good, _: random.Random) -> None:
    end_line(g.world, g.plain).tokens = 19


@planted("C3")
def one_watcher_sees_it_cancelled(g: worlds.Good, _: random.Random) -> None:
    end_line(g.world, g.plain).status = "cancelled"


@planted("C3")
def an_event_differs_in_what_no_delta_shows(g: worlds.Good, rng: random.Random) -> None:
    """A number, an id or a name: all bytes are compared, not only the text."""
    event = rng.choice([e for line in batches(g.world, g.items) for e in line.events])
    event[3] = transcript.digest(b"other")


@planted("C3")
def the_final_call_has_another_id(g: worlds.Good, _: random.Random) -> None:
    """All watchers agree, and the log says otherwise."""
    for watcher in ("steady", "shaky"):
        items = end_line(g.world, g.items, watcher).items or []
        call = next(item for item in items if item[0] == "function_call")
        call[2] = "call_random"


@planted("C5")
def a_stranger_gets_events(g: worlds.Good, _: random.Random) -> None:
    watch_of(g.world, g.plain)[0].user = "mallory"


@planted("C5")
def events_of_another_response_come_on_a_watch(g: worlds.Good, _: random.Random) -> None:
    batches(g.world, g.plain)[2].rid = g.taken.rid


def copied(g: worlds.Good, request: records.Request, count: int) -> None:
    for n, r in enumerate(g.world.log):
        claim = records.decode_token(r.value) if r.topic == topics.TOKENS else None
        if isinstance(claim, records.Claim) and claim.rid == request.rid:
            edit(g.world, n, copied=count)


def forks(g: worlds.Good, fork: records.Fork | None) -> None:
    at = beside(g.world, worlds.REQUESTS, f'"rid":"{g.fork.rid}"')
    g.world.replace(at, msgspec.structs.replace(g.fork, fork=fork))


def notice(g: worlds.Good, request: records.Request, **changes: Any) -> None:
    """Change what the feed says of the end of a response."""
    w, rid = g.world, request.rid.encode()
    at = max(i for i, r in enumerate(w.log) if r.topic == topics.ACTIVITY and r.key == rid)
    found = activity.decode(w.log[at].key, w.log[at].value)
    assert isinstance(found, activity.Ended)
    changed = msgspec.structs.replace(found, **changes)
    w.log[at] = w.log[at]._replace(value=activity.encode(changed))


@planted("L12")
def the_feed_says_another_end(g: worlds.Good, _: random.Random) -> None:
    notice(g, g.cancelled, status="completed")


@planted("L12")
def the_feed_tells_another_owner(g: worlds.Good, _: random.Random) -> None:
    notice(g, g.plain, owner=g.taken.owner)


@planted("L12")
def the_feed_does_not_tell_of_an_end(g: worlds.Good, _: random.Random) -> None:
    w, rid = g.world, g.plain.rid.encode()
    drop(w, max(i for i, r in enumerate(w.log) if r.topic == topics.ACTIVITY and r.key == rid))


@planted("L12")
def the_feed_tells_another_time(g: worlds.Good, _: random.Random) -> None:
    notice(g, g.plain, created_at=1)


@planted("L12")
def the_feed_tells_of_an_embedding(g: worlds.Good, _: random.Random) -> None:
    at = beside(g.world, worlds.REQUESTS, f'"rid":"{g.plain.rid}"')
    echo = {**g.plain.echo, "object": "embeddings"}
    g.world.replace(at, msgspec.structs.replace(g.plain, echo=echo))


@planted("L12")
def the_feed_says_that_a_withdrawn_one_ended(g: worlds.Good, _: random.Random) -> None:
    g.world.tell(g.unknown, "cancelled")


def told(g: worlds.Good, kind: type[conversations.Act], nth: int = 0) -> int:
    """Where the log has an act of the conversation."""
    found = [
        i
        for i, r in enumerate(g.world.log)
        if r.topic == topics.CONVERSATIONS
        and isinstance(conversations.decode(r.key, r.value), kind)
    ]
    return found[nth]


def retell(g: worlds.Good, at: int, **changes: Any) -> None:
    record = g.world.log[at]
    act = conversations.decode(record.key, record.value)
    assert act is not None
    changed = msgspec.structs.replace(act, **changes)
    g.world.log[at] = record._replace(value=conversations.encode(changed))


@planted("L11")
def a_turn_has_no_place(g: worlds.Good, _: random.Random) -> None:
    drop(g.world, told(g, conversations.Turn, -1))


@planted("L11")
def a_turn_that_lost_is_asked_for(g: worlds.Good, _: random.Random) -> None:
    retell(g, told(g, conversations.Turn, -1), parent=None)


@planted("L11")
def a_turn_is_in_another_owners_conversation(g: worlds.Good, _: random.Random) -> None:
    other = g.taken.owner
    for kind in (conversations.Created, conversations.Added, conversations.Chosen):
        retell(g, told(g, kind), by=other)
    retell(g, told(g, conversations.Chosen, 1), by=other)
    for nth in (0, 1, 2):
        retell(g, told(g, conversations.Turn, nth), by=other)


@planted("L11")
def a_turn_may_be_asked_for_longer_than_it_says(g: worlds.Good, _: random.Random) -> None:
    retell(g, told(g, conversations.Turn, -1), until=1)


@planted("L11")
def a_turn_is_asked_for_while_the_one_before_it_runs(g: worlds.Good, _: random.Random) -> None:
    w, rid = g.world, g.turn.rid.encode()
    at = next(i for i, r in enumerate(w.log) if r.topic == worlds.REQUESTS and r.key == rid)
    w.log[at] = w.log[at]._replace(timestamp=worlds.T0)


def asks(g: worlds.Good, **changes: Any) -> None:
    """Change the request whose prompt lacks messages."""
    at = beside(g.world, worlds.REQUESTS, f'"rid":"{g.shortened.rid}"')
    g.world.replace(at, msgspec.structs.replace(g.shortened, **changes))


def leaves_out(g: worlds.Good, count: int, claim: int = 0) -> None:
    edit(g.world, g.world.find(g.shortened.rid, records.Claim, claim), dropped=count)


@planted("L13")
def messages_are_left_out_that_must_not_be(g: worlds.Good, _: random.Random) -> None:
    asks(g, truncate=False)


@planted("L13")
def half_a_turn_is_left_out(g: worlds.Good, _: random.Random) -> None:
    leaves_out(g, 3)


@planted("L13")
def the_last_question_is_left_out(g: worlds.Good, _: random.Random) -> None:
    leaves_out(g, 5)


@planted("L13")
def a_call_is_left_out_without_its_output(g: worlds.Good, _: random.Random) -> None:
    said = [dict(message) for message in g.shortened.messages]
    said[1]["tool_calls"] = [{"id": "c", "type": "function"}]
    said[4] = {"role": "tool", "tool_call_id": "c", "content": "out"}
    asks(g, messages=said)
    leaves_out(g, 2)


@planted("L13")
def a_takeover_says_what_is_left_out(g: worlds.Good, _: random.Random) -> None:
    leaves_out(g, 4, claim=1)


@planted("L2")
def a_takeover_has_the_whole_prompt(g: worlds.Good, _: random.Random) -> None:
    leaves_out(g, 0)


@planted("L9")
def the_history_has_another_number_of_messages_left_out(g: worlds.Good, _: random.Random) -> None:
    rewrite(g, g.shortened, dropped=2)


def reroute(g: worlds.Good, topic: str = worlds.SMALL, **changes: Any) -> None:
    """Change the reroute of the response that another pool answered."""
    w = g.world
    at = beside(w, worlds.SMALL, g.elsewhere.rid)
    found = records.reroute_of(w.log[at].key, w.log[at].value)
    assert found is not None
    w.log[at] = w.log[at]._replace(topic=topic)
    w.replace(at, msgspec.structs.replace(found, **changes))
    w.renumber()


@planted("L14")
def a_reroute_holds_another_request(g: worlds.Good, _: random.Random) -> None:
    reroute(g, request=msgspec.structs.replace(g.elsewhere, messages=[]))


@planted("L14")
def a_reroute_lies_in_the_own_topic(g: worlds.Good, _: random.Random) -> None:
    reroute(g, worlds.REQUESTS)


@planted("L14")
def a_reroute_names_another_time(g: worlds.Good, _: random.Random) -> None:
    reroute(g, asked_ms=worlds.T0 + 10**9)


@planted("L14")
def a_claim_names_the_model_that_was_asked_for(g: worlds.Good, _: random.Random) -> None:
    edit(g.world, g.world.find(g.elsewhere.rid, records.Claim, 1), served="m")


def claims_of_two_models(g: worlds.Good, at: int = 1, **changes: Any) -> None:
    edit(g.world, g.world.find(g.two_models.rid, records.Claim, at), **changes)


@planted("L2")
def ids_of_two_models_are_in_one_item(g: worlds.Good, _: random.Random) -> None:
    claims_of_two_models(g, continues=False)


@planted("L2")
def a_takeover_of_a_segment_is_of_the_first_model(g: worlds.Good, _: random.Random) -> None:
    claims_of_two_models(g, 2, model_rev="scripted-1")


@planted("L17")
def a_model_continues_itself(g: worlds.Good, _: random.Random) -> None:
    claims_of_two_models(g, model_rev="scripted-1")


@planted("L17")
def a_first_claim_continues(g: worlds.Good, _: random.Random) -> None:
    edit(g.world, g.world.find(g.plain.rid, records.Claim), continues=True)


@planted("L17")
def a_continued_answer_names_no_model(g: worlds.Good, _: random.Random) -> None:
    claims_of_two_models(g, served="")


@planted("L17")
def characters_are_continued_as_ids(g: worlds.Good, _: random.Random) -> None:
    claims_of_two_models(g, 0, tokenizer_digest="unicode")


@planted("L17")
def a_pool_continues_that_nobody_asked_to(g: worlds.Good, _: random.Random) -> None:
    w = g.world
    at = beside(w, worlds.SMALL, g.two_models.rid)
    found = records.reroute_of(w.log[at].key, w.log[at].value)
    assert found is not None
    w.replace(at, msgspec.structs.replace(found, continues=False))


@planted("L17")
def a_grammar_is_continued_without_its_state(g: worlds.Good, _: random.Random) -> None:
    at = beside(g.world, worlds.REQUESTS, g.two_models.rid)
    asked = msgspec.structs.replace(g.two_models, format={"type": "regex", "pattern": ".*"})
    g.world.replace(at, asked)


@planted("L17")
def more_than_text_is_continued(g: worlds.Good, _: random.Random) -> None:
    at = g.world.find(g.two_models.rid, records.Tok)
    edit(g.world, at, marks=(records.Mark(0, 0, "m"),))


@planted("L9")
def the_history_does_not_say_who_continued(g: worlds.Good, _: random.Random) -> None:
    rewrite(g, g.two_models, continued=[])


@planted("C1")
def the_end_of_the_first_item_is_not_told(g: worlds.Good, _: random.Random) -> None:
    for line in batches(g.world, g.two_models):
        line.events = [e for e in line.events or [] if e[1] != "response.output_item.done"]


def continues(g: worlds.Good, last: dict[str, Any] | None = None, **changes: Any) -> None:
    """Change the request that continues a text; `last`: members of the message that it is of."""
    at = beside(g.world, worlds.REQUESTS, f'"rid":"{g.continued.rid}"')
    if last is not None:
        said = g.continued.messages
        changes["messages"] = [*said[:-1], {**said[-1], **last}]
    g.world.replace(at, msgspec.structs.replace(g.continued, **changes))


@planted("L15")
def another_text_is_continued_than_was_said(g: worlds.Good, _: random.Random) -> None:
    continues(g, {"content": g.continued.messages[-1]["content"] + " more"})


@planted("L15")
def a_question_is_continued(g: worlds.Good, _: random.Random) -> None:
    continues(g, {"role": "user"})


@planted("L15")
def an_answer_that_calls_is_continued(g: worlds.Good, _: random.Random) -> None:
    continues(g, {"tool_calls": [{"id": "c", "type": "function"}]})


@planted("L15")
def a_text_is_continued_under_a_format(g: worlds.Good, _: random.Random) -> None:
    continues(g, format={"type": "regex", "pattern": ".*"})


@planted("L15")
def a_text_is_continued_with_a_call_that_must_come(g: worlds.Good, _: random.Random) -> None:
    continues(g, tool_choice=records.ToolChoice("required"))


@planted("L15")
def a_complete_answer_is_continued(g: worlds.Good, _: random.Random) -> None:
    edit(g.world, g.world.find(g.cut.rid, records.End), reason="stop")


@planted("L15")
def another_principals_text_is_continued(g: worlds.Good, _: random.Random) -> None:
    text = scripted.expected_text(g.plain.messages, 20)
    edit(g.world, g.world.find(g.plain.rid, records.End), reason="length")
    continues(g, {"content": text}, previous=g.plain.rid)


@planted("L15")
def an_answer_with_calls_is_continued(g: worlds.Good, _: random.Random) -> None:
    edit(g.world, g.world.find(g.items.rid, records.End), reason="length")
    continues(g, previous=g.items.rid, owner=g.items.owner)


@planted("L18")
def a_hedged_claim_names_no_owner(g: worlds.Good, _: random.Random) -> None:
    """It has no effect, so nothing else shows it."""
    at = g.world.find(g.hedged.rid, records.Claim, 2)
    edit(g.world, at, prev=None)


@planted("L18")
def a_response_is_hedged_twice(g: worlds.Good, _: random.Random) -> None:
    edit(g.world, g.world.find(g.hedged.rid, records.Claim, 3), hedged=True)


@planted("L18")
def a_worker_of_another_pool_hedges(g: worlds.Good, _: random.Random) -> None:
    edit(g.world, g.world.find(g.hedged.rid, records.Claim, 1), req_topic=worlds.SMALL)


@planted("L18")
def a_worker_of_another_model_hedges(g: worlds.Good, _: random.Random) -> None:
    edit(g.world, g.world.find(g.hedged.rid, records.Claim, 1), model_rev="scripted-2")


@planted("L18")
def a_worker_hedges_against_itself(g: worlds.Good, _: random.Random) -> None:
    edit(g.world, g.world.find(g.hedged.rid, records.Claim, 1), worker="worker-1/a")


@planted("L18")
def a_fork_is_hedged(g: worlds.Good, _: random.Random) -> None:
    edit(g.world, g.world.find(g.fork.rid, records.Claim, 1), hedged=True)


@planted("L7")
def a_hedged_claim_counts_as_a_lost_worker(g: worlds.Good, _: random.Random) -> None:
    """Without the mark the response has a fourth attempt."""
    edit(g.world, g.world.find(g.hedged.rid, records.Claim, 1), hedged=False)


@planted("L6")
def the_model_that_was_asked_for_is_billed(g: worlds.Good, _: random.Random) -> None:
    w = g.world
    at = beside(w, topics.USAGE, g.elsewhere.rid)
    value = w.log[at].value or b""
    assert value.count(b'"model":"small-model"') == 1
    value = value.replace(b'"model":"small-model"', b'"model":"m"')
    w.log[at] = w.log[at]._replace(value=value)


@planted("L9")
def the_history_does_not_name_the_model(g: worlds.Good, _: random.Random) -> None:
    rewrite(g, g.elsewhere, served=[])


@planted("L16")
def the_answer_of_another_question_is_named(g: worlds.Good, _: random.Random) -> None:
    edit(g.world, g.world.find(g.given.rid, records.Claim), answer_of=g.plain.rid)


@planted("L16")
def a_takeover_gives_an_answer_again(g: worlds.Good, _: random.Random) -> None:
    edit(g.world, g.world.find(g.taken.rid, records.Claim, 1), answer_of=g.plain.rid)


@planted("L16")
def the_bill_does_not_say_that_nothing_was_generated(g: worlds.Good, _: random.Random) -> None:
    w = g.world
    at = beside(w, topics.USAGE, f'"rid":"{g.given.rid}')
    value = w.log[at].value or b""
    named = f',"answer_of":"{g.greedy.rid}"'.encode()
    assert value.count(named) == 1
    w.log[at] = w.log[at]._replace(value=value.replace(named, b""))


@planted("L16")
def a_bill_says_that_nothing_was_generated(g: worlds.Good, _: random.Random) -> None:
    w = g.world
    at = beside(w, topics.USAGE, g.plain.rid)
    value = (w.log[at].value or b"")[:-1] + b',"answer_of":"resp_x"}'
    w.log[at] = w.log[at]._replace(value=value)


@planted("L9")
def the_history_does_not_name_the_answer(g: worlds.Good, _: random.Random) -> None:
    rewrite(g, g.given, answers=[])


@planted("C1")
def the_change_of_the_model_is_not_told(g: worlds.Good, _: random.Random) -> None:
    """Then every number behind it is another event."""
    for line in batches(g.world, g.elsewhere):
        line.events = [e for e in line.events or [] if e[0] != 3]


@planted("L10")
def a_fork_copies_a_token_too_many(g: worlds.Good, _: random.Random) -> None:
    copied(g, g.fork, 8)


@planted("L10")
def a_frame_has_copied_and_generated_ids(g: worlds.Good, _: random.Random) -> None:
    copied(g, g.fork, 6)


@planted("L10")
def a_takeover_copies_another_number_of_ids(g: worlds.Good, _: random.Random) -> None:
    edit(g.world, g.world.find(g.fork.rid, records.Claim, 0), copied=4)
    copied_by_second = g.world.find(g.fork.rid, records.Claim, 1)
    edit(g.world, copied_by_second, copied=0)


@planted("L10")
def a_fork_is_of_another_response(g: worlds.Good, _: random.Random) -> None:
    forks(g, records.Fork(g.keyed.rid, 7))


@planted("L10")
def a_fork_is_of_anothers_response(g: worlds.Good, _: random.Random) -> None:
    forks(g, records.Fork(g.taken.rid, 7))


@planted("L10")
def a_fork_has_more_than_its_source(g: worlds.Good, _: random.Random) -> None:
    forks(g, records.Fork(g.plain.rid, 21))


@planted("L10")
def a_request_has_other_ids_than_the_source_of_its_fork(g: worlds.Good, _: random.Random) -> None:
    other = records.ForkSource("r", "d", [1, 2, 3, 4, 5, 6, 7])
    forks(g, records.Fork(g.plain.rid, 7, source=other))


@planted("L10")
def what_is_no_fork_copies(g: worlds.Good, _: random.Random) -> None:
    forks(g, None)


PARTS = 4  # tests, so that several processes share the plantings

# What only shows to who knows what the parser had to find.
BY_CONTENT = {"a_message_begins_one_character_early"}


def test_planted_items_are_caught_in_any_log() -> None:
    """Where nobody knows what the parser had to find, as in real logs."""
    with cases.collected() as case:
        for name in ITEMS:
            with case(name):
                world = worlds.good()
                PLANTED[name][1](world, random.Random(name))
                failed = world.world.judge(by_content=False).failed()
                assert ("L5" in failed) == (name not in BY_CONTENT)


def test_other_formats_need_no_json() -> None:
    g = worlds.good()
    with_format(g, g.plain, {"type": "regex", "pattern": ".*"})
    assert "L5" not in g.world.judge().failed()


def test_a_message_that_a_stop_string_may_have_cut_needs_no_json() -> None:
    g = worlds.good()
    stops = msgspec.structs.replace(g.plain.sampling, stop=("never said",))
    with_format(g, msgspec.structs.replace(g.plain, sampling=stops), {"type": "json_object"})
    assert "L5" not in g.world.judge().failed()


def test_arguments_of_a_function_that_is_not_strict_need_no_json() -> None:
    g = worlds.good()
    arguments_lose_a_character(g, random.Random(0))
    tool = {"type": "function", "function": {"name": "weather", "strict": False}}
    at = beside(g.world, worlds.REQUESTS, g.items.rid)
    g.world.replace(at, msgspec.structs.replace(g.items, tools=[tool]))
    assert "L5" not in g.world.judge(by_content=False).failed()


def test_what_was_deleted_is_erased_and_may_come_back_and_copies_count_once() -> None:
    g = worlds.good()
    g.world.keep(g.taken)
    g.world.append(topics.DELETIONS, 0, g.plain.rid, records.Deleted(g.plain.rid, g.plain.owner))
    g.world.put(topics.HISTORY, worlds.PARTITION, g.plain.rid, None)
    g.world.keep(g.plain)
    g.world.put(topics.HISTORY, worlds.PARTITION, g.plain.rid, None)
    g.world.put(topics.HISTORY, 0, kept.file_key(g.plain.owner.cache_scope, "0" * 64, 0), b"a file")
    g.world.put(topics.HISTORY, worlds.PARTITION, f"{g.taken.rid}:metadata", b"{}")
    assert g.world.judge().failed() == []
    forget(g.world, g.plain)
    assert g.world.judge().failed() == []


def test_what_is_not_committed_yet_need_not_be_kept() -> None:
    g = worlds.good()
    for request in (g.again, g.items, g.fork):
        forget(g.world, request)
    out = g.world.judge()
    assert out.failed() == []
    assert out.results["L9"].count == 16


class Forgetful(fold.Fold):
    """Names the model of the first claim, whatever a takeover says."""

    def _claim(self, record: records.Claim) -> fold.Outcome:
        before, first = self.served, self.first
        outcome = super()._claim(record)
        self.served = self.served if first is None else before
        return outcome


class Credulous(fold.Fold):
    """Takes every answer for one that was generated."""

    def _claim(self, record: records.Claim) -> fold.Outcome:
        outcome = super()._claim(record)
        self.answer_of = ""
        return outcome


def test_a_fold_that_names_no_former_answer_is_found() -> None:
    assert worlds.good().world.judge(fold_class=Credulous).failed() == ["L1"]


class OneItem(fold.Fold):
    """Does not see that another model continues."""

    def _claim(self, record: records.Claim) -> fold.Outcome:
        return super()._claim(msgspec.structs.replace(record, continues=False))


def test_a_fold_without_segments_is_found() -> None:
    assert worlds.good().world.judge(fold_class=OneItem).failed() == ["L1"]


class Unhedged(fold.Fold):
    """Takes every claim for one that replaces a lost worker."""

    def _claim(self, record: records.Claim) -> fold.Outcome:
        return super()._claim(msgspec.structs.replace(record, hedged=False))


def test_a_fold_that_does_not_know_hedged_claims_is_found() -> None:
    assert worlds.good().world.judge(fold_class=Unhedged).failed() == ["L1"]


def test_a_fold_that_names_another_model_is_found() -> None:
    assert worlds.good().world.judge(fold_class=Forgetful).failed() == ["L1"]


def test_the_good_history_passes() -> None:
    out = worlds.good().world.judge()
    assert out.verdict is report.Verdict.PASS, "\n".join(out.lines())
    unjudged = [name for name, r in out.results.items() if r.verdict is report.Verdict.NOT_JUDGED]
    assert unjudged == ["L8", "C4"]


def test_another_pool_s_responses_are_counted_by_how_they_came_there() -> None:
    """One was rerouted before its first token, the text of the other one was continued."""
    figures = worlds.good().world.judge().figures
    assert figures["responses of another pool's model"] == 2
    assert figures["responses of another pool's model after a reroute"] == 1
    assert figures["responses that another model continued"] == 1


@pytest.mark.parametrize("part", range(PARTS))
def test_planted_histories_are_caught_by_their_checks_n_of_n(part: int) -> None:
    """Each by itself. One that draws random numbers is planted in three places."""
    with cases.collected() as case:
        for name in list(PLANTED)[part::PARTS]:
            check, planting = PLANTED[name]
            for seed in ("", "0", "1"):
                with case(f"{seed}{name}"):
                    world, rng = worlds.good(), random.Random(f"{seed}{name}")
                    drawn = rng.getstate()
                    planting(world, rng)
                    out = world.world.judge()
                    assert check in out.failed(), f"failed were {out.failed()}"
                    assert out.exit_code == 1
                    assert out.results[check].counterexamples[0].what
                if rng.getstate() == drawn:
                    break


def test_copies_of_a_bill_may_differ_in_the_cost_because_prices_change() -> None:
    g = worlds.good()
    metered = history.side_records(g.world.log[beside(g.world, topics.USAGE, g.plain.rid)])
    assert isinstance(metered, records.UsageRecord)
    for cost_nano in (None, 5, 6):
        copy = msgspec.structs.replace(metered, cost_nano=cost_nano)
        g.world.append(topics.USAGE, 0, g.plain.owner.key, copy)
    out = g.world.judge()
    assert out.failed() == []
    assert out.figures["usage records that repeat one"] == 3
    assert out.figures["usage records of another cost than the first"] == 2
