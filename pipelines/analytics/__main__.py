"""`python -m pipelines.analytics`: a local Flink that runs the jobs over a deployment's Kafka.

It runs until Ctrl-C. Processes that died are started again, and jobs continue from their last
checkpoint, also in the next run with the same folder.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pipelines.analytics import cluster, jobs, programs, results, store, supervisor
from tailrace.protocol import topics

STEP_S: Final = 1.0


def say(text: str) -> None:
    """Print one line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 2 where something is missing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--kafka", required=True, help="its address, as in TAILRACE_KAFKA")
    parser.add_argument("--folder", type=Path, required=True, help="for checkpoints and logs")
    parser.add_argument("--prefix", default="analytics", help="of the topics of results")
    parser.add_argument("--usage", default=topics.USAGE, help="the topic of usage records")
    parser.add_argument("--answers", default="", help="a pipeline's output topic")
    parser.add_argument("--label", default="label", help="member of an answer that is counted by")
    parser.add_argument("--gap", type=int, default=jobs.GAP_S, help="seconds between sessions")
    parser.add_argument("--checkpoint", type=int, default=10, help="seconds between checkpoints")
    parser.add_argument(
        "--store",
        default=os.environ.get(store.VARIABLE),
        help="what the results are folded into: a DuckDB file, or a URL of ClickHouse",
    )
    options = parser.parse_args(arguments)
    folder = options.folder.resolve()
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))
    try:
        classes = programs.compile_main(folder / "classes")
    except programs.Missing as missing:
        say(f"analytics needs {missing}")
        return 2
    asyncio.run(results.create_topics(options.kafka, options.prefix))
    with contextlib.ExitStack() as stack:
        flink = cluster.Cluster(folder / "flink")
        stack.callback(flink.stop)
        keeper = supervisor.Supervisor(
            flink,
            folder,
            classes,
            names=[name for name in jobs.JOBS if name != "answers" or options.answers],
            variables={
                "kafka": options.kafka,
                "usage": options.usage,
                "prefix": options.prefix,
                "gap_s": str(options.gap),
                "answers": options.answers,
                "label": options.label,
            },
            settings={
                "execution.checkpointing.interval": f"{options.checkpoint}s",
                "parallelism.default": "1",
            },
            report=say,
        )
        with contextlib.suppress(KeyboardInterrupt):
            keeper.start()
            folding: subprocess.Popen[bytes] | None = None
            while True:
                keeper.step()
                if options.store and (folding is None or folding.poll() is not None):
                    folding = _fold(options)
                    stack.callback(folding.terminate)
                time.sleep(STEP_S)
    return 0


def _fold(options: argparse.Namespace) -> subprocess.Popen[bytes]:
    """A process that folds the results into the store. It may be killed and started again."""
    command = [sys.executable, "-m", "pipelines.analytics.store", options.store]
    command += ["--kafka", options.kafka, "--prefix", options.prefix]
    return subprocess.Popen(command)


if __name__ == "__main__":
    sys.exit(main())
