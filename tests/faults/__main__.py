"""`python -m tests.faults --seconds 1800 --seed 7`: the long mixture (`make faults`)."""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from pathlib import Path

from tests.faults import mixture

parser = argparse.ArgumentParser(prog="python -m tests.faults", description=mixture.__doc__)
parser.add_argument("--seconds", type=float, default=1800.0)
parser.add_argument(
    "--seed",
    type=int,
    default=None,
    help=(
        "of the first round; each further round takes the next number (default: drawn, and printed)"
    ),
)
parser.add_argument(
    "--keep",
    type=Path,
    default=None,
    help="folder for the rounds' files (those that did not pass are kept)",
)
chosen = parser.parse_args()
if chosen.keep:
    chosen.keep.mkdir(parents=True, exist_ok=True)
sys.exit(
    asyncio.run(
        mixture.run(
            chosen.seconds,
            random.randrange(10**6) if chosen.seed is None else chosen.seed,
            chosen.keep,
        )
    )
)
