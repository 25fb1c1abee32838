"""`python -m tests.pipelines`: the trial of pipelines at full size (`make pipelines`), or with
`--stores` that of vector stores (`make pipelines-stores`)."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path

from tests.pipelines import stores_trial, trial

parser = argparse.ArgumentParser(prog="python -m tests.pipelines", description=trial.__doc__)
parser.add_argument("--records", type=int, help="10,000; with --stores 1,500")
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--every", type=float, default=3.0, help="seconds between two kills")
parser.add_argument("--kills", type=int, default=1_000, help="at most so many")
parser.add_argument("--engine", choices=("scripted", "vllm"), default="scripted")
parser.add_argument("--stores", action="store_true", help=stores_trial.__doc__)
chosen = parser.parse_args()
# Without this the deployment would survive, because it has a session of its own.
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
with tempfile.TemporaryDirectory(
    prefix="tailrace-pipelines-", ignore_cleanup_errors=True
) as folder:
    if chosen.stores:
        count = chosen.records or 1_500  # a store has at most 2,000 files
        wrong = stores_trial.run(Path(folder), count, chosen.seed, chosen.every, chosen.kills)
    else:
        count = chosen.records or 10_000
        wrong = trial.run(
            *(Path(folder), count, chosen.seed, chosen.every, chosen.kills, chosen.engine)
        )
for each in wrong:
    trial.say(f"WRONG {each}")
trial.say("failed" if wrong else "passed")
sys.exit(1 if wrong else 0)
