"""The file of a pipeline (pure). Its schema is docs/pipelines.schema.json."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, Final, Literal

import msgspec
import yaml

from pipelines import stores
from pipelines.stores import Expression, Template

VERSION_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,31}$"
NAME_PATTERN: Final = r"^[a-z0-9][a-z0-9-]{0,62}$"
TOPIC_PATTERN: Final = r"^[A-Za-z0-9._-]{1,249}$"
OWN_TOPICS: Final = "llm."  # of the product; a pipeline writes none of them

Name = Annotated[str, msgspec.Meta(pattern=NAME_PATTERN)]
Version = (
    Annotated[str, msgspec.Meta(pattern=VERSION_PATTERN)]
    | Annotated[int, msgspec.Meta(ge=0, le=999_999_999)]
)
Topic = Annotated[str, msgspec.Meta(pattern=TOPIC_PATTERN)]
Model = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
Seed = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 9)]  # candidates have the next ones
# A gateway takes 16 pairs, and one of them is the pipeline's name.
Metadata = Annotated[
    dict[
        Annotated[str, msgspec.Meta(min_length=1, max_length=64)],
        Annotated[str, msgspec.Meta(max_length=512)],
    ],
    msgspec.Meta(max_length=15),
]


# Members about a model's prompt or answer: none of them is allowed with `embed`.
_OF_PROMPTS: Final = (
    *("prompt", "retrieve", "model", "answer", "max_output_tokens", "temperature", "seed", "rank"),
    *("priority", "metadata"),
)


class Invalid(ValueError):
    """The file is not a pipeline. The text says where and why."""


class Input(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where records come from. A tombstone is passed over.

    `format`: `json`, the value is a JSON value; `text`, it is UTF-8 text. `start`: where a group
    without committed offsets begins.
    """

    topic: Topic
    format: Literal["json", "text"] = "json"
    start: Literal["earliest", "latest"] = "earliest"


class Prompt(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the model is told and asked."""

    user: Template
    system: Template | None = None


class Output(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where answers go. `key`: of the output record; without it the input's. `value`: what it says,
    as JSON; without it the answer and where it comes from (`pipelines.rows.output`)."""

    topic: Topic
    key: Expression | None = None
    value: Expression | None = None


class Alert(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Answers of which `when` is true go to this topic, too."""

    topic: Topic
    when: Expression


class DeadLetters(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where rows go that have no answer, with the reason."""

    topic: Topic


class Batch(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A transaction is committed with this many rows, or when one of its rows has been done for so
    long."""

    records: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 100
    seconds: Annotated[float, msgspec.Meta(gt=0, le=300)] = 5.0


class Rank(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Several candidates and a judge. The judge's prompt sees `candidates`, a list; its answer is
    the number of the best one, from 1. Where it names none, the first candidate is taken."""

    candidates: Annotated[int, msgspec.Meta(ge=2, le=8)]
    judge: Prompt
    model: Model | None = None


class Pipeline(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One pipeline. It has either a `prompt` or `embed`.

    Attributes:
        version: part of each row's idempotency key, with a digest of all that shapes an answer.
            With another one, rows that are read again are asked again.
        where: of rows of which it is false nothing is asked or written.
        embed: what a row becomes in a vector store.
        retrieve: what the model is shown of vector stores.
        model: without one, the gateway's first.
        answer: JSON schema of the answer; without one it is text.
        priority: class of the requests.
        attempts: requests for a row whose response failed.
        concurrency: requests of one runner at once.
    """

    name: Name
    version: Version = 1
    input: Input
    where: Expression | None = None
    prompt: Prompt | None = None
    embed: stores.Embed | None = None
    retrieve: stores.Retrieve | None = None
    model: Model | None = None
    answer: dict[str, Any] | None = None
    max_output_tokens: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] = 0.0
    seed: Seed | None = None
    rank: Rank | None = None
    priority: Literal["interactive", "batch"] = "batch"
    output: Output
    alert: Alert | None = None
    dead_letters: DeadLetters
    batch: Batch = Batch()
    concurrency: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 16
    attempts: Annotated[int, msgspec.Meta(ge=1, le=5)] = 2
    metadata: Metadata = {}

    @property
    def revision(self) -> str:
        """Which questions it asks: two that ask differently differ in it."""
        shapes: tuple[Any, ...] = (
            self.prompt,
            self.model,
            self.answer,
            self.max_output_tokens,
            self.temperature,
            self.seed,
            self.rank,
            self.priority,
            self.metadata,
        )
        # Not among the others where there is none: a pipeline without it keeps its revision.
        shapes += tuple(each for each in (self.embed, self.retrieve) if each is not None)
        digest = hashlib.blake2b(msgspec.json.encode(shapes, order="sorted"), digest_size=4)
        return f"{self.version}-{digest.hexdigest()}"

    @property
    def group(self) -> str:
        """The consumer group of its runners."""
        return f"tailrace.pipelines.{self.name}"

    @property
    def outputs(self) -> list[str]:
        """Every topic that it writes."""
        alert = [self.alert.topic] if self.alert else []
        return [self.output.topic, *alert, self.dead_letters.topic]

    def transactional_id(self, partition: int) -> str:
        """Of the one producer that writes for an input partition."""
        return f"{self.group}.{self.input.topic}.{partition}"


def parse(data: bytes | str) -> Pipeline:
    """The pipeline in a file's content.

    Raises:
        Invalid: with the line, or the member.
    """
    try:
        value = yaml.safe_load(data)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = f"line {mark.line + 1}: " if mark is not None else ""
        raise Invalid(f"{line}{error.problem}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise Invalid(f"no YAML: {error}") from error
    try:
        # By way of JSON: a schema with a date of YAML in it could not be sent.
        pipeline = msgspec.json.decode(msgspec.json.encode(value), type=Pipeline)
    except (msgspec.MsgspecError, TypeError) as error:
        raise Invalid(str(error)) from error
    _check(pipeline, value)
    topics = [pipeline.input.topic, *pipeline.outputs]
    for topic in pipeline.outputs:
        if topic.startswith(OWN_TOPICS):
            raise Invalid(f"the topic {topic!r} belongs to Tailrace itself")
        if topics.count(topic) > 1:
            raise Invalid(f"the topic {topic!r} is named twice")
    return pipeline


def _check(pipeline: Pipeline, members: dict[str, Any]) -> None:
    """
    Raises:
        Invalid: members do not go together.
    """
    if pipeline.embed is None:
        if pipeline.prompt is None:
            raise Invalid("it has neither `prompt` nor `embed`: it needs one of them")
        if pipeline.retrieve is not None and pipeline.retrieve.filters is not None:
            why = stores.filter_error(pipeline.retrieve.filters)
            if why:
                raise Invalid(f"retrieve.filters: {why}")
        return
    if others := [name for name in _OF_PROMPTS if members.get(name) is not None]:
        raise Invalid(f"`{others[0]}` does not go with `embed`: no model is asked")
    if stores.SOURCE in pipeline.embed.attributes:
        raise Invalid(f"embed.attributes: `{stores.SOURCE}` says where the record is")


def schema() -> dict[str, Any]:
    """The JSON schema of the file."""
    definition = msgspec.json.schema(Pipeline)
    definition["$defs"]["Pipeline"]["oneOf"] = [{"required": ["prompt"]}, {"required": ["embed"]}]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A pipeline of Tailrace",
        **definition,
    }
