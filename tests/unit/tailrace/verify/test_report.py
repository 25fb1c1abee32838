"""Verdicts add up so that nothing unproven is green, and a report says what to look at first."""

from __future__ import annotations

import json

import pytest

from tailrace import log
from tailrace.protocol import ids, records, topics
from tailrace.verify import (
    checks,
    clients,
    command,
    history,
    outcome,
    reference_fold,
    report,
    transcript,
)
from tests.support import cases
from tests.unit.tailrace.verify import histories as worlds


def test_nothing_judged_is_inconclusive() -> None:
    out = report.Report()
    assert out.verdict is report.Verdict.UNKNOWN
    assert out.exit_code == 2


def test_unknown_beats_pass_and_fail_beats_unknown() -> None:
    out = report.Report()
    out.count("L1")
    assert out.exit_code == 0
    out.unknown("C2", "not in the input")
    assert out.exit_code == 2
    out.fail("L3", report.Counterexample("a gap"))
    assert out.exit_code == 1


def test_the_smallest_counterexamples_are_kept_also_when_parts_are_added() -> None:
    out, other = report.Report(), report.Report()
    for size in (9, 5, 7, 8):
        out.fail("L3", report.Counterexample("w", size=size))
    other.fail("L3", report.Counterexample("w", size=6))
    out.absorb(other)
    assert [w.size for w in out.results["L3"].counterexamples] == [5, 6, 7]
    assert out.results["L3"].failed == 5


def test_a_counterexample_shows_the_records_around_it_without_their_text() -> None:
    g = worlds.good()
    at = g.world.find(g.plain.rid, records.End)
    g.world.replace(at, records.End(g.plain.rid, "x" * 32, 20, "stop", "0" * 16))
    text = "\n".join(g.world.judge().lines())
    assert f"R1 failed: the request never reached an end [{g.plain.rid}]" in text
    assert "TOK   own=" in text
    assert g.world.entries(g.plain.rid)[3].record.text not in text  # type: ignore[union-attr]


def test_as_json_says_the_same() -> None:
    out = worlds.good().world.judge()
    found = json.loads(json.dumps(out.as_json()))
    assert found["verdict"] == "pass"
    assert found["checks"]["L1"]["judged"] == 21
    assert found["figures"]["takeovers with k > 0"] == 10


@cases.each(("q", "value"), [(0.5, 50), (0.99, 99), (1.0, 100), (0.0, 1)])
def test_quantiles(q: float, value: float) -> None:
    assert report.quantile(list(range(100, 0, -1)), q) == value


def test_a_young_open_response_is_no_failure_and_an_old_one_is() -> None:
    w = worlds.World()
    w.writer(w.ask("open"), "worker-1/a").frames(4)
    young, _ = checks.judge(w.history(), checks.Options(settle_s=900.0))
    assert young.exit_code == 0
    assert young.notes["response still open"] == 1
    w.now += 901_000
    w.ask("much later")
    old, _ = checks.judge(w.history(), checks.Options(settle_s=900.0))
    assert old.failed() == ["R1"]


def test_what_retention_cut_off_is_not_judged() -> None:
    g = worlds.good()
    found = g.world.history()
    cut = history.History(
        tag=found.tag, partitions=8, beginnings={(topics.TOKENS, worlds.PARTITION): 5}
    )
    for r in g.world.log:
        if r.topic != topics.TOKENS or r.offset >= 5:
            cut.add(r)
    out, _ = checks.judge(cut, checks.Options(settle_s=0.0))
    assert out.exit_code == 0
    assert out.notes["response older than the log (history_lost)"] == 1


def test_a_response_of_another_log_is_not_judged() -> None:
    w = worlds.World()
    w.writer(w.ask("here"), "worker-1/a").frames(4)
    found = history.gather(w.log, incarnation="another", partitions=8)
    out, _ = checks.judge(found, checks.Options(settle_s=0.0))
    assert out.failed() == []
    assert out.notes["response of another log"] == 1


