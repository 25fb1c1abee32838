"""Commands for a whole deployment on this machine: up, down, ps, doctor."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from tailrace import engines
from tailrace.cli import control, doctor, options
from tailrace.local import hints, paths, plan, state, supervisor
from tailrace.local.console import Console
from tailrace.local.detach import start_detached


def up(
    detach: Annotated[
        bool,
        typer.Option(
            "--detach", help="Return when everything is ready; the deployment keeps running."
        ),
    ] = False,
    no_wait: Annotated[
        bool,
        typer.Option(
            "--no-wait",
            help="With --detach: return when page and API answer; the engine may still load.",
        ),
    ] = False,
    engine: options.Engine = engines.DEFAULT,
    model: options.Model = "",
    workers: Annotated[int, typer.Option()] = 1,
    gateways: Annotated[int, typer.Option()] = 1,
    pushes: Annotated[int, typer.Option()] = 1,
    port: Annotated[int, typer.Option(help="Port of the first gateway and the page.")] = 8000,
    push_port: Annotated[int, typer.Option(help="Port of the first push service.")] = 8001,
    data: options.Data = None,
    wipe: Annotated[
        bool, typer.Option("--wipe", help="Remove this deployment's log and keys first.")
    ] = False,
    no_restart: Annotated[
        bool,
        typer.Option("--no-restart", help="A part that ends stays ended."),
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Print the logs of all services too.")
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", hidden=True)] = False,
) -> None:
    """Start everything: broker, Redis, topics, gateway, push, worker, page. Ctrl-C stops it.

    A part that ends is started again, on its port and with its data."""
    if fresh:
        raise options.refuse("up: --fresh is now --wipe", 2)
    plan_options = _check(plan.Options(engine, model, workers, gateways, pushes, port, push_port))
    folder = options.folder(data)
    if state.is_held(folder.lock):
        raise _already_running(folder)
    if wipe:
        _wipe(folder)
    if detach:
        flags = ["--no-restart"] * no_restart + ["--verbose"] * verbose
        arguments = [*_arguments(plan_options, folder), *flags]
        raise typer.Exit(start_detached(arguments, folder, wait=not no_wait, console=Console()))
    raise typer.Exit(
        _supervise(
            plan_options, folder, restart=not no_restart, verbose=verbose, stop_hint="Ctrl-C"
        )
    )


def supervise(
    data: Annotated[Path, typer.Option()],
    engine: Annotated[str, typer.Option()],
    model: Annotated[str, typer.Option()],
    workers: Annotated[int, typer.Option()],
    gateways: Annotated[int, typer.Option()],
    pushes: Annotated[int, typer.Option()],
    port: Annotated[int, typer.Option()],
    push_port: Annotated[int, typer.Option()],
    no_restart: Annotated[bool, typer.Option("--no-restart")] = False,
    verbose: Annotated[bool, typer.Option("--verbose")] = False,
) -> None:
    """The background process of `up --detach`."""
    options = plan.Options(engine, model, workers, gateways, pushes, port, push_port)
    folder = paths.Data(data)
    stop_hint = f"`{hints.command('down', folder)}`"
    raise typer.Exit(
        _supervise(options, folder, restart=not no_restart, verbose=verbose, stop_hint=stop_hint)
    )


def down(data: options.Data = None) -> None:
    """Stop everything that `up` started, also what joined it and what a killed supervisor left.

    Exit code 1: a process could not be ended."""
    if not control.down(options.folder(data), typer.echo):
        raise typer.Exit(1)


def ps(
    as_json: Annotated[bool, typer.Option("--json", help="A JSON array.")] = False,
    data: options.Data = None,
) -> None:
    """List every process: name, role, pid, readiness, restarts, how it ended last, its age, what it
    waits for, and what a worker's engine can do."""
    folder = options.folder(data)
    rows = control.rows(folder)
    if as_json:
        typer.echo(json.dumps([asdict(row) for row in rows], indent=2))
        return
    if not rows:
        typer.echo(control.last_words(folder))
        return
    table = [_PS_HEAD, *(_ps_cells(row) for row in rows)]
    widths = [max(len(cells[i]) for cells in table) for i in range(len(_PS_HEAD))]
    for cells in table:
        cells_ = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        typer.echo("  ".join(cells_).rstrip())


def doctor_command(data: options.Data = None) -> None:
    """Check everything that a deployment here needs, and say how to repair what is wrong.

    Exit code 1: something is a problem."""
    findings = doctor.examine(options.folder(data))
    for finding in findings:
        mark = {"ok": "ok     ", "note": "note   ", "problem": "PROBLEM"}[finding.level]
        cure = f". {finding.cure}" if finding.cure else ""
        typer.echo(f"{mark} {finding.subject:<20} {finding.text}{cure}")
    raise typer.Exit(1 if any(finding.level == "problem" for finding in findings) else 0)


def _wipe(data: paths.Data) -> None:
    """`--wipe`: remove the log, the keys and the log files, but only in a marked data folder."""
    if not data.root.exists():
        return
    if not data.marker.exists() and any(data.root.iterdir()):
        raise options.refuse(
            f"{data.root} is not a data folder of Tailrace; --wipe leaves it alone", 2
        )
    for folder in (data.kafka, data.redis, data.logs):
        shutil.rmtree(folder, ignore_errors=True)
    for file in (data.dev_key, data.issuers, data.credential, data.session_key):
        file.unlink(missing_ok=True)


def _check(plan_options: plan.Options) -> plan.Options:
    try:
        plan_options.check()
    except plan.BadOption as error:
        raise options.refuse(str(error), 2) from None
    return plan_options


def _already_running(data: paths.Data) -> typer.Exit:
    running = state.load(data.state)
    where = f" at {running.url}" if running and running.url else ""
    return options.refuse(
        f"already running{where} (data folder {data.root}). Use it: `{hints.command('chat', data)}`"
        f". Stop it: `{hints.command('down', data)}`. Start another one beside it: "
        f"{hints.free_ports_hint(paths.Data(paths.cache() / 'data-2'))}"
    )


def _arguments(options: plan.Options, data: paths.Data) -> list[str]:
    arguments = {
        f"--{name.replace('_', '-')}": str(value) for name, value in asdict(options).items()
    }
    return [part for pair in {**arguments, "--data": str(data.root)}.items() for part in pair]


def _supervise(
    options: plan.Options, data: paths.Data, *, restart: bool, verbose: bool, stop_hint: str
) -> int:
    data.make()
    try:
        lock = state.hold(data.lock)
    except state.AlreadyRunning:
        raise _already_running(data) from None
    with lock:
        return supervisor.Supervisor(
            options,
            data,
            restart=restart,
            verbose=verbose,
            console=Console(),
            stop_hint=stop_hint,
        ).run()


_PS_HEAD = (
    "NAME", "ROLE", "PID", "READY", "STATE", "SINCE", "RESTARTS", "LAST EXIT", "ADDRESS", "DETAIL",
)  # fmt: skip


def _ps_cells(row: control.Row) -> tuple[str, ...]:
    return (
        row.name,
        row.role,
        str(row.pid),
        "yes" if row.ready else "no",
        row.state,
        _age(time.time() - row.since) if row.since else "-",
        str(row.restarts),
        row.last_exit or "-",
        row.address or "-",
        row.detail or control.able(row),
    )


def _age(seconds: float) -> str:
    """A duration in words: "41 s", "12 min", "3 h 5 min"."""
    minutes = int(seconds) // 60
    if minutes < 1:
        return f"{int(seconds)} s"
    if minutes < 60:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"
