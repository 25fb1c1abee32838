"""The command `tailrace`."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from tailrace import engines, log, settings
from tailrace.cli import control, doctor, record_keys, revoke, run_service, terminal_chat
from tailrace.local import dev_credentials, hints, paths, plan, processes, state, supervisor
from tailrace.local.console import Console
from tailrace.local.detach import start_detached
from tailrace.verify import checks
from tailrace.verify import command as verify

app = typer.Typer(
    help="Durable, resumable LLM token streams over Kafka.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
topics_app = typer.Typer(
    help="The topic table of tailrace/protocol/topics.py.", no_args_is_help=True
)
app.add_typer(topics_app, name="topics")


# These start no service and read no service's settings. What runs can be stopped and listed
# although a setting is wrong.
_WITHOUT_SETTINGS = frozenset({"down", "ps", "chat", "token", "revoke", "keys"})
# These read or write records themselves.
_WITH_RECORD_KEYS = frozenset({"up", "supervise", "topics", "verify", "revoke"})


@app.callback()
def check_settings(context: typer.Context) -> None:
    """Durable, resumable LLM token streams over Kafka."""
    command = context.invoked_subcommand
    try:
        if command not in _WITHOUT_SETTINGS:
            settings.check()
        if command in _WITH_RECORD_KEYS:
            log.use_record_keys(settings.record_keys(), "operator")
    except settings.Misconfigured as error:
        raise _refuse(f"tailrace: {error}", 2) from None


DataOption = Annotated[
    Path | None,
    typer.Option(
        "--data",
        help="Data folder of the deployment (default: the user's cache; or TAILRACE_DATA).",
    ),
]
EngineOption = Annotated[
    str,
    typer.Option(envvar="TAILRACE_ENGINE", help=f"{engines.CHOICES}."),
]
ModelOption = Annotated[
    str,
    typer.Option(
        envvar="TAILRACE_MODEL",
        help="Model name or folder (default: the one `make install` brought).",
    ),
]


def _data(folder: Path | None) -> paths.Data:
    return paths.Data((folder or paths.default_data()).expanduser().absolute())


def _refuse(text: str, code: int = 1) -> typer.Exit:
    typer.echo(text, err=True)
    return typer.Exit(code)


def _say(text: str) -> None:
    typer.echo(text)


def _wipe(data: paths.Data) -> None:
    """`--wipe`: remove the log, the keys and the log files, but only in a marked data folder."""
    if not data.root.exists():
        return
    if not data.marker.exists() and any(data.root.iterdir()):
        raise _refuse(f"{data.root} is not a data folder of Tailrace; --wipe leaves it alone", 2)
    for folder in (data.kafka, data.redis, data.logs):
        shutil.rmtree(folder, ignore_errors=True)
    for file in (data.dev_key, data.issuers, data.credential, data.session_key):
        file.unlink(missing_ok=True)


def _checked(options: plan.Options) -> plan.Options:
    try:
        options.check()
    except plan.BadOption as error:
        raise _refuse(str(error), 2) from None
    return options


def _already_running(data: paths.Data) -> typer.Exit:
    running = state.load(data.state)
    where = f" at {running.url}" if running and running.url else ""
    return _refuse(
        f"already running{where} (data folder {data.root}). Use it: `{hints.command('chat', data)}`"
        f". Stop it: `{hints.command('down', data)}`. Start another one beside it: "
        f"{hints.beside(paths.Data(paths.cache() / 'data-2'))}"
    )


@app.command()
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
    engine: EngineOption = engines.DEFAULT,
    model: ModelOption = "",
    workers: Annotated[int, typer.Option()] = 1,
    gateways: Annotated[int, typer.Option()] = 1,
    pushes: Annotated[int, typer.Option()] = 1,
    port: Annotated[int, typer.Option(help="Port of the first gateway and the page.")] = 8000,
    push_port: Annotated[int, typer.Option(help="Port of the first push service.")] = 8001,
    data: DataOption = None,
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
        raise _refuse("up: --fresh is now --wipe", 2)
    options = _checked(plan.Options(engine, model, workers, gateways, pushes, port, push_port))
    folder = _data(data)
    if state.is_held(folder.lock):
        raise _already_running(folder)
    if wipe:
        _wipe(folder)
    if detach:
        flags = ["--no-restart"] * no_restart + ["--verbose"] * verbose
        arguments = [*_arguments(options, folder), *flags]
        raise typer.Exit(start_detached(arguments, folder, wait=not no_wait, console=Console()))
    raise typer.Exit(
        _supervise(options, folder, restart=not no_restart, verbose=verbose, stop_hint="Ctrl-C")
    )


def _arguments(options: plan.Options, data: paths.Data) -> list[str]:
    named = {f"--{name.replace('_', '-')}": str(value) for name, value in asdict(options).items()}
    return [part for pair in {**named, "--data": str(data.root)}.items() for part in pair]


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


@app.command(hidden=True)
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


@app.command()
def down(data: DataOption = None) -> None:
    """Stop everything that `up` started, also what joined it and what a killed supervisor left.

    Exit code 1: a process could not be ended."""
    if not control.down(_data(data), _say):
        raise typer.Exit(1)


@app.command()
def ps(
    as_json: Annotated[bool, typer.Option("--json", help="A JSON array.")] = False,
    data: DataOption = None,
) -> None:
    """List every process: name, role, pid, readiness, restarts, how it ended last, its age."""
    folder = _data(data)
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
        padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        typer.echo("  ".join(padded).rstrip())


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
        row.detail,
    )


def _age(seconds: float) -> str:
    """A duration as one reads it: "41 s", "12 min", "3 h 5 min"."""
    minutes = int(seconds) // 60
    if minutes < 1:
        return f"{int(seconds)} s"
    if minutes < 60:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"


def _run_service(
    role: Literal["gateway", "push", "worker"], data: Path | None, given: dict[str, str]
) -> None:
    try:
        run_service.run(role, _data(data), {name: value for name, value in given.items() if value})
    except (processes.StartError, plan.BadOption) as error:
        raise _refuse(str(error), 2) from None


PortOption = Annotated[
    int,
    typer.Option(
        "--port", help="Port to listen on (default: TAILRACE_PORT, else the service's own)."
    ),
]
NameOption = Annotated[str, typer.Option("--name", help="Instance name in logs and metrics.")]


@app.command()
def gateway(port: PortOption = 0, name: NameOption = "", data: DataOption = None) -> None:
    """Run one gateway in the foreground. It joins the deployment of this data folder."""
    _run_service("gateway", data, {"TAILRACE_PORT": str(port or ""), "TAILRACE_NAME": name})


@app.command()
def push(port: PortOption = 0, name: NameOption = "", data: DataOption = None) -> None:
    """Run one push service in the foreground. It joins the deployment of this data folder."""
    _run_service("push", data, {"TAILRACE_PORT": str(port or ""), "TAILRACE_NAME": name})


@app.command()
def worker(
    engine: Annotated[
        str,
        typer.Option(
            help=f"{engines.CHOICES} (default: as the running deployment, else {engines.DEFAULT})."
        ),
    ] = "",
    model: Annotated[str, typer.Option(help="Model name or folder.")] = "",
    name: NameOption = "",
    data: DataOption = None,
) -> None:
    """Run one worker in the foreground. It joins the deployment of this data folder."""
    _run_service(
        "worker", data, {"TAILRACE_ENGINE": engine, "TAILRACE_MODEL": model, "TAILRACE_NAME": name}
    )


@topics_app.command("apply")
def topics_apply(
    bootstrap: Annotated[
        str,
        typer.Option(
            envvar="TAILRACE_KAFKA",
            help="Kafka's address (default: the broker of this data folder).",
        ),
    ] = "",
    pool: Annotated[
        list[str] | None, typer.Option(help="Name of a pool; may be given several times.")
    ] = None,
    partitions: Annotated[int, typer.Option(min=1, max=10_000)] = supervisor.PARTITIONS,
    replication: Annotated[int, typer.Option(min=1, max=9)] = 1,
    min_insync: Annotated[
        int,
        typer.Option(
            min=1,
            max=9,
            help="Replicas that must hold a record before it is acknowledged (2 of three).",
        ),
    ] = 1,
    data: DataOption = None,
) -> None:
    """Create the topics that are missing."""
    running = state.load(_data(data).state)
    address = bootstrap or (
        running.kafka if running and running.phase != "stopped" else "127.0.0.1:9092"
    )
    try:
        created = asyncio.run(
            log.apply_topics(
                address,
                tuple(pool or [plan.POOL]),
                partitions=partitions,
                replication=replication,
                min_insync=min_insync,
            )
        )
    except (log.LogUnavailable, ValueError) as error:
        raise _refuse(f"topics apply: {error}") from None
    for name in created:
        typer.echo(f"created {name}")
    if not created:
        typer.echo("every topic is there")


@app.command()
def token(
    sub: Annotated[str, typer.Option(help="The principal's name.")] = dev_credentials.PAGE_SUBJECT,
    ttl: Annotated[str, typer.Option(help="Lifetime: 90s, 15m, 1h … 24h.")] = "1h",
    scopes: Annotated[
        str, typer.Option(help="What it allows, separated by commas: create, read, admin.")
    ] = ",".join(dev_credentials.DEFAULT_SCOPES),
    data: DataOption = None,
) -> None:
    """Print a development credential and nothing else."""
    try:
        named = dev_credentials.scopes(scopes)
        typer.echo(dev_credentials.issue(_data(data), sub, dev_credentials.seconds(ttl), named))
    except ValueError as error:
        raise _refuse(str(error), 2) from None


@app.command("revoke")
def revoke_command(
    subject: Annotated[str, typer.Argument(help="The principal's name (claim `sub`).")] = "",
    credential: Annotated[
        str, typer.Option(help="Id of one credential (claim `jti`), instead of a name.")
    ] = "",
    tenant: Annotated[
        str, typer.Option(help="Everybody of a tenant; with a name, only that one in it.")
    ] = "",
    issuer: Annotated[str, typer.Option(help="Where there are several issuers.")] = "",
    ahead: Annotated[
        str, typer.Option("--for", help="Refuse new credentials too, for 90s … 365d from now.")
    ] = "",
    issuers_file: Annotated[
        Path | None,
        typer.Option(
            "--issuers",
            envvar="TAILRACE_ISSUERS",
            help="Issuers file that says which there are (default: that of this data folder).",
        ),
    ] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Take it back.")] = False,
    listed: Annotated[bool, typer.Option("--list", help="Say what is revoked.")] = False,
    bootstrap: Annotated[
        str,
        typer.Option(
            "--kafka",
            envvar="TAILRACE_KAFKA",
            help="Kafka's address (default: the broker of this data folder).",
        ),
    ] = "",
    data: DataOption = None,
) -> None:
    """Refuse the credentials of a user, a tenant, or one credential; end what is open for them."""
    folder = _data(data)
    running = state.load(folder.state)
    address = bootstrap or (running.kafka if running and running.phase != "stopped" else "")
    if not address:
        raise _refuse("revoke: nothing runs in this data folder; name a broker with --kafka", 2)
    named = (subject or None, tenant or None, credential or None)
    try:
        if listed:
            for record in asyncio.run(revoke.read(address)):
                typer.echo(revoke.line(record))
            return
        if named == (None, None, None):
            raise ValueError("name a subject, or give --credential or --tenant")
        of = revoke.issuer_of(issuer, revoke.issuers(issuers_file or folder.issuers))
        if undo:
            if not revoke.lift(address, of, *named, typer.echo):
                raise _refuse("revoke: nothing of that kind is revoked")
            return
        revoke.revoke(address, of, *named, revoke.seconds(ahead), typer.echo)
    except ValueError as error:
        raise _refuse(f"revoke: {error}", 2) from None
    except log.LogUnavailable as error:
        raise _refuse(f"revoke: {error}") from None


@app.command("keys")
def keys_command(
    file: Annotated[Path, typer.Argument(help="The key file.")],
    rotate: Annotated[
        bool, typer.Option("--rotate", help="Add new keys to the file; the old ones stay.")
    ] = False,
    ahead: Annotated[
        str,
        typer.Option(
            "--in", help="When the new keys begin to sign: after every service has the file."
        ),
    ] = "1h",
    untagged: Annotated[
        bool,
        typer.Option(
            "--accept-untagged",
            help="Records without a tag count, for a log that has some from before.",
        ),
    ] = False,
) -> None:
    """Write a file of record keys: one key for each service that writes, to sign its records."""
    try:
        if rotate:
            record_keys.rotate(file, revoke.seconds(ahead), typer.echo)
        else:
            record_keys.create(file, accept_untagged=untagged, say=typer.echo)
    except ValueError as error:
        raise _refuse(f"keys: {error}", 2) from None
    except OSError as error:
        raise _refuse(f"keys: {error.filename}: {error.strerror}") from None


@app.command("chat")
def chat_command(
    question: Annotated[
        str, typer.Argument(help="Ask this question and exit; without it, a dialogue.")
    ] = "",
    url: Annotated[str, typer.Option(help="A gateway (default: that of this data folder).")] = "",
    credential: Annotated[
        str,
        typer.Option(
            envvar="TAILRACE_CREDENTIAL", help="A credential (default: a development one)."
        ),
    ] = "",
    model: Annotated[str, typer.Option(help="Model (default: the gateway's first).")] = "",
    data: DataOption = None,
) -> None:
    """Chat in the terminal. Resumes after a lost connection; Ctrl-C stops the answer, twice leaves.

    In a dialogue /help lists its commands."""
    folder = _data(data)
    running = state.load(folder.state)
    address = url or (running.url if running and running.url else plan.url(8000))
    renew = (
        (lambda: credential)
        if credential
        else (lambda: dev_credentials.issue(folder, dev_credentials.PAGE_SUBJECT, 3600))
    )
    raise typer.Exit(terminal_chat.run(address, renew, model, question, hints.up(folder, running)))


@app.command("verify")
def verify_command(
    bootstrap: Annotated[
        str,
        typer.Option(
            "--kafka",
            envvar="TAILRACE_KAFKA",
            help="Kafka's address (default: the broker of this data folder).",
        ),
    ] = "",
    pool: Annotated[
        list[str] | None, typer.Option(help="Name of a pool; may be given several times.")
    ] = None,
    transcripts: Annotated[
        str, typer.Option(help="Glob of client transcripts to judge too (docs/verify.md).")
    ] = "",
    rid: Annotated[str, typer.Option(help="Only this response.")] = "",
    settle: Annotated[
        float,
        typer.Option(
            min=0, help="Seconds after which a response must have ended (0: nothing writes)."
        ),
    ] = checks.SETTLE_S,
    min_age_ms: Annotated[
        float,
        typer.Option(
            min=0,
            help="With transcripts: an event this old at its arrival fails C4 (0: no bound).",
        ),
    ] = 0.0,
    fresh: Annotated[str, typer.Option("--fresh", hidden=True)] = "",
    as_json: Annotated[bool, typer.Option("--json", help="A JSON object.")] = False,
    data: DataOption = None,
) -> None:
    """Read the whole log and judge it: one sequence per response, no gap, one end, usage,
    isolation.

    Exit code: 0 pass, 1 fail, 2 inconclusive."""
    if fresh:
        raise _refuse("verify: --fresh is now --min-age-ms", 2)
    running = state.load(_data(data).state)
    address = bootstrap or (running.kafka if running and running.phase != "stopped" else "")
    if not address:
        raise _refuse("verify: nothing runs in this data folder; name a broker with --kafka", 2)
    try:
        code = verify.run(
            address,
            pool or [plan.POOL],
            pattern=transcripts,
            rid=rid,
            settle_s=settle,
            late_ms=min_age_ms,
            as_json=as_json,
            say=typer.echo,
        )
    except verify.Unusable as error:
        raise _refuse(f"verify: {error}", 2) from None
    raise typer.Exit(code)


@app.command("doctor")
def doctor_command(data: DataOption = None) -> None:
    """Check everything that a deployment here needs, and say how to repair what is wrong.

    Exit code 1: something is a problem."""
    findings = doctor.examine(_data(data))
    for finding in findings:
        mark = {"ok": "ok     ", "note": "note   ", "problem": "PROBLEM"}[finding.level]
        cure = f". {finding.cure}" if finding.cure else ""
        typer.echo(f"{mark} {finding.subject:<20} {finding.text}{cure}")
    raise typer.Exit(1 if any(finding.level == "problem" for finding in findings) else 0)


def main() -> None:
    """The console script."""
    # The command reports errors itself.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    app()
