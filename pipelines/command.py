"""The command line of pipelines: `python -m pipelines`, or `tailrace pipelines` in a deployment."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import msgspec
import prometheus_client
import typer

from pipelines import definition, former_outputs, plan, progress, runner, samples, servers
from pipelines.examples import data
from pipelines.gateway import Gateway
from pipelines.rows import REASON, Rows
from pipelines.sinks import sink as sinks
from pipelines.sinks.target import Target
from tailrace import log
from tailrace.log.group_offsets import GroupRuns, move

SAMPLE: Final = 200  # records of each partition that `plan` reads

app = typer.Typer(
    help="Answers to the records of a topic (docs/pipelines.md).",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

File = Annotated[Path, typer.Argument(help="The pipeline's YAML file.")]
Kafka = Annotated[str, typer.Option("--kafka", envvar="TAILRACE_KAFKA", help="Kafka's address.")]
Url = Annotated[str, typer.Option("--url", envvar="TAILRACE_URL", help="A gateway's address.")]
_CREDENTIAL: Final = typer.Option(
    "--credential-file",
    envvar="TAILRACE_CREDENTIAL_FILE",
    help="Holds a credential with the scope `create`; read again for each request.",
)
CredentialFile = Annotated[Path, _CREDENTIAL]
MaybeUrl = Annotated[
    str | None, typer.Option("--url", envvar="TAILRACE_URL", help="A gateway's, to make a store.")
]
MaybeCredentialFile = Annotated[Path | None, _CREDENTIAL]
InputPrice = Annotated[float, typer.Option(help="Price of a million tokens of input.")]
OutputPrice = Annotated[float, typer.Option(help="Price of a million tokens of output.")]


def _refuse(text: str, code: int = 2) -> NoReturn:
    typer.echo(f"pipelines: {text}", err=True)
    raise typer.Exit(code)


def _load(path: Path) -> definition.Pipeline:
    """The pipeline of a file, all of it compiled; ends the command with the error otherwise."""
    try:
        pipeline = definition.parse(path.read_bytes())
        runner.outcome_of(
            pipeline, Rows(pipeline), Gateway("http://127.0.0.1", path, pipeline.name)
        )
        return pipeline
    except OSError as error:
        _refuse(f"{path}: {error.strerror}")
    except definition.Invalid as error:
        _refuse(f"{path}: {error}")


def _run(work: Coroutine[Any, Any, Any]) -> Any:
    try:
        return asyncio.run(work)
    except (log.LogUnavailable, log.HistoryLost, runner.MissingTopic) as error:
        _refuse(str(error) or type(error).__name__, 1)


@app.command()
def check(files: Annotated[list[Path], typer.Argument(help="YAML files of pipelines.")]) -> None:
    """Say whether files are pipelines, and what is wrong where one is not."""
    for path in files:
        pipeline = _load(path)
        typer.echo(
            f"{path}: {pipeline.name} (revision {pipeline.revision}): {pipeline.input.topic} → "
            f"{', '.join(pipeline.outputs)}"
        )


@app.command()
def example(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(data.GENERATORS)}.")],
    kafka: Kafka,
    url: MaybeUrl = None,
    credential_file: MaybeCredentialFile = None,
    records: Annotated[int, typer.Option(min=0, help="So many are generated and written.")] = 200,
    seed: Annotated[int, typer.Option(help="Another one generates others.")] = 1,
    partitions: Annotated[int, typer.Option(min=1, help="Of topics that are created.")] = 4,
    only_topics: Annotated[
        bool, typer.Option("--topics", help="Create the topics, and write nothing.")
    ] = False,
) -> None:
    """Put NAME.yaml into this folder unless it is there, create its topics that are missing, and
    write generated records to its input. Where it needs a vector store, one is made."""
    if name not in data.GENERATORS:
        _refuse(f"no example {name!r}: there are {', '.join(data.GENERATORS)}")
    path = Path(f"{name}.yaml")
    if not path.exists():
        path.write_bytes(_example_file(name, url, credential_file))
        typer.echo(f"{path} is written")
    pipeline = _load(path)
    _run(_example(pipeline, kafka, name, 0 if only_topics else records, seed, partitions))


def _example_file(name: str, url: str | None, credential_file: Path | None) -> bytes:
    """Its content, with the id of a store if it needs one."""
    content = samples.file(name)
    if samples.STORE not in content:
        return content
    if url is None or credential_file is None:
        _refuse("this example needs a vector store: name a gateway by --url and --credential-file")
    try:
        store = samples.store(url, credential_file)
    except samples.NoStore as error:
        _refuse(f"no vector store: {error}", 1)
    typer.echo(f"the vector store is {store}")
    return content.replace(samples.STORE, store.encode())


async def _example(
    pipeline: definition.Pipeline, kafka: str, name: str, records: int, seed: int, partitions: int
) -> None:
    topics = [pipeline.input.topic, *pipeline.outputs]
    new_topics = await log.create_topics(kafka, topics, partitions=partitions)
    typer.echo(f"topics: {', '.join(topics)} ({len(new_topics)} of them are new)")
    if records:
        await samples.write(kafka, pipeline.input.topic, data.GENERATORS[name](records, seed))
        typer.echo(f"{records} records are in {pipeline.input.topic}")


@app.command()
def show(
    file: File,
    kafka: Kafka,
    what: Annotated[
        samples.What, typer.Argument(help="Of these topics of the pipeline.")
    ] = samples.What.OUTPUT,
    records: Annotated[int, typer.Option("-n", min=1, help="So many of each partition.")] = 3,
) -> None:
    """Print the newest records of a pipeline's topic, one a line."""
    pipeline = _load(file)
    topic = samples.topic(pipeline, what)
    if topic is None:
        _refuse("this pipeline has no alerts")
    _run(_show(kafka, topic, records))


