"""`python -m bench.soak`: load for a long time, and what grows (docs/measurements/README.md).

It starts a deployment with the scripted engine, writes a history of ended responses, lets locust
talk to it, and samples every process: resident memory, open files, tasks, and Redis' data and
keys, by prefix too, because they live for different times. The slope of each is fitted over the
samples after the first third, because caches fill at first.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec
import psutil
import redis
import uvloop

from bench import history, measure, report, stacks
from tailrace.local import paths

SAMPLE_S: Final = 5.0
WARM_UP: Final = 1 / 3  # share of the samples that no slope is fitted over
FRAMES: Final = 1  # TOK records of one response of the history
LOCUST_END_S: Final = 120.0
ROLES: Final = ("gateway", "push", "worker", "kafka", "redis")
VALUES: Final = ("resident_mb", "files", "tasks", "keys", "data_mb")
SCAN: Final = 1000  # keys of one step through Redis


class Sample(msgspec.Struct, frozen=True):
    """What one process was at one time. `at_s`: seconds since the load began. `part`: its role and
    number, and of Redis' keys also their prefix. Kafka and Redis have no tasks, and only Redis has
    keys and data: these are not there."""

    at_s: float
    part: str
    values: dict[str, float]


class Trend(msgspec.Struct, frozen=True):
    """One value of one part over a run. `per_hour` is the slope of a line fitted by least
    squares."""

    part: str
    value: str
    first: float
    last: float
    most: float
    per_hour: float


SUITE: Final = report.Suite("soak", (__doc__ or "").strip(), "", "", ())


def slope(points: Sequence[tuple[float, float]]) -> float:
    """The slope of the line that fits best, by least squares; 0 where no line can be fitted."""
    at, values = zip(*points, strict=True)
    return statistics.linear_regression(at, values).slope if len(set(at)) > 1 else 0.0


def trends(samples: Iterable[Sample]) -> list[Trend]:
    """The trend of each value of each part, in the order of `VALUES`."""
    series: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for sample in samples:
        for value, figure in sample.values.items():
            series.setdefault((sample.part, value), []).append((sample.at_s, figure))
    result = []
    for (part, value), points in series.items():
        steady = points[int(len(points) * WARM_UP) :]
        figures = [figure for _, figure in points]
        result.append(
            Trend(part, value, figures[0], figures[-1], max(figures), slope(steady) * 3600)
        )
    return sorted(result, key=lambda t: (VALUES.index(t.value), t.part))


def rows(trends_: Iterable[Trend]) -> list[measure.Row]:
    """A case for each part, a value for each of its values, a side for each figure of a trend."""
    return [
        measure.Row(SUITE.name, trend.part, side, 0, {trend.value: figure})
        for trend in trends_
        for side, figure in (
            ("first", trend.first),
            ("last", trend.last),
            ("most", trend.most),
            ("slope per hour", trend.per_hour),
        )
    ]


def plot(path: Path, samples: Sequence[Sample]) -> bool:
    """Draw a panel per value. Returns whether matplotlib is here."""
    try:
        from matplotlib import figure as drawing
    except ImportError:
        return False
    canvas = drawing.Figure(figsize=(9, 3 * len(VALUES)), layout="constrained")
    for panel, value in zip(canvas.subplots(len(VALUES), 1), VALUES, strict=True):
        for part in dict.fromkeys(s.part for s in samples if value in s.values):
            points = [(s.at_s / 60, s.values[value]) for s in samples if s.part == part]
            panel.plot(*zip(*points, strict=True), label=part, linewidth=1)
        panel.set_title(value)
        panel.set_ylim(bottom=0)
        panel.legend(fontsize=8)
    canvas.supxlabel("minutes")
    canvas.savefig(path)
    return True


class Sampler:
    """Looks at the processes of one stack."""

    def __init__(self, side: stacks.Side) -> None:
        self._began = time.monotonic()
        self._redis = redis.Redis.from_url(side.redis)
        self._processes = {
            f"{role}-{number}": psutil.Process(pid)
            for role in ROLES
            for number, pid in enumerate(side.roles.get(role, []), 1)
        }

    def sample(self) -> list[Sample]:
        """One sample per process that is alive."""
        now, samples = time.monotonic() - self._began, []
        for part, process in self._processes.items():
            with contextlib.suppress(psutil.Error):
                values = {
                    "resident_mb": process.memory_info().rss / 1e6,
                    "files": float(process.num_fds()),
                }
                tasks = stacks.metric(process.pid, "tailrace_tasks")
                if tasks is not None:
                    values["tasks"] = tasks
                if part.startswith("redis"):
                    values["keys"] = float(self._redis.dbsize())
                    values["data_mb"] = self._redis.info("memory")["used_memory_dataset"] / 1e6
                    samples += [
                        Sample(round(now, 1), f"{part} {prefix}", {"keys": float(count)})
                        for prefix, count in sorted(self._prefixes().items())
                    ]
                samples.append(Sample(round(now, 1), part, values))
        return samples

    def _prefixes(self) -> Counter[str]:
        keys: Iterable[bytes] = self._redis.scan_iter(count=SCAN)
        return Counter(key.partition(b":")[0].decode(errors="replace") for key in keys)


def load(side: stacks.Side, minutes: float, users: int, summary: Path) -> subprocess.Popen[bytes]:
    """Start locust."""
    return subprocess.Popen(
        [
            *(Path(sys.executable).with_name("locust"), "-f", "locustfile.py", "--headless"),
            *("--only-summary", "--scripted", "--summary", summary, "--stop-timeout", "15"),
            *("-u", str(users), "-r", "5", "-t", f"{round(minutes * 60)}s"),
            *("--host", side.url, "--push-host", side.push_url),
        ],
        cwd=paths.ROOT,
        env={
            **os.environ,
            "TAILRACE_CREDENTIAL": side.headers["authorization"].removeprefix("Bearer "),
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def say(text: str) -> None:
    """Print progress with the time to stderr."""
    sys.stderr.write(f"[{time.strftime('%H:%M:%S')}] {text}\n")
    sys.stderr.flush()


def soak(
    scratch: Path, minutes: float, users: int, responses: int, workers: int
) -> tuple[list[Sample], int, bool]:
    """Returns the samples, the number of answers, and whether locust found them whole."""
    with stacks.tailrace(scratch, workers=workers) as side:
        if responses:
            began = time.monotonic()
            uvloop.run(history.fill(side.kafka, responses, frames=FRAMES))
            say(f"{responses} responses in the log: {time.monotonic() - began:.0f} s")
        sampler, summary = Sampler(side), scratch / "summary.json"
        samples, reported_at = sampler.sample(), time.monotonic()
        running = load(side, minutes, users, summary)
        try:
            end = time.monotonic() + minutes * 60 + LOCUST_END_S
            while running.poll() is None and time.monotonic() < end:
                time.sleep(SAMPLE_S)
                samples += sampler.sample()
                if time.monotonic() - reported_at > 60:
                    reported_at = time.monotonic()
                    newest = {
                        s.part: s.values["resident_mb"]
                        for s in samples
                        if s.at_s == samples[-1].at_s and "resident_mb" in s.values
                    }
                    say(", ".join(f"{part} {mb:.0f} MB" for part, mb in newest.items()))
        finally:
            if running.poll() is None:
                running.kill()
            code = running.wait()
        locust_summary = msgspec.json.decode(summary.read_bytes()) if summary.exists() else {}
        return samples, int(locust_summary.get("responses", 0)), code == 0


def main() -> int:
    """Returns 0 when no token was lost, doubled or out of place, else 1."""
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="default: 30")
    parser.add_argument("--users", type=int, default=20, help="of locust (default: 20)")
    parser.add_argument("--workers", type=int, default=1, help="default: 1")
    parser.add_argument(
        "--history",
        type=int,
        default=1_000_000,
        help="ended responses that the log holds before the load (default: a million)",
    )
    parser.add_argument(
        "--out", type=Path, default=paths.ROOT / "bench/out", help="folder (default: bench/out)"
    )
    arguments = parser.parse_args()
    # Without this the stack would survive, because it has a session of its own.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    machine = report.machine(quick=False, rounds=1)
    with tempfile.TemporaryDirectory(
        prefix="tailrace-soak-", ignore_cleanup_errors=True
    ) as scratch:
        samples, answers, clean = soak(
            Path(scratch),
            arguments.minutes,
            arguments.users,
            arguments.history,
            arguments.workers,
        )
    note = (
        f"{arguments.minutes:g} minutes, {answers} answers, {arguments.history} responses in the "
        f"log before: {'no token was lost' if clean else 'the load test FAILED'}"
    )
    soak_report = report.Report(machine, rows(trends(samples)), [note])
    report.write(arguments.out, soak_report, [SUITE], SUITE.name)
    (arguments.out / "soak-samples.json").write_bytes(msgspec.json.encode(samples) + b"\n")
    say(report.tables([SUITE], soak_report.rows))
    if not plot(arguments.out / "soak.svg", samples):
        say("no plot: matplotlib is not installed here (make soak installs it)")
    return 0 if clean and answers else 1


if __name__ == "__main__":
    sys.exit(main())
