"""Schemas that the gateway accepts, and what the engine's grammar makes of them.

It shows of the installed engine what `gateway/parsing/schemas.py` says of it, with what
`worker/engines/vllm_schemas.py` adds: nothing that passes is refused by the engine, each grammar
has a text, and no text that it allows breaks its schema.

Collected in the engine environment (tests/contract/test_engine_environment.py).
"""

from __future__ import annotations

import functools
import json
import random
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import hypothesis
import jsonschema
import pytest
from hypothesis import strategies as st

from gateway.parsing import patterns, schemas
from tailrace.protocol import errors
from tests.support import schema_strategies
from worker.engines import vllm_formats

TEXTS = 4  # made by each grammar
PATIENCE = 100  # steps; from then on a text comes to an end as soon as it can
LONGEST = 1_500  # steps
STOP = 0
VOCABULARY = ["</s>", *map(chr, range(128)), *"\xa0ÃéüÿŸ日一😀\u2028"]
# In the order in which they are preferred when a text shall end.
ENDINGS = [ord(char) + 1 for char in '"@}]:/0123456789,ntfeaxz.']

CHARACTERS = 'ab01^$|()[]{}?*+.,-\\dnu"<:=-wsSx/é'

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]


@functools.cache
def compiler() -> Any:
    import xgrammar

    tokens = xgrammar.TokenizerInfo(
        VOCABULARY, vocab_type=xgrammar.VocabType.RAW, stop_token_ids=[STOP]
    )
    return xgrammar.GrammarCompiler(tokens, max_threads=1, cache_enabled=False)


def of_format(schema: dict[str, Any]) -> Any:
    """The grammar of a format, as worker and vLLM make it."""
    from vllm.v1.structured_output.backend_xgrammar import validate_xgrammar_grammar

    params = vllm_formats.constraint({"type": "json_schema", "schema": schema})
    validate_xgrammar_grammar(SimpleNamespace(structured_outputs=params))
    if params.grammar is not None:
        return compiler().compile_grammar(params.grammar)
    spaces = not vllm_formats.BACKEND["disable_any_whitespace"]
    return compiler().compile_json_schema(
        json.dumps(params.json), any_whitespace=spaces, separators=(",", ":")
    )


def of_tool(schema: dict[str, Any]) -> Any:
    """The grammar of a strict tool's arguments."""
    from vllm.sampling_params import StructuredOutputsParams
    from vllm.v1.structured_output.backend_xgrammar import validate_xgrammar_grammar

    node = {"type": "json_schema", "json_schema": schema}
    tag = json.dumps({"type": "structural_tag", "format": node})
    params = vllm_formats.limit_whitespace(StructuredOutputsParams(structural_tag=tag))
    validate_xgrammar_grammar(SimpleNamespace(structured_outputs=params))
    return compiler().compile_structural_tag(params.structural_tag)


def accepted(schema: dict[str, Any]) -> bool:
    try:
        schemas.check(schema, "s")
    except errors.ApiError:
        return False
    return True


def texts(grammar: Any, pick: random.Random) -> Iterator[str]:
    """Texts that a grammar allows."""
    for _ in range(TEXTS):
        yield text(grammar, pick)


def text(grammar: Any, pick: random.Random) -> str:
    """One text. It may end wherever the grammar lets it, and does so when it is long."""
    import xgrammar

    matcher = xgrammar.GrammarMatcher(grammar)
    mask = xgrammar.allocate_token_bitmask(1, len(VOCABULARY))
    written = ""
    for step in range(LONGEST):
        matcher.fill_next_token_bitmask(mask)
        bits = [int(each) & 0xFFFFFFFF for each in mask[0]]
        allowed = [i for i in range(len(VOCABULARY)) if bits[i // 32] >> (i % 32) & 1]
        assert allowed, f"no character may follow {written!r}"
        hurry = step >= PATIENCE
        if STOP in allowed and (hurry or len(allowed) == 1 or pick.random() < 0.5):
            return written
        token = choice([i for i in allowed if i != STOP], hurry, pick)
        assert matcher.accept_token(token)
        written += VOCABULARY[token]
    raise AssertionError(f"no end after {written!r}")


def choice(allowed: list[int], hurry: bool, pick: random.Random) -> int:
    endings = [i for i in ENDINGS if i in allowed]
    if endings and pick.random() < (0.8 if hurry else 0.45):
        return endings[0] if hurry else pick.choice(endings)
    return pick.choice(allowed)


def check(schema: dict[str, Any], written: str) -> None:
    """A text is JSON of the schema, whichever a reader takes of two members with one name."""
    validate = validator()(
        schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    ).validate
    validate(json.loads(written, parse_constant=refuse))
    validate(json.loads(written, object_pairs_hook=lambda pairs: dict(reversed(pairs))))


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


@functools.cache
def validator() -> Any:
    """JSON Schema has the regular expressions of JavaScript: letters are ASCII."""

    def pattern(_: Any, value: str, instance: Any, __: Any) -> Iterator[jsonschema.ValidationError]:
        flags = re.NOFLAG if "\\s" in value else re.ASCII
        if isinstance(instance, str) and not re.search(value, instance, flags):
            yield jsonschema.ValidationError(f"{instance!r} does not match {value!r}")

    return jsonschema.validators.extend(jsonschema.Draft202012Validator, {"pattern": pattern})


def walk(schema: dict[str, Any], seed: int) -> None:
    hypothesis.assume(accepted(schema))
    pick = random.Random(seed)
    for compiled in (of_format, of_tool):
        for written in texts(compiled(schema), pick):
            check(schema, written)


def given(examples: int) -> Any:
    settings = hypothesis.settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    return lambda test: settings(
        hypothesis.given(schema_strategies.schemas(), st.integers(0, 2**32))(test)
    )


@given(150)
def test_what_the_gateway_accepts_is_enforced(schema: dict[str, Any], seed: int) -> None:
    walk(schema, seed)


@pytest.mark.nightly
@given(5_000)
def test_what_the_gateway_accepts_is_enforced_at_length(schema: dict[str, Any], seed: int) -> None:
    walk(schema, seed)


def test_a_pattern_that_the_gateway_accepts_is_one_for_the_engine() -> None:
    import xgrammar

    pick = random.Random(1)
    taken = 0
    for _ in range(20_000):
        pattern = "".join(pick.choices(CHARACTERS, k=pick.randint(1, 9)))
        if patterns.problem(pattern) is None:
            xgrammar.Grammar.from_json_schema({"type": "string", "pattern": pattern})
            taken += 1
    assert taken > 1000
