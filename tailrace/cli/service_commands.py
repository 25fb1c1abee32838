"""Commands that run one service in the foreground: gateway, push, worker, archive."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from tailrace import engines
from tailrace.cli import options, run_service
from tailrace.local import plan, processes

_Port = Annotated[
    int,
    typer.Option(
        "--port", help="Port to listen on (default: TAILRACE_PORT, else the service's own)."
    ),
]
_Name = Annotated[str, typer.Option("--name", help="Instance name in logs and metrics.")]


def gateway(port: _Port = 0, name: _Name = "", data: options.Data = None) -> None:
    """Run one gateway in the foreground. It joins the deployment of this data folder."""
    _run_service("gateway", data, {"TAILRACE_PORT": str(port or ""), "TAILRACE_NAME": name})


def push(port: _Port = 0, name: _Name = "", data: options.Data = None) -> None:
    """Run one push service in the foreground. It joins the deployment of this data folder."""
    _run_service("push", data, {"TAILRACE_PORT": str(port or ""), "TAILRACE_NAME": name})


def worker(
    engine: Annotated[
        str,
        typer.Option(
            help=f"{engines.CHOICES} (default: as the running deployment, else {engines.DEFAULT})."
        ),
    ] = "",
    model: Annotated[str, typer.Option(help="Model name or folder.")] = "",
    name: _Name = "",
    data: options.Data = None,
) -> None:
    """Run one worker in the foreground. It joins the deployment of this data folder."""
    _run_service(
        "worker", data, {"TAILRACE_ENGINE": engine, "TAILRACE_MODEL": model, "TAILRACE_NAME": name}
    )


def archive(context: typer.Context, name: _Name = "", data: options.Data = None) -> None:
    """Run the archive's process in the foreground. It joins the deployment of this data folder.

    `archive retry` takes up again what it has set aside."""
    if context.invoked_subcommand is None:
        _run_service("archive", data, {"TAILRACE_NAME": name})


def archive_retry(
    url: Annotated[
        str,
        typer.Option(
            "--archive",
            envvar="TAILRACE_ARCHIVE",
            help="The archive's database (default: that of this data folder).",
        ),
    ] = "",
    bootstrap: options.Kafka = "",
    data: options.Data = None,
) -> None:
    """Fold again the records that the archive has set aside, from the log.

    Exit code: 0 nothing is set aside now, 1 something is."""
    from tailrace.cli import archive_retry as command  # it imports the database library

    folder = options.folder(data)
    address = options.kafka(bootstrap, folder)
    if not address:
        raise options.refuse(
            "archive retry: nothing runs in this data folder; name a broker with --kafka", 2
        )
    try:
        remaining = command.run(address, url or plan.archive_url(folder.archive, {}), typer.echo)
    except ValueError as error:
        raise options.refuse(f"archive retry: {error}", 2) from None
    except command.UNAVAILABLE as error:
        raise options.refuse(f"archive retry: {error}") from None
    raise typer.Exit(1 if remaining else 0)


def pipelines(
    words: Annotated[list[str], typer.Argument(help="As `pipelines --help` says.")] = [],  # noqa: B006
    data: options.Data = None,
) -> None:
    """Pipelines of the deployment of this data folder."""
    if importlib.util.find_spec("pipelines") is None:
        raise options.refuse("pipelines are not installed (pip install tailrace-pipelines)", 2)
    run_service.run_pipelines(options.folder(data), words)


def _run_service(role: plan.Role, data: Path | None, settings: dict[str, str]) -> None:
    try:
        run_service.run(
            role, options.folder(data), {name: value for name, value in settings.items() if value}
        )
    except (processes.StartError, plan.BadOption) as error:
        raise options.refuse(str(error), 2) from None