def test_garbage_is_counted_and_harms_nobody() -> None:
    g = worlds.good()
    for topic in (topics.TOKENS, worlds.REQUESTS, topics.USAGE, topics.DLQ):
        for value in (b"", b"{", None, b'{"t":"TOK"}'):
            g.world.log.append(
                log.Record(
                    topic,
                    worlds.PARTITION if "USAGE" not in topic else 0,
                    10_000,
                    g.world.now,
                    b"k",
                    value,
                    (),
                )
            )
    stray = records.Cancel(
        ids.mint(ids.Address(worlds.TAG, 1, 0), b"y" * 11), worlds.owner("alice")
    )
    g.world.log.append(
        log.Record(
            topics.TOKENS,
            worlds.PARTITION,
            10_001,
            g.world.now,
            stray.rid.encode(),
            records.encode(stray),
            (),
        )
    )
    found = g.world.history()
    out, _ = checks.judge(found, checks.Options(settle_s=0.0))
    assert out.failed() == []
    assert found.garbage[topics.TOKENS] == 5
    assert found.garbage[worlds.REQUESTS] == 4


def test_half_a_last_line_is_what_a_killed_process_leaves() -> None:
    line = transcript.Line(op="heal", wall=1.0)
    assert transcript.read(transcript.encode(line) + b'{"op":"ev', "t") == [line]


def test_a_broken_line_in_the_middle_is_named() -> None:
    with pytest.raises(transcript.Unreadable, match=r"t:2"):
        transcript.read(b'{"op":"heal"}\n{"op":\n{"op":"heal"}\n', "t")


def test_no_file_is_said_and_not_green() -> None:
    with pytest.raises(command.Unusable, match="no such file"):
        command.transcripts("/nowhere/*.jsonl")


def test_a_watcher_of_a_response_outside_the_input_is_unknown() -> None:
    g = worlds.good()
    out = report.Report()
    files: clients.Files = list(g.world.lines.items())
    clients.judge(out, history.History(complete=False), {}, files, settle_s=0.0)
    assert out.results["C2"].verdict is report.Verdict.UNKNOWN
    assert out.exit_code == 2


def test_events_later_than_the_bound_fail_after_healing_only() -> None:
    g = worlds.good()
    w = g.world
    asked = w.ask("late")
    w.line("nemesis", op="heal")
    n = next(w.numbers)
    w.line("client", op="watch", f="invoke", n=n, user="alice", watcher="late", rid=asked.rid)
    w.writer(asked, "worker-1/a").frames(20).end()
    series = outcome.events(reference_fold.account(w.entries(asked.rid)), background=True)
    w.now += 8_000
    w.line(
        "client",
        op="events",
        n=n,
        rid=asked.rid,
        events=[[i, kind, delta] for i, (kind, delta, _) in enumerate(series)],
    )
    found = w.history()
    _, outcomes = checks.judge(found, checks.Options(settle_s=0.0))
    for bound, failed in ((5_000.0, ["C4"]), (9_000.0, [])):
        out = report.Report()
        clients.judge(out, found, outcomes, list(w.lines.items()), settle_s=0.0, late_ms=bound)
        assert out.failed() == failed


def test_a_response_of_ours_that_is_said_not_to_exist_fails() -> None:
    g = worlds.good()
    w, n = g.world, next(g.world.numbers)
    w.line("client", op="watch", f="invoke", n=n, user="alice", watcher="lost", rid=g.plain.rid)
    w.line("client", op="watch", f="fail", n=n, code="response_not_found")
    assert w.judge().failed() == ["C1"]


def test_a_refused_stranger_is_what_should_happen() -> None:
    g = worlds.good()
    w, n = g.world, next(g.world.numbers)
    before = w.judge().results["C5"].count
    w.line("client", op="watch", f="invoke", n=n, user="mallory", watcher="spy", rid=g.plain.rid)
    w.line("client", op="watch", f="fail", n=n, code="response_not_found")
    out = w.judge()
    assert out.failed() == []
    assert out.results["C5"].count == before + 1


def test_the_time_from_a_fault_to_the_next_token_counts_only_what_streamed_then() -> None:
    g = worlds.good()
    w = g.world
    at = (
        next(
            e.timestamp
            for e in w.entries(g.taken.rid)
            if isinstance(e.record, records.Claim) and e.record.prev
        )
        / 1000
    )
    faults = [
        transcript.Line(op="nemesis", f="start", kind="kill", target="worker-1", wall=at - 0.005)
    ]
    found = w.history()
    _, outcomes = checks.judge(found, checks.Options(settle_s=0.0))
    out = report.Report()
    clients.judge(out, found, outcomes, [("nemesis", faults)], settle_s=0.0)
    assert out.figures["takeovers with k > 0 after kill"] == 1
    assert out.samples["kill to next token, ms"] == [pytest.approx(15.0, abs=0.1)]
