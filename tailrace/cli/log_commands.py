"""Commands for the log and what may be in it: topics, keys, revoke, verify."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from tailrace import log, settings
from tailrace.cli import options, record_keys, revoke
from tailrace.local import paths, plan, supervisor
from tailrace.verify import checks
from tailrace.verify import command as verify


def topics_apply(
    bootstrap: Annotated[
        str,
        typer.Option(
            envvar="TAILRACE_KAFKA",
            help="Kafka's address (default: the broker of this data folder).",
        ),
    ] = "",
    pool: options.Pools = None,
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
    data: options.Data = None,
) -> None:
    """Create the topics that are missing: of --pool, or of the pools in TAILRACE_POOLS."""
    catalog = settings.pools()
    address = options.kafka(bootstrap, options.folder(data)) or "127.0.0.1:9092"
    try:
        created = asyncio.run(
            log.apply_topics(
                address,
                tuple(pool or (catalog.names if catalog else [plan.POOL])),
                partitions=partitions,
                replication=replication,
                min_insync=min_insync,
            )
        )
    except (log.LogUnavailable, ValueError) as error:
        raise options.refuse(f"topics apply: {error}") from None
    for name in created:
        typer.echo(f"created {name}")
    if not created:
        typer.echo("every topic is there")


def revoke_command(
    subject: Annotated[str, typer.Argument(help="The principal's name (claim `sub`).")] = "",
    credential: Annotated[
        str, typer.Option(help="Id of one credential (claim `jti`), instead of a name.")
    ] = "",
    tenant: Annotated[
        str, typer.Option(help="All users of a tenant; with a name, only that user.")
    ] = "",
    issuer: Annotated[str, typer.Option(help="The issuer; needed where there are several.")] = "",
    ahead: Annotated[
        str, typer.Option("--for", help="Refuse new credentials too, for 90s … 365d from now.")
    ] = "",
    issuers_file: Annotated[
        Path | None,
        typer.Option(
            "--issuers",
            envvar="TAILRACE_ISSUERS",
            help="Issuers file, which names the issuers (default: that of this data folder).",
        ),
    ] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Take it back.")] = False,
    listed: Annotated[bool, typer.Option("--list", help="Say what is revoked.")] = False,
    bootstrap: options.Kafka = "",
    data: options.Data = None,
) -> None:
    """Refuse the credentials of a user, a tenant, or one credential; end what is open for them."""
    folder = options.folder(data)
    address = _broker("revoke", bootstrap, folder)
    targets = (subject or None, tenant or None, credential or None)
    try:
        if listed:
            for record in asyncio.run(revoke.read(address)):
                typer.echo(revoke.line(record))
            return
        if targets == (None, None, None):
            raise ValueError("name a subject, or give --credential or --tenant")
        issuer_name = revoke.resolve_issuer(issuer, revoke.issuers(issuers_file or folder.issuers))
        if undo:
            if not revoke.lift(address, issuer_name, *targets, typer.echo):
                raise options.refuse("revoke: nothing of that kind is revoked")
            return
        revoke.revoke(address, issuer_name, *targets, revoke.seconds(ahead), typer.echo)
    except ValueError as error:
        raise options.refuse(f"revoke: {error}", 2) from None
    except log.LogUnavailable as error:
        raise options.refuse(f"revoke: {error}") from None


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
        raise options.refuse(f"keys: {error}", 2) from None
    except OSError as error:
        raise options.refuse(f"keys: {error.filename}: {error.strerror}") from None


def verify_command(
    bootstrap: options.Kafka = "",
    pool: options.Pools = None,
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
    data: options.Data = None,
) -> None:
    """Read the whole log and judge it: one sequence per response, no gap, one end, usage,
    isolation.

    Exit code: 0 pass, 1 fail, 2 inconclusive."""
    if fresh:
        raise options.refuse("verify: --fresh is now --min-age-ms", 2)
    address = _broker("verify", bootstrap, options.folder(data))
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
        raise options.refuse(f"verify: {error}", 2) from None
    raise typer.Exit(code)


def _broker(command: str, bootstrap: str, data: paths.Data) -> str:
    """The broker's address. Raises `typer.Exit` if there is none."""
    address = options.kafka(bootstrap, data)
    if not address:
        raise options.refuse(
            f"{command}: nothing runs in this data folder; name a broker with --kafka", 2
        )
    return address
