"""Parts that several commands share: options, the data folder, a refusal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tailrace import engines
from tailrace.local import paths, state

Data = Annotated[
    Path | None,
    typer.Option(
        "--data",
        help="Data folder of the deployment (default: the user's cache; or TAILRACE_DATA).",
    ),
]
Engine = Annotated[
    str,
    typer.Option(envvar="TAILRACE_ENGINE", help=f"{engines.CHOICES}."),
]
Model = Annotated[
    str,
    typer.Option(
        envvar="TAILRACE_MODEL",
        help="Model name or folder (default: the one `make install` brought).",
    ),
]
Kafka = Annotated[
    str,
    typer.Option(
        "--kafka",
        envvar="TAILRACE_KAFKA",
        help="Kafka's address (default: the broker of this data folder).",
    ),
]
Pools = Annotated[
    list[str] | None,
    typer.Option("--pool", help="Name of a pool; may be given several times."),
]


def folder(data: Path | None) -> paths.Data:
    """The data folder that `--data` names, or the default one."""
    return paths.Data((data or paths.default_data()).expanduser().absolute())


def refuse(text: str, code: int = 1) -> typer.Exit:
    """Print why on stderr; to be raised."""
    typer.echo(text, err=True)
    return typer.Exit(code)


def kafka(address: str, data: paths.Data) -> str:
    """The address of `--kafka`, or of the broker that runs in the data folder; else empty."""
    running = state.load(data.state)
    return address or (running.kafka if running and running.phase != "stopped" else "")