async def _show(kafka: str, topic: str, records: int) -> None:
    for record in await samples.newest(kafka, topic, records):
        reason = dict(record.headers).get(REASON)
        key = (record.key or b"").decode(errors="replace")
        value = (record.value or b"").decode(errors="replace")
        typer.echo("  ".join(part for part in (key, reason and reason.decode(), value) if part))


@app.command("plan")
def plan_command(
    file: File,
    kafka: Kafka,
    input_price: InputPrice = 0.0,
    output_price: OutputPrice = 0.0,
) -> None:
    """Say what the rows that are not done would take, and cost. Asks nothing."""
    pipeline = _load(file)
    _run(_plan(pipeline, kafka, None, (input_price, output_price)))


async def _plan(
    pipeline: definition.Pipeline,
    kafka: str,
    begin: dict[int, int] | None,
    prices: tuple[float, float],
) -> progress.Progress:
    """Print an estimate of what begins at these offsets, or where the pipeline is."""
    offsets = log.Offsets(kafka)
    replays = log.Replays(kafka, read_committed=True)
    try:
        now = await progress.read(pipeline, offsets)
        places = {
            number: place if begin is None else place._replace(committed=begin[number])
            for number, place in now.by_partition.items()
        }
        count = sum(place.end - place.committed for place in places.values())
        records: list[log.Record] = []
        for number, place in places.items():
            end = min(place.end, place.committed + SAMPLE)
            reading = replays.read(pipeline.input.topic, number, place.committed, end)
            async with contextlib.aclosing(reading) as batches:
                async for batch in batches:
                    records += batch
        output_count = 0
        if begin is not None:
            for number in places:
                there = await former_outputs.places(pipeline, number, offsets, replays)
                output_count += sum(int(each.split("/")[2]) >= begin[number] for each in there)
        sample = plan.sample(Rows(pipeline), records)
        estimate = plan.estimate(pipeline, count, output_count, sample, now.done)
    finally:
        await offsets.stop()
        await replays.stop()
    typer.echo(f"{pipeline.name}, revision {pipeline.revision}")
    typer.echo(f"rows          {estimate.rows} ({sample.records} of them were looked at)")
    if output_count:
        typer.echo(
            f"  of these    {output_count} have their output already and are not asked again"
        )
    typer.echo(f"requests      about {estimate.requests}")
    how = "as those answered so far" if estimate.measured else "guessed by the length of questions"
    typer.echo(
        f"tokens        about {estimate.input_tokens} in, {estimate.output_tokens} out ({how})"
    )
    if any(prices):
        typer.echo(f"cost          about {estimate.cost(*prices):.4f}")
    if sample.first_error:
        typer.echo(f"unreadable    {sample.first_error}")
    return now


