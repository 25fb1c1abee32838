"""`tailrace verify`: reads a log, judges it, prints the report, returns an exit code."""

from __future__ import annotations

import asyncio
import glob
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from tailrace import log
from tailrace.protocol import ids
from tailrace.verify import checks, clients, history, report, source, transcript
from tailrace.verify.outcome import Outcome


class Unusable(Exception):
    """The input cannot be judged. The text is for the user."""


def merge(into: history.History, part: history.History) -> None:
    """Add to `into` the data that the transcript checks need of all partitions together.

    Responses are judged partition by partition and are not stored.
    """
    into.places |= part.places
    into.beginnings |= part.beginnings
    into.newest = max(into.newest, part.newest)
    if into.digests is not None and part.digests is not None:
        into.digests |= part.digests


async def examine(
    bootstrap: str,
    pools: Sequence[str],
    files: clients.Files,
    options: checks.Options,
    *,
    rid: str = "",
    late_ms: float = 0.0,
) -> tuple[report.Report, dict[str, Outcome]]:
    """Read a log and judge it, with the transcripts if there are any.

    Returns the report and, with transcripts only, the outcomes by response id.

    Raises:
        log.LogUnavailable: the broker does not answer, or topics are missing.
        log.HistoryLost: retention removed records while they were read.
        ids.InvalidId: `rid` is not a response id.
    """
    out, outcomes, every = (
        report.Report(),
        dict[str, Outcome](),
        history.History(complete=not rid),
    )
    every.digests = {} if files else None
    reading = source.Source(bootstrap, source.Selection(pools, rid, digests=bool(files)))
    try:
        async for part in reading.histories():
            part_report, part_outcomes = checks.judge(part, options)
            out.absorb(part_report)
            merge(every, part)
            if files:
                outcomes |= part_outcomes
    finally:
        await reading.stop()
    if files:
        clients.judge(out, every, outcomes, files, settle_s=options.settle_s, late_ms=late_ms)
    return out, outcomes


def transcripts(pattern: str) -> clients.Files:
    """The transcripts that a glob pattern names, with their file names.

    Raises:
        Unusable: no file matches, or a file is not a transcript.
    """
    paths = sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207 - the pattern may be absolute
    if not paths:
        raise Unusable(f"--transcripts {pattern}: no such file")
    try:
        return [(Path(path).name, transcript.read(Path(path).read_bytes(), path)) for path in paths]
    except (OSError, transcript.Unreadable) as error:
        raise Unusable(f"--transcripts: {error}") from error


def run(
    bootstrap: str,
    pools: Sequence[str],
    *,
    pattern: str,
    rid: str,
    settle_s: float,
    late_ms: float,
    as_json: bool,
    say: Callable[[str], None],
) -> int:
    """Read, judge and print. Returns 0 for pass, 1 for fail, 2 for inconclusive.

    Raises:
        Unusable: the input cannot be judged.
    """
    try:
        files = transcripts(pattern) if pattern else []
        result, _ = asyncio.run(
            examine(
                bootstrap,
                pools,
                files,
                checks.Options(settle_s=settle_s),
                rid=rid,
                late_ms=late_ms,
            )
        )
    except ids.InvalidId as error:
        raise Unusable(f"--rid: {error}") from error
    except (log.LogUnavailable, log.HistoryLost) as error:
        raise Unusable(f"the log at {bootstrap} cannot be read: {error}") from error
    say(json.dumps(result.as_json(), indent=2) if as_json else "\n".join(result.lines()))
    return result.exit_code
