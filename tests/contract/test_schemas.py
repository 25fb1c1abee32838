"""Schemas that the gateway accepts, and what the engine's grammar makes of them.

It shows of the installed engine what `gateway/parsing/schemas.py` says of it: nothing that passes
there is refused by the engine, and no text that a grammar allows breaks its schema.

Collected in the engine environment (tests/contract/test_engine_environment.py).
"""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from gateway.parsing import patterns, schemas
from tailrace.protocol import errors

SCHEMAS = [  # seed, number made of it; about half of them pass
    (0, 250),
    pytest.param(0, 1_000, marks=pytest.mark.nightly),
    pytest.param(1, 1_000, marks=pytest.mark.nightly),
]
TEXTS = 3  # made by each grammar
LONGEST = 160  # steps; a text that is not finished then tells nothing
VOCABULARY = ["</s>", *map(chr, range(32, 127)), "é", "\n", "true", "false", "null"]
ENDINGS = frozenset('"}],:0123456789')  # picked more often, so that texts come to an end

PATTERNS = [
    *("^a+$", "[a-z]{2,5}", r"\d+", "^(x|y)?z$", "(?:ab)+", '^[^"]*$', "é", r"\w+@\w+", "."),
    *(r"[\s\S]", "^a|b$", "a{0}", "(|a)", "[!-~]", r"^\S.\W$", r"\/", r"[\]\-]", "a{2,}?", "^$"),
]
CHARACTERS = 'ab01^$|()[]{}?*+.,-\\dnu"<:=-wsSx/é'

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]


class Maker:
    """Makes schemas, good and bad ones."""

    def __init__(self, seed: int) -> None:
        self.pick = random.Random(seed)

    def root(self) -> dict[str, Any]:
        made = self.schema()
        definitions = {"$defs": {"a": self.schema(2), "b": self.schema(2)}}
        return {**(made if isinstance(made, dict) else {}), **definitions}

    def schema(self, depth: int = 0) -> dict[str, Any] | bool:
        pick = self.pick
        if pick.random() < 0.1:
            return {} if pick.random() < 0.5 else True
        found: dict[str, Any] = {"title": "t"} if pick.random() < 0.15 else {}
        way = pick.random()
        if way < 0.1:
            values = ["a", "b", 1, 2.5, None, True, {"x": [1]}]
            return found | {"enum": pick.sample(values, pick.randint(1, 4))}
        if way < 0.15:
            return found | {"const": pick.choice(["a", 1, None, {"a": {"b": 1}}])}
        if way < 0.36:
            keyword = pick.choice(["anyOf", "oneOf", "allOf"])
            found[keyword] = [self.inner(depth) for _ in range(pick.randint(1, 3))]
        elif way < 0.45:
            found["$ref"] = pick.choice(["#", "#/$defs/a", "#/$defs/b"])
        if not found.keys() & {"anyOf", "oneOf", "allOf", "$ref"} or pick.random() < 0.1:
            found |= self.typed(depth)
        return found

    def inner(self, depth: int) -> dict[str, Any] | bool:
        if depth < 4:
            return self.schema(depth + 1)
        return {"type": self.pick.choice(["integer", "string", "null"])}

    def typed(self, depth: int) -> dict[str, Any]:
        pick = self.pick
        kinds = ["object", "array", "string", "integer", "number", "boolean", "null"]
        types = pick.choice([*([k] for k in kinds), ["string", "null"], ["object", "array"]])
        found: dict[str, Any] = {"type": types if len(types) > 1 else types[0]}
        for kind in types:
            for keyword, make in self.keywords(kind, depth).items():
                if pick.random() < (0.8 if keyword in ("properties", "items") else 0.15):
                    found[keyword] = make()
        return found

    def keywords(self, kind: str, depth: int) -> dict[str, Any]:
        pick, inner = self.pick, lambda: self.inner(depth)
        count = lambda: pick.randint(0, 4)  # noqa: E731
        match kind:
            case "string":
                return {
                    "minLength": count,
                    "maxLength": lambda: pick.randint(0, 9),
                    "pattern": lambda: pick.choice(PATTERNS),
                    "format": lambda: pick.choice(["date", "uuid", "email", "ipv6", "int32"]),
                }
            case "integer" | "number":
                return {
                    "minimum": lambda: pick.choice([0, -3, 2.5, 7]),
                    "maximum": lambda: pick.choice([10, 9.5, 8]),
                    "exclusiveMinimum": lambda: pick.choice([0, 1]),
                    "exclusiveMaximum": lambda: pick.choice([5, 2]),
                    "multipleOf": lambda: 2,
                }
            case "object":
                names = ["a", "b", "c", "é x"]
                return {
                    "properties": lambda: {
                        name: inner() for name in pick.sample(names, pick.randint(0, 3))
                    },
                    "required": lambda: pick.sample(["a", "b"], pick.randint(0, 2)),
                    "additionalProperties": lambda: pick.choice([True, False, inner()]),
                    "patternProperties": lambda: {pick.choice(PATTERNS): inner()},
                    "propertyNames": lambda: pick.choice(
                        [{"pattern": pick.choice(PATTERNS)}, {"maxLength": 3}, inner()]
                    ),
                    "minProperties": count,
                    "maxProperties": count,
                    "unevaluatedProperties": lambda: pick.choice([False, True, inner()]),
                }
            case "array":
                return {
                    "items": lambda: pick.choice([inner(), inner(), False, True]),
                    "prefixItems": lambda: [inner() for _ in range(pick.randint(1, 2))],
                    "minItems": count,
                    "maxItems": count,
                    "uniqueItems": lambda: True,
                }
        return {}


