"""The report of a run: rows as JSON, tables as Markdown, plots as SVG."""

from __future__ import annotations

import math
import os
import platform
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from bench import measure
from tailrace.local import paths


@dataclass(frozen=True, slots=True)
class Suite:
    """How the report shows one suite.

    Attributes:
        over, under: the sides of the ratio `over` / `under`; empty without a comparison.
        plots: the values to plot.
    """

    name: str
    about: str
    over: str
    under: str
    plots: tuple[str, ...]


class Machine(msgspec.Struct, frozen=True):
    """The machine and the commit of a run.

    Attributes:
        load_per_core: the load before the run; clearly above 0 means that other programs ran.
    """

    when: str
    cores: int
    cpu: str
    python: str
    commit: str
    load_per_core: float
    quick: bool
    rounds: int


def machine(*, quick: bool, rounds: int) -> Machine:
    """Describe this machine and this checkout."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=paths.ROOT,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    names = [  # psutil does not know the model
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return Machine(
        when=time.strftime("%Y-%m-%d %H:%M %z"),
        cores=len(os.sched_getaffinity(0)),
        cpu=names[0] if names else platform.machine(),
        python=platform.python_version(),
        commit=commit or "unknown",
        load_per_core=round(os.getloadavg()[0] / max(1, len(os.sched_getaffinity(0))), 2),
        quick=quick,
        rounds=rounds,
    )


def cases(rows: Sequence[measure.Row]) -> list[str]:
    """The cases, in the order of their first row."""
    return list(dict.fromkeys(row.case for row in rows))


def figure(value: float) -> str:
    """Format a value with three significant digits; thousands in full."""
    if math.isnan(value):
        return ""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def table(suite: Suite, rows: Sequence[measure.Row]) -> str:
    """A Markdown table per case: a row per value, a column per side (median over the rounds), and
    the ratio of the pairs with its range."""
    out = [f"## {suite.name}", "", suite.about, ""]
    if failed := sum(row.values.get("failed", 0) for row in rows):
        out += [f"**{failed:.0f} questions were not answered: these figures are not valid.**", ""]
    for case in cases(rows):
        case_rows = [row for row in rows if row.case == case]
        out += [f"### {case}", "", *_case(suite, case_rows), ""]
    return "\n".join(out)


def _case(suite: Suite, rows: list[measure.Row]) -> list[str]:
    sides = list(dict.fromkeys(row.side for row in rows))
    has_both = {suite.over, suite.under} <= set(sides)
    head = [
        "value",
        *sides,
        *([f"{suite.over} / {suite.under} (least to greatest of the pairs)"] if has_both else []),
    ]
    out = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for value in dict.fromkeys(name for row in rows for name in row.values):
        line = [
            value,
            *(
                figure(measure.median((row for row in rows if row.side == side), value))
                for side in sides
            ),
        ]
        if has_both:
            ratio = measure.ratio(rows, value, suite.over, suite.under)
            line.append(
                f"{ratio.middle:.2f} ({ratio.least:.2f} to {ratio.greatest:.2f} of {ratio.pairs})"
                if ratio
                else ""
            )
        out.append(f"| {' | '.join(line)} |")
    return out


def markdown(
    about: Machine, suites: Sequence[Suite], rows: Sequence[measure.Row], notes: Sequence[str] = ()
) -> str:
    """The Markdown report. `notes`, which come first, list omissions and failures."""
    size = "quick, too short to quote" if about.quick else "full"
    out = [
        "# Benchmark",
        "",
        f"{about.when}, commit {about.commit}, {about.cores} cores ({about.cpu}), "
        f"Python {about.python}; {size}, {about.rounds} rounds. "
        f"Load per core before it began: {about.load_per_core}.",
        "",
        "Medians over the rounds. Compare within this report only. `cpu_ROLE_…`: CPU time of the "
        "processes of that role; `servers` is all of them, `client` the load generator, which "
        "shares the cores.",
        "",
        *(f"- **{note}**" for note in notes),
        *([""] if notes else []),
    ]
    return "\n".join([*out, tables(suites, rows)])


def tables(suites: Sequence[Suite], rows: Sequence[measure.Row]) -> str:
    """The tables of the suites that were measured."""
    rows_by_suite = {suite: [row for row in rows if row.suite == suite.name] for suite in suites}
    return (
        "\n".join(
            table(suite, suite_rows) for suite, suite_rows in rows_by_suite.items() if suite_rows
        ).rstrip()
        + "\n"
    )


class Report(msgspec.Struct, frozen=True):
    """The content of the JSON file."""

    machine: Machine
    rows: list[measure.Row]
    notes: list[str] = []


def write(folder: Path, report: Report, suites: Sequence[Suite], name: str = "bench") -> list[Path]:
    """Write the JSON report, the Markdown report, and a plot per suite where matplotlib is
    installed. Returns the files written."""
    folder.mkdir(parents=True, exist_ok=True)
    results, text = folder / f"{name}.json", folder / f"{name}.md"
    results.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
    text.write_text(markdown(report.machine, suites, report.rows, report.notes))
    return [results, text, *plots(folder, report, suites)]


_BARS: Final = 0.8  # share of the width of a case


def plots(folder: Path, report: Report, suites: Sequence[Suite]) -> list[Path]:
    """An SVG per suite: a panel per value, a bar per case and side (median), a whisker from the
    least to the greatest round."""
    try:
        from matplotlib import figure as drawing
    except ImportError:
        return []
    paths = []
    for suite in suites:
        rows = [row for row in report.rows if row.suite == suite.name]
        values = [value for value in suite.plots if any(value in row.values for row in rows)]
        if not values:
            continue
        canvas = drawing.Figure(figsize=(4.2 * len(values), 4.6), layout="constrained")
        for panel, value in zip(
            canvas.subplots(1, len(values), squeeze=False)[0], values, strict=True
        ):
            _draw(panel, rows, value)
        size = ", quick" if report.machine.quick else ""
        canvas.suptitle(
            f"{suite.name} ({report.machine.commit}, {report.machine.rounds} rounds{size})"
        )
        path = folder / f"{suite.name}.svg"
        canvas.savefig(path)
        paths.append(path)
    return paths


def _draw(panel: Any, rows: Sequence[measure.Row], value: str) -> None:
    having = [row for row in rows if value in row.values]
    sides, names = list(dict.fromkeys(row.side for row in having)), cases(having)
    width = _BARS / len(sides)
    for place, side in enumerate(sides):
        for at, case in enumerate(names):
            values = [row.values[value] for row in having if row.case == case and row.side == side]
            if not values:
                continue
            middle = measure.percentile(values, 50)
            label = side if at == 0 else None
            panel.bar(at + place * width, middle, width, color=f"C{place}", label=label)
            panel.errorbar(
                at + place * width,
                middle,
                [[middle - min(values)], [max(values) - middle]],
                color="black",
                capsize=3,
            )
    panel.set_title(value)
    panel.set_xticks(
        [at + (len(sides) - 1) * width / 2 for at in range(len(names))],
        names,
        rotation=40,
        ha="right",
        fontsize=8,
    )
    panel.set_ylim(bottom=0)
    if len(sides) > 1:
        panel.legend(fontsize=8)
