"""An input record as a row of a pipeline, and its output records."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from pipelines import definition
from pipelines.documents import Document, Documents
from pipelines.templates import Expression, Template, Unusable
from tailrace.log import RECORD_OVERHEAD_BYTES, Outgoing, Record
from tailrace.protocol import log_words

SOURCE: Final = "tailrace-source"
PIPELINE: Final = "tailrace-pipeline"
REASON: Final = "tailrace-reason"
DETAIL: Final = "tailrace-detail"
RESPONSE: Final = "tailrace-response"
_OURS: Final = frozenset({SOURCE, PIPELINE, REASON, DETAIL, RESPONSE})
MAX_DETAIL: Final = 2_000  # bytes
# The broker's limit, less the overhead of a record.
MAX_BYTES: Final = (1 << 20) - RECORD_OVERHEAD_BYTES


class Skipped(Exception):
    """This record needs no answer: `where` is false of it, or it is a tombstone."""


def place_of(record: Record) -> str:
    """Topic, partition, offset and time of a record. A topic that was made anew has the same
    offsets, but not at the same times."""
    return f"{record.topic}/{record.partition}/{record.offset}/{record.timestamp}"


@dataclass(frozen=True, slots=True)
class Row:
    """One record.

    Attributes:
        values: variables of templates and expressions: `record` (the parsed value), `key`,
            `headers`, `topic`, `partition`, `offset` and `timestamp` (ms).
    """

    source: Record
    values: dict[str, Any]

    @property
    def place(self) -> str:
        """See `place_of`."""
        return place_of(self.source)


@dataclass(frozen=True, slots=True)
class Answer:
    """A model's answer. `value`: of the schema, else the text. `candidates`: how many it was chosen
    from. `citations`: of files, in the API's form."""

    value: Any
    response: str
    model: str
    input_tokens: int = 0
    output_tokens: int = 0
    requests: int = 1
    incomplete: bool = False
    candidates: int = 1
    citations: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A row that was stored as a file of a vector store; all its passages can be found."""

    file: str
    store: str
    passages: int
    requests: int = 1
    input_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Refusal:
    """No answer. `reason`: a code of docs/pipelines.md. `response`: empty without one."""

    reason: str
    detail: str
    response: str = ""
    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class RowRecords:
    """The output records of a row."""

    records: list[Outgoing] = field(default_factory=list)
    alerted: bool = False
    dead: bool = False


class Rows:
    """Reads and writes records of one pipeline."""

    def __init__(self, pipeline: definition.Pipeline) -> None:
        """Raises definition.Invalid: a template or an expression has an error."""
        self._pipeline = pipeline
        prompt, output = pipeline.prompt, pipeline.output
        self._user = Template(prompt.user, "prompt.user") if prompt else None
        system = prompt.system if prompt else None
        self._system = Template(system, "prompt.system") if system else None
        self._documents = Documents(pipeline.embed) if pipeline.embed else None
        self._where = Expression(pipeline.where, "where") if pipeline.where else None
        self._key = Expression(output.key, "output.key") if output.key else None
        self._value = Expression(output.value, "output.value") if output.value else None
        self._when = Expression(pipeline.alert.when, "alert.when") if pipeline.alert else None

    def read(self, record: Record) -> Row:
        """The row of a record.

        Raises:
            Skipped: it needs no answer.
            Unusable: it is invalid.
        """
        if record.value is None:
            raise Skipped
        row = Row(record, {"record": None, **_place(record)})
        try:
            text = record.value.decode()
        except UnicodeDecodeError as error:
            raise Unusable(f"the value is no UTF-8: {error.reason}") from error
        if self._pipeline.input.format == "text":
            row.values["record"] = text
        else:
            try:
                row.values["record"] = msgspec.json.decode(record.value)
            except (msgspec.MsgspecError, RecursionError) as error:
                raise Unusable(f"the value is no JSON: {error}") from error
        if self._where is not None and not self._where.value(row.values):
            raise Skipped
        return row

    def question(self, row: Row) -> list[dict[str, str]]:
        """The messages for the model, of a pipeline with a prompt. Raises Unusable."""
        assert self._user is not None
        messages = [{"role": "user", "content": self._user.text(row.values)}]
        if self._system is not None:
            messages.insert(0, {"role": "system", "content": self._system.text(row.values)})
        return messages

    def document(self, row: Row) -> Document:
        """The file to store, of a pipeline with `embed`. Raises Unusable."""
        assert self._documents is not None
        return self._documents.document(row.values)

    def length(self, row: Row) -> int:
        """Number of characters of the request or the file. Raises Unusable."""
        if self._documents is not None:
            return len(self.document(row).text.decode())
        return sum(len(message["content"]) for message in self.question(row))

    def output_records(self, row: Row, outcome: Answer | StoredFile | Refusal) -> RowRecords:
        """The records of an outcome. If an expression of the pipeline fails for it, a dead
        letter."""
        if isinstance(outcome, Refusal):
            return self.dead(row.source, outcome)
        values = {**row.values, **_of_outcome(outcome)}
        try:
            key = row.source.key if self._key is None else _bytes(self._key.value(values))
            value = _encode(self._output(row, outcome, values))
            alerts = self._when is not None and bool(self._when.value(values))
            output = Outgoing(self._pipeline.output.topic, key, value, self._headers(row.source))
            if _size(output) > MAX_BYTES:
                raise Unusable(f"a record of more than {MAX_BYTES} bytes")
        except Unusable as error:
            return self.dead(
                row.source,
                Refusal(
                    "output",
                    str(error),
                    outcome.response if isinstance(outcome, Answer) else "",
                    outcome.requests,
                    outcome.input_tokens,
                    outcome.output_tokens,
                ),
            )
        records = [output]
        if alerts and self._pipeline.alert is not None:
            records.append(output._replace(topic=self._pipeline.alert.topic))
        return RowRecords(records, alerted=alerts)

    def dead(self, source: Record, refusal: Refusal) -> RowRecords:
        """A dead letter: the unchanged key and value of the input, and the reason in the
        headers."""
        input_headers, origin = self._input_headers(source), self._origin(source)
        origin += [(REASON, _cut(refusal.reason)), (DETAIL, _cut(refusal.detail))]
        if refusal.response:
            origin.append((RESPONSE, _cut(refusal.response)))
        # The additions may make it too large, and a compressed record is larger than its batch was.
        # The shortest form only names the record.
        for key, value, headers in (
            (source.key, source.value, input_headers + origin),
            (source.key, None, input_headers + origin),
            (source.key, None, origin),
            (None, None, origin),
        ):
            letter = Outgoing(self._pipeline.dead_letters.topic, key, value, headers)
            if _size(letter) <= MAX_BYTES:
                break
        return RowRecords([letter], dead=True)

    def _output(self, row: Row, outcome: Answer | StoredFile, values: dict[str, Any]) -> Any:
        if self._value is not None:
            return self._value.value(values)
        at = row.source
        common = {
            "pipeline": self._pipeline.name,
            "revision": self._pipeline.revision,
            "source": {
                "topic": at.topic,
                "partition": at.partition,
                "offset": at.offset,
                "timestamp": at.timestamp,
            },
        }
        return {**_output_members(outcome), **common, **_usage_members(outcome)}

    def _headers(self, source: Record) -> list[tuple[str, bytes | None]]:
        """The input's headers, and the source of the record."""
        return self._input_headers(source) + self._origin(source)

    @staticmethod
    def _input_headers(source: Record) -> list[tuple[str, bytes | None]]:
        return [(name, value) for name, value in source.headers if name not in _OURS]

    def _origin(self, source: Record) -> list[tuple[str, bytes | None]]:
        revision = f"{self._pipeline.name}/{self._pipeline.revision}"
        return [(SOURCE, place_of(source).encode()), (PIPELINE, revision.encode())]


