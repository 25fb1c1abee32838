"""An estimate of the cost of uncommitted rows, without any request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from pipelines import definition
from pipelines.counts import Counts
from pipelines.rows import Rows, Skipped
from pipelines.templates import Unusable
from tailrace.log import Record

CHARACTERS_PER_TOKEN: Final = 4.0  # until answers report a prompt's tokens
ANSWER_TOKENS: Final = 200  # where the pipeline bounds nothing and nothing was answered


class Sample(NamedTuple):
    """Some records. `row_share`: part of them with a request; `characters`: mean of a request."""

    records: int
    row_share: float
    characters: float
    first_error: str = ""


class Estimate(NamedTuple):
    """`requests` may cost; `found` rows have their output already. `measured`: tokens are those of
    rows that were answered, and not guessed from the length of questions."""

    rows: int
    found: int
    requests: int
    input_tokens: int
    output_tokens: int
    measured: bool

    def cost(self, input_price: float, output_price: float) -> float:
        """In the currency of the prices, which are per million tokens."""
        return (self.input_tokens * input_price + self.output_tokens * output_price) / 1e6


def sample(rows: Rows, records: Sequence[Record]) -> Sample:
    """Read these records as a runner would."""
    row_count, characters, error = 0, 0, ""
    for record in records:
        try:
            length = rows.length(rows.read(record))
        except Skipped:
            continue
        except Unusable as unusable:
            error = error or f"offset {record.offset}: {unusable}"
            continue
        row_count += 1
        characters += length
    many = len(records)
    return Sample(
        many, row_count / many if many else 1.0, characters / row_count if row_count else 0.0, error
    )


def estimate(
    pipeline: definition.Pipeline, rows: int, output_count: int, sample: Sample, done: Counts
) -> Estimate:
    """Args:
    rows: that would be read, `found` of which have their output.
    done: of the same pipeline so far.
    """
    candidates = 1 if pipeline.rank is None else pipeline.rank.candidates
    each = candidates + (candidates > 1)
    row_count = max(0.0, (rows - output_count) * sample.row_share)
    is_measured = bool(done.answered) and pipeline.embed is None  # embeddings say no usage here
    if is_measured:
        tokens = done.input_tokens / done.answered, done.output_tokens / done.answered
    else:
        output = pipeline.max_output_tokens or ANSWER_TOKENS
        if pipeline.embed is not None:  # embeddings have no output
            output = 0
        tokens = each * sample.characters / CHARACTERS_PER_TOKEN, float(each * output)
    return Estimate(
        rows,
        output_count,
        round(row_count * each),
        round(row_count * tokens[0]),
        round(row_count * tokens[1]),
        is_measured,
    )
