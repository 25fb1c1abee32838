"""The report says what was measured, beside what, and what was not."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

from bench import __main__ as command
from bench import report
from bench.measure import Plan, Row

SUITE = report.Suite("speed", "What it is.", "ours", "theirs", ("x_per_s",))
MACHINE = report.Machine("2026-01-01 00:00 +0000", 2, "cpu", "3.11", "abc", 0.1, False, 3)


def rows(failed: float = 0.0) -> list[Row]:
    pairs = [(100.0, 50.0), (90.0, 60.0), (30.0, 10.0)]
    out = []
    for n, (ours, theirs) in enumerate(pairs):
        out += [
            Row("speed", "1 stream", "ours", n, {"x_per_s": ours, "failed": failed}),
            Row("speed", "1 stream", "theirs", n, {"x_per_s": theirs}),
        ]
    return [*out, Row("speed", "alone", "ours", 0, {"only_ms": 1.5})]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.00123, "0.00123"),
        (1.234, "1.23"),
        (12.34, "12.3"),
        (99.96, "100.0"),
        (123.4, "123"),
        (12345.6, "12,346"),
        (-4.567, "-4.57"),
        (math.nan, ""),
    ],
)
def test_figures_have_three_digits(value: float, text: str) -> None:
    assert report.figure(value) == text


def test_a_table_has_medians_and_the_ratio_of_pairs() -> None:
    text = report.table(SUITE, rows())
    assert "| x_per_s | 90.0 | 50.0 | 2.00 (1.50 to 3.00 of 3) |" in text
    assert "### 1 stream" in text
    assert "| only_ms | 1.50 |" in text
    assert "not clean" not in text


def test_a_report_with_unanswered_questions_says_so() -> None:
    assert "**6 questions were not answered" in report.table(SUITE, rows(failed=2.0))


def test_the_report_opens_with_where_and_what_was_left_out() -> None:
    text = report.markdown(MACHINE, [SUITE], rows(), ["a was left out: it needs b"])
    assert (
        text.index("commit abc")
        < text.index("- **a was left out: it needs b**")
        < text.index("## speed")
    )
    assert "too short to quote" not in text
    assert "too short to quote" in report.markdown(
        msgspec.structs.replace(MACHINE, quick=True), [SUITE], rows()
    )


def test_what_is_written_can_be_read_again(tmp_path: Path) -> None:
    made = report.Report(MACHINE, rows(), ["note"])
    written = report.write(tmp_path / "new", made, [SUITE])
    assert msgspec.json.decode(written[0].read_bytes(), type=report.Report) == made
    assert "## speed" in written[1].read_text()


def test_plots_are_drawn_of_what_there_is(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="plots need matplotlib (make bench installs it)")
    (drawn,) = report.plots(
        tmp_path, report.Report(MACHINE, rows()), [SUITE, report.Suite("other", "", "", "", ("y",))]
    )
    text = drawn.read_text()
    assert drawn.name == "speed.svg"
    assert "<svg" in text


def test_every_suite_tells_what_it_measures_and_plots_something() -> None:
    for module in command.SUITES.values():
        shown = command.suite(module)
        assert len(shown.about) > 100
        assert shown.plots
        assert bool(shown.over) == bool(shown.under)


def test_a_suite_that_fails_leaves_a_note_and_what_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(plan: Plan, shared: object) -> object:
        yield rows()[0]
        raise RuntimeError("no broker")

    def works(plan: Plan, shared: object) -> object:
        yield rows()[1]

    monkeypatch.setattr(command.cancel, "run", breaks)
    monkeypatch.setattr(command.hop, "run", works)
    notes: list[str] = []
    found = list(command.measure_all(["cancel", "hop"], Plan(True, 1, tmp_path), notes))
    assert found == rows()[:2]
    assert notes == ["cancel FAILED: RuntimeError: no broker"]