def _of_outcome(outcome: Answer | StoredFile) -> dict[str, Any]:
    """The variables of an outcome for expressions."""
    if isinstance(outcome, StoredFile):
        return {"answer": _output_members(outcome)}
    return {
        "answer": outcome.value,
        "response": outcome.response,
        "citations": list(outcome.citations),
    }


def _output_members(outcome: Answer | StoredFile) -> dict[str, Any]:
    """The first members of an output."""
    if isinstance(outcome, StoredFile):
        return {"file": outcome.file, "store": outcome.store, "passages": outcome.passages}
    return {"answer": outcome.value, "response": outcome.response, "model": outcome.model}


def _usage_members(outcome: Answer | StoredFile) -> dict[str, Any]:
    """The last members of an output."""
    if isinstance(outcome, StoredFile):
        return {}
    usage = {"input_tokens": outcome.input_tokens, "output_tokens": outcome.output_tokens}
    members: dict[str, Any] = {"usage": usage}
    if outcome.incomplete:
        members["incomplete"] = True
    if outcome.candidates > 1:
        members["candidates"] = outcome.candidates
    if outcome.citations:
        members["citations"] = list(outcome.citations)
    return members


def _place(record: Record) -> dict[str, Any]:
    return {
        "key": _text(record.key),
        "headers": {name: _text(value) for name, value in record.headers},
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
    }


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="replace")


def _bytes(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        return _encode(value)
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise Unusable(f"the key is no text: {error.reason}") from error


def _encode(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise Unusable(f"no JSON: {error}") from error


def _cut(text: str) -> bytes:
    """A text as a header, cut after whole characters."""
    return text.encode(errors="replace")[:MAX_DETAIL].decode(errors="ignore").encode()


def _size(record: Outgoing) -> int:
    return len(record.key or b"") + len(record.value or b"") + log_words.size_of(record.headers)
