"""`python -m bench [SUITE …] [--quick]`: starts servers, measures them, and writes JSON, Markdown
and plots (docs/measurements/README.md). The tables of suites that were named are printed, too."""

from __future__ import annotations

import argparse
import contextlib
import inspect
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import uvloop

from bench import (
    beside,
    cancel,
    fanout,
    gateway_cost,
    gpu,
    handover,
    history,
    hop,
    items,
    measure,
    paced,
    page,
    report,
    resume,
    scaling,
    scripted,
    search,
    shares,
    stacks,
    waits,
    whole_path,
)
from tailrace.local import paths

# Suites with stacks of their own come first, while nothing else runs; the others share one stack.
SUITES: dict[str, ModuleType] = {
    module.NAME: module
    for module in (
        whole_path,
        gpu,
        beside,
        scaling,
        handover,
        history,
        waits,
        shares,
        hop,
        paced,
        gateway_cost,
        fanout,
        items,
        resume,
        cancel,
        page,
        search,
    )
}
ON_REQUEST = {gpu.NAME, beside.NAME, page.NAME, search.NAME, shares.NAME}
# Left out with --quick unless named, because they start deployments of their own.
NOT_QUICK = {
    scaling.NAME,
    handover.NAME,
    history.NAME,
    items.NAME,
    paced.NAME,
    waits.NAME,
}
SHARED_SEQUENCES = 4096  # thousands of responses must not wait for the shared stack's engine


def say(text: str) -> None:
    """Print progress with the time to stderr."""
    sys.stderr.write(f"[{time.strftime('%H:%M:%S')}] {text}\n")
    sys.stderr.flush()


def choose(names: list[str], *, quick: bool) -> list[str]:
    """The suites to measure, in order: the named ones, else the default ones."""
    return [
        name
        for name in SUITES
        if name in (names or SUITES.keys() - ON_REQUEST - (NOT_QUICK if quick else set()))
    ]


def suite(module: ModuleType) -> report.Suite:
    """How the report shows a suite. Its module docstring says what it measures."""
    return report.Suite(
        module.NAME, inspect.getdoc(module) or "", module.OVER, module.UNDER, module.PLOTS
    )


def measure_all(names: list[str], plan: measure.Plan, notes: list[str]) -> Iterator[measure.Row]:
    """Yield rows as they are measured. A suite that fails adds a note; the others continue."""
    with contextlib.ExitStack() as running:
        shared = _once(
            lambda: _warm(
                running.enter_context(
                    stacks.tailrace(
                        plan.scratch, settings={"TAILRACE_MAX_NUM_SEQS": str(SHARED_SEQUENCES)}
                    )
                )
            )
        )
        for name in names:
            began = time.monotonic()
            say(f"{name} …")
            try:
                for row in SUITES[name].run(plan, shared):
                    say(
                        f"  round {row.round}, {row.case}, {row.side}: {_glance(SUITES[name], row)}"
                    )
                    yield row
            except stacks.NotHere as error:
                notes.append(f"{name} was left out: it needs {error}")
            except Exception as error:
                notes.append(f"{name} FAILED: {type(error).__name__}: {error}")
                say(traceback.format_exc())
            say(f"{name}: {time.monotonic() - began:.0f} s")


def _warm(side: stacks.Side) -> stacks.Side:
    uvloop.run(scripted.warm(side))
    return side


def _once(make: Callable[[], stacks.Side]) -> Callable[[], stacks.Side]:
    sides: list[stacks.Side] = []

    def get() -> stacks.Side:
        if not sides:
            sides.append(make())
        return sides[0]

    return get


def _glance(module: ModuleType, row: measure.Row) -> str:
    return ", ".join(
        f"{value} {report.figure(row.values[value])}"
        for value in module.PLOTS
        if value in row.values
    )


def main() -> int:
    """Returns 0 when every chosen suite was measured and every question answered, else 1."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    omitted = (
        f"default: all but {', '.join(sorted(ON_REQUEST))}; with --quick neither "
        f"{', '.join(sorted(NOT_QUICK))}"
    )
    parser.add_argument(
        "suites", nargs="*", metavar="SUITE", help=f"of {', '.join(SUITES)} ({omitted})"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="two to three minutes: a check that it works; figures too rough to quote",
    )
    parser.add_argument(
        "--rounds", type=int, default=0, help="repetitions (at most; default: 2, 1 with --quick)"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=paths.ROOT / "bench/out",
        help="folder for results (default: bench/out)",
    )
    parser.add_argument(
        "--other",
        type=Path,
        help=f"another installed checkout, for {beside.NAME}: the one to compare with",
    )
    parser.add_argument(
        "--alike",
        action="store_true",
        help=f"of {whole_path.NAME}: vLLM's server has the worker's arrangement of processes",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=f"a setting of this side of {beside.NAME}",
    )
    arguments = parser.parse_args()
    if unknown := set(arguments.suites) - SUITES.keys():
        parser.error(f"no suite {', '.join(sorted(unknown))}; there are {', '.join(SUITES)}")
    if wrong := [each for each in arguments.set if "=" not in each]:
        parser.error(f"--set {wrong[0]}: no NAME=VALUE")
    names = choose(arguments.suites, quick=arguments.quick)
    rounds = arguments.rounds or (1 if arguments.quick else 2)
    # Without this the stacks would survive, because they have sessions of their own.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    about, notes, rows, began = (
        report.machine(quick=arguments.quick, rounds=rounds),
        list[str](),
        list[measure.Row](),
        time.monotonic(),
    )
    try:
        with tempfile.TemporaryDirectory(
            prefix="tailrace-bench-", ignore_cleanup_errors=True
        ) as scratch:
            plan = measure.Plan(
                arguments.quick,
                rounds,
                Path(scratch),
                other=arguments.other and arguments.other.resolve(),
                settings=dict(each.split("=", 1) for each in arguments.set),
                alike=arguments.alike,
            )
            for row in measure_all(names, plan, notes):
                rows.append(row)  # one by one, so that an interrupted run keeps its rows
    except KeyboardInterrupt:
        notes.append("interrupted: the rows up to then follow")
    failed = sum(row.values.get("failed", 0) for row in rows)
    suites = [suite(SUITES[name]) for name in names]
    files = report.write(arguments.out, report.Report(about, rows, notes), suites)
    if not any(path.suffix == ".svg" for path in files):
        say("no plots: matplotlib is not installed here (make bench installs it)")
    for line in [*notes, *([f"{failed:.0f} questions were not answered"] if failed else [])]:
        say(line)
    if arguments.suites:
        sys.stdout.write(report.tables(suites, rows))
    say(f"{time.monotonic() - began:.0f} s; {', '.join(map(str, files))}")
    return 1 if notes or failed else 0


if __name__ == "__main__":
    sys.exit(main())
