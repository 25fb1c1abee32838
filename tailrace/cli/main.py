"""The command `tailrace`: its commands, and the checks before each of them."""

from __future__ import annotations

import logging
from typing import Annotated

import typer

from tailrace import log, settings
from tailrace.cli import (
    deployment_commands,
    log_commands,
    options,
    service_commands,
    terminal_chat,
)
from tailrace.local import dev_credentials, hints, plan, state

app = typer.Typer(
    help="Durable, resumable LLM token streams over Kafka.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


# These start no service and read no service's settings. What runs can be stopped and listed
# although a setting is wrong.
_WITHOUT_SETTINGS = frozenset({"down", "ps", "chat", "token", "revoke", "keys", "pipelines"})
# These read or write records themselves.
_WITH_RECORD_KEYS = frozenset({"up", "supervise", "topics", "archive", "verify", "revoke"})


@app.callback()
def check_settings(context: typer.Context) -> None:
    """Durable, resumable LLM token streams over Kafka."""
    command = context.invoked_subcommand
    try:
        if command not in _WITHOUT_SETTINGS:
            settings.check()
        if command in _WITH_RECORD_KEYS:
            # The tombstones of an archive are not signed.
            log.use_record_keys(
                settings.record_keys(), "operator" if command != "archive" else None
            )
    except settings.Misconfigured as error:
        raise options.refuse(f"tailrace: {error}", 2) from None


def token(
    sub: Annotated[str, typer.Option(help="The principal's name.")] = dev_credentials.PAGE_SUBJECT,
    ttl: Annotated[str, typer.Option(help="Lifetime: 90s, 15m, 1h … 24h.")] = "1h",
    scopes: Annotated[
        str, typer.Option(help="What it allows, separated by commas: create, read, admin.")
    ] = ",".join(dev_credentials.DEFAULT_SCOPES),
    data: options.Data = None,
) -> None:
    """Print a development credential and nothing else."""
    try:
        scope_names = dev_credentials.scopes(scopes)
        typer.echo(
            dev_credentials.issue(
                options.folder(data), sub, dev_credentials.seconds(ttl), scope_names
            )
        )
    except ValueError as error:
        raise options.refuse(str(error), 2) from None


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
    data: options.Data = None,
) -> None:
    """Chat in the terminal. Resumes after a lost connection; Ctrl-C stops the answer, twice leaves.

    In a dialogue /help lists its commands."""
    folder = options.folder(data)
    running = state.load(folder.state)
    address = url or (running.url if running and running.url else plan.url(8000))
    renew = (
        (lambda: credential)
        if credential
        else (lambda: dev_credentials.issue(folder, dev_credentials.PAGE_SUBJECT, 3600))
    )
    raise typer.Exit(terminal_chat.run(address, renew, model, question, hints.up(folder, running)))


# In the order in which --help lists them.
app.command()(deployment_commands.up)
app.command(hidden=True)(deployment_commands.supervise)
app.command()(deployment_commands.down)
app.command()(deployment_commands.ps)
app.command()(service_commands.gateway)
app.command()(service_commands.push)
archive_app = typer.Typer(invoke_without_command=True)
archive_app.callback()(service_commands.archive)
archive_app.command("retry")(service_commands.archive_retry)
app.add_typer(archive_app, name="archive")
app.command()(service_commands.worker)
app.command()(token)
app.command("revoke")(log_commands.revoke_command)
app.command("keys")(log_commands.keys_command)
app.command("chat")(chat_command)
app.command("verify")(log_commands.verify_command)
app.command(
    "pipelines",
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    help="Answers to the records of a topic: run, status, serve and more (docs/pipelines.md).",
)(service_commands.pipelines)
app.command("doctor")(deployment_commands.doctor_command)
topics_app = typer.Typer(
    help="The topic table of tailrace/protocol/topics.py.", no_args_is_help=True
)
topics_app.command("apply")(log_commands.topics_apply)
app.add_typer(topics_app, name="topics")


def main() -> None:
    """The console script."""
    # The command reports errors itself.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    app()