def accepted(schema: dict[str, Any]) -> bool:
    try:
        schemas.check(schema, "s")
    except errors.ApiError:
        return False
    return True


@pytest.mark.parametrize(("seed", "number"), SCHEMAS)
def test_what_the_gateway_accepts_is_enforced(seed: int, number: int) -> None:
    import jsonschema
    import xgrammar
    from vllm.v1.structured_output.backend_xgrammar import has_xgrammar_unsupported_json_features

    tokens = xgrammar.TokenizerInfo(
        VOCABULARY, vocab_type=xgrammar.VocabType.RAW, stop_token_ids=[0]
    )
    compiler = xgrammar.GrammarCompiler(tokens, max_threads=1)
    maker = Maker(seed)
    finished = 0
    for schema in (maker.root() for _ in range(number)):
        if not accepted(schema):
            continue
        assert not has_xgrammar_unsupported_json_features(schema), schema
        grammar = compiler.compile_json_schema(
            json.dumps(schema), any_whitespace=False, separators=(",", ":")
        )
        for _ in range(TEXTS):
            text = written(xgrammar, grammar, maker.pick)
            if text is not None:
                jsonschema.Draft202012Validator(schema).validate(json.loads(text))
                finished += 1
    assert finished > number / 2


def written(xgrammar: Any, grammar: Any, pick: random.Random) -> str | None:
    """A text that a grammar allows; None if it did not come to an end."""
    matcher = xgrammar.GrammarMatcher(grammar)
    mask = xgrammar.allocate_token_bitmask(1, len(VOCABULARY))
    text = ""
    for step in range(LONGEST):
        matcher.fill_next_token_bitmask(mask)
        allowed = [i for i in range(len(VOCABULARY)) if int(mask[0, i // 32]) >> (i % 32) & 1]
        assert allowed, f"no token may follow {text!r}"
        if 0 in allowed and (len(allowed) == 1 or pick.random() < 0.5):
            return text
        going_on = [i for i in allowed if i]
        ending = [i for i in going_on if VOCABULARY[i] in ENDINGS]
        hurry = ending and pick.random() < 0.35 + step / 200
        token = pick.choice(ending if hurry else going_on)
        assert matcher.accept_token(token)
        text += VOCABULARY[token]
    return None


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