@app.command()
def run(
    file: File,
    kafka: Kafka,
    url: Url,
    credential_file: CredentialFile,
    metrics_port: Annotated[
        int, typer.Option(envvar="TAILRACE_ADMIN_PORT", help="Metrics on 127.0.0.1; 0 for none.")
    ] = 0,
    metrics_host: Annotated[str, typer.Option(help="Where metrics listen.")] = "127.0.0.1",
) -> None:
    """Run one runner until SIGTERM or Ctrl-C. Start as many as the input has partitions."""
    pipeline = _load(file)
    if metrics_port:
        prometheus_client.start_http_server(metrics_port, metrics_host)
    _run(_serve(pipeline, kafka, url, credential_file))


async def _serve(
    pipeline: definition.Pipeline, kafka: str, url: str, credential_file: Path
) -> None:
    gateway = Gateway(url, credential_file, pipeline.name)
    work = asyncio.create_task(runner.Runner(pipeline, kafka, gateway).run())
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, work.cancel)
    typer.echo(f"{pipeline.name} (revision {pipeline.revision}) reads {pipeline.input.topic}")
    sys.stdout.flush()
    try:
        with contextlib.suppress(asyncio.CancelledError):
            await work
    finally:
        await gateway.close()


@app.command()
def status(
    file: File,
    kafka: Kafka,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Say how far a pipeline is: what was done, what is left, how fast it goes."""
    pipeline = _load(file)
    _run(_status(pipeline, kafka, as_json))


async def _status(pipeline: definition.Pipeline, kafka: str, as_json: bool) -> None:
    offsets = log.Offsets(kafka)
    try:
        state = await progress.read_with_rate(pipeline, offsets)
    finally:
        await offsets.stop()
    if as_json:
        typer.echo(msgspec.json.encode(state.members()))
        return
    done, eta_s = state.done, state.eta_s
    typer.echo(f"{pipeline.name}, revision {pipeline.revision}")
    typer.echo(
        f"read {done.read}: answered {done.answered}, skipped {done.skipped}, "
        f"dead {done.dead}, found {done.found}; alerts {done.alerted}"
    )
    typer.echo(f"requests {done.requests}; tokens {done.input_tokens} in, {done.output_tokens} out")
    ahead = "" if eta_s is None else f", about {datetime.timedelta(seconds=round(eta_s))} left"
    typer.echo(f"lag {state.lag}; {state.rate or 0.0:.1f} rows/s{ahead}")


@app.command()
def sink(
    file: File,
    to: Annotated[
        str,
        typer.Option(
            help="opensearch+http(s)://[user@]host:port/index, or http(s)://[user@]host:port/"
            "database of ClickHouse; with ?password_file=…&ca_file=…"
        ),
    ],
    kafka: Kafka,
    what: Annotated[
        samples.What, typer.Argument(help="Of these topics of the pipeline; not the input.")
    ] = samples.What.OUTPUT,
    once: Annotated[bool, typer.Option(help="Stop at what is written now.")] = False,
    strict: Annotated[
        bool, typer.Option(help="Stop at a row that the server refuses, instead of leaving it out.")
    ] = False,
    metrics_port: Annotated[int, typer.Option(help="Metrics; 0 for none.")] = 0,
    metrics_host: Annotated[str, typer.Option(help="Where metrics listen.")] = "127.0.0.1",
) -> None:
    """Write what a pipeline has written to a database: each row once, however often it is sent."""
    pipeline = _load(file)
    topic = samples.topic(pipeline, what)
    if topic is None or what is samples.What.INPUT:
        _refuse("this pipeline has no alerts" if topic is None else "a sink writes no input")
    try:
        target = sinks.open_target(to, pipeline, what)
        group = sinks.group(to, pipeline, what)
    except (OSError, ValueError) as error:
        _refuse(f"--to: {error}")
    try:
        if metrics_port:
            prometheus_client.start_http_server(metrics_port, metrics_host)
        _run(_sink(target, kafka, topic, group, once, strict))
    except (OSError, servers.Refused, sinks.RowRefused, sinks.RolledBack) as error:
        _refuse(str(error), 1)
    finally:
        target.close()


async def _sink(
    target: Target, kafka: str, topic: str, group: str, once: bool, strict: bool
) -> None:
    work = asyncio.create_task(sinks.run(target, kafka, topic, group, once=once, strict=strict))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, work.cancel)
    typer.echo(f"{topic} is read by the group {group}")
    sys.stdout.flush()
    with contextlib.suppress(asyncio.CancelledError):
        done = await work
        typer.echo(f"{done.rows} rows are written, {done.refusals} were refused and left out")


@app.command()
def serve(
    files: Annotated[list[Path], typer.Argument(help="YAML files of pipelines.")],
    kafka: Kafka,
    url: Url,
    store: Annotated[
        str | None,
        typer.Option(
            envvar="TAILRACE_ANALYTICS_STORE",
            help="The store of analytics (docs/analytics.md): a file of DuckDB, or "
            "http(s)://user@host:port/database of ClickHouse.",
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8090,
    host: Annotated[str, typer.Option(help="Where it listens.")] = "127.0.0.1",
    page: Annotated[Path | None, typer.Option(help="Folder of the built page.")] = None,
    input_price: InputPrice = 0.0,
    output_price: OutputPrice = 0.0,
) -> None:
    """Show pipelines and analytics to administrators, on a page and as JSON."""
    # Runners need no web server.
    from pipelines.view import app as view
    from pipelines.view import files as page_files
    from pipelines.view import readers

    pipelines = [_load(path) for path in files]
    names = [each.name for each in pipelines]
    if len(set(names)) < len(names):
        _refuse("two of the files have the same name")

    def ready() -> None:
        typer.echo(f"http://{host}:{port} shows {', '.join(names)}")
        typer.echo("on a development deployment, `tailrace token --scopes read,admin` signs in")
        sys.stdout.flush()

    try:
        reader = readers.open_reader(store) if store else None
    except (OSError, ValueError) as error:
        _refuse(f"--store: {error}")
    prices = (input_price, output_price)
    options = view.Options(kafka, url, host, port, page or page_files.FOLDER, reader, prices)
    try:
        _run(view.serve(pipelines, options, ready))
    except page_files.NoPage as error:
        _refuse(str(error))
    except OSError as error:
        _refuse(f"{host}:{port}: {error.strerror}", 1)


@app.command()
def replay(
    file: File,
    kafka: Kafka,
    since: Annotated[
        str, typer.Option("--from", help="`earliest`, or a time (2026-11-25T12:00:00Z).")
    ],
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without, only say what it takes.")] = (
        False
    ),
    input_price: InputPrice = 0.0,
    output_price: OutputPrice = 0.0,
) -> None:
    """Have rows read again from an earlier place on. Those that have an output of this revision are
    not asked again, so it takes another `version` to answer them anew."""
    pipeline = _load(file)
    _run(_replay(pipeline, kafka, since, yes, (input_price, output_price)))


async def _replay(
    pipeline: definition.Pipeline, kafka: str, since: str, yes: bool, prices: tuple[float, float]
) -> None:
    begin = await _begin(pipeline, kafka, since)
    now = await _plan(pipeline, kafka, begin, prices)
    if not yes:
        typer.echo("nothing was changed; --yes does it")
        return
    offsets = {}
    for number, place in now.by_partition.items():
        done = msgspec.structs.replace(
            place.done, look_until=max(place.done.look_until, place.committed)
        )
        offsets[pipeline.input.topic, number] = begin[number], done.encode()
    try:
        transactional_ids = [pipeline.transactional_id(number) for number in now.by_partition]
        await move(kafka, pipeline.group, offsets, transactional_ids=transactional_ids)
    except GroupRuns:
        _refuse("runners of this pipeline run: stop them first (a killed one counts for 6 s)", 1)
    typer.echo("moved; start its runners")


async def _begin(pipeline: definition.Pipeline, kafka: str, since: str) -> dict[int, int]:
    """Offset of each partition where a replay begins: never behind what was committed."""
    topic, offsets = pipeline.input.topic, log.Offsets(kafka)
    try:
        now = await progress.read(pipeline, offsets)
        numbers = list(now.by_partition)
        if since == "earliest":
            starts = await offsets.beginnings(topic, numbers)
        else:
            try:
                at = datetime.datetime.fromisoformat(since)
            except ValueError:
                _refuse(f"--from: {since!r} is neither `earliest` nor a time")
            if at.tzinfo is None:
                _refuse("--from: a time needs a zone, such as Z")
            starts = await offsets.since(topic, numbers, int(at.timestamp() * 1000))
    finally:
        await offsets.stop()
    return {
        number: min(starts.get(number, place.committed), place.committed)
        for number, place in now.by_partition.items()
    }


def main() -> None:
    """The command."""
    # The commands say themselves what is wrong with the broker.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    app(prog_name="tailrace pipelines")
