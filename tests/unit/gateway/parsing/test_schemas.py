"""Which JSON schemas are enforced as a whole, and how the others are named.

What the engine makes of each keyword was measured with xgrammar 0.2.8; the comments say it.
"""

from __future__ import annotations

import sys
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest

from gateway.parsing import schema_errors, schemas
from tailrace.protocol import errors
from tests.support import cases

INT: dict[str, Any] = {"type": "integer"}
TEXT: dict[str, Any] = {"type": "string"}


def an_object(**members: Any) -> dict[str, Any]:
    return {"type": "object", **members}


NODE = an_object(
    properties={"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
    required=["next"],
)
CAT = an_object(properties={"kind": {"const": "cat"}}, required=["kind"])
DOG = an_object(properties={"kind": {"enum": ["dog", "wolf"]}}, required=["kind"])

ACCEPTED: list[dict[str, Any]] = [
    {},
    {"title": "T", "description": "d", "$schema": "http://json-schema.org/draft-07/schema#"},
    {"type": "integer", "minimum": 1, "maximum": 1.0, "default": 1, "examples": [1, {"a": 1}]},
    {"type": "integer", "exclusiveMinimum": 5, "exclusiveMaximum": 7},
    {"type": "number", "minimum": 0.5, "exclusiveMaximum": 2**32 - 1},
    {"type": "number", "minimum": -1e300, "maximum": 1e300},
    {"type": "string", "minLength": 0, "maxLength": 30},
    {"type": "string", "format": "date-time"},
    {"type": "string", "pattern": "^[a-z]{2,}$"},
    {"type": ["string", "null"], "minLength": 1},
    {"type": ["integer", "string", "array"], "minimum": 3, "minLength": 2, "items": INT},
    {"type": ["integer", "number"], "minimum": 3, "maximum": 4.0},
    {"type": "number", "exclusiveMinimum": 0, "maximum": 1e-6},
    {"type": "number", "minimum": 2**53, "maximum": 1e20},
    {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
    {"enum": [2**63 - 1, -(2**63), 1e20, {"id": [2**62]}]},
    {"type": "string", "minimum": 3},  # says nothing about strings
    {"type": "integer", "format": "int32"},  # an annotation
    {"enum": ["a", 1, None, {"x": 1}]},
    {"type": "string", "enum": ["a", "b"]},
    {"type": ["string", "null"], "enum": ["a", None]},
    {"type": "integer", "const": 1.0},
    {"const": {"a": [1]}},
    an_object(properties={"a": INT, "b": TEXT}, required=["a"], additionalProperties=False),
    an_object(additionalProperties=INT, maxProperties=3),
    an_object(properties={"a": INT}, minProperties=1, unevaluatedProperties=False),
    an_object(patternProperties={"^a": INT}),
    an_object(propertyNames={"pattern": "^a"}),
    an_object(propertyNames={"enum": ["a"]}, additionalProperties=INT),
    {"type": "object", "properties": {"a": INT, "é": INT}, "additionalProperties": False},
    an_object(properties={"a": INT, "/ b'": TEXT}, additionalProperties=True),
    an_object(properties={"a": INT}, required=["a"], additionalProperties=INT, minProperties=2),
    an_object(patternProperties={"^a": INT}, minProperties=1, maxProperties=2),
    an_object(properties={"é": INT}, additionalProperties=False, unevaluatedProperties=INT),
    {"properties": {"a": INT}},
    {"items": INT},
    {"type": "array", "items": INT, "minItems": 2, "maxItems": 2},
    {"type": "array", "prefixItems": [INT, TEXT], "items": False},
    {"type": "array", "prefixItems": [INT], "items": TEXT, "minItems": 2},
    {"anyOf": [TEXT, INT], "title": "either"},
    {"allOf": [{"$ref": "#/$defs/n"}], "$defs": {"n": INT}},
    {"oneOf": [TEXT, INT]},
    {"oneOf": [{"const": "a"}, {"enum": ["b", 1]}, {"type": "null"}, CAT, DOG]},
    {"oneOf": [{"const": i} for i in range(3000)]},
    {"oneOf": [TEXT]},
    {
        "oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}],
        "discriminator": {"propertyName": "kind"},
        "$defs": {"cat": CAT, "dog": DOG},
    },
    {"$ref": "#/$defs/node", "$defs": {"node": NODE}},
    an_object(properties={"a": {"$ref": "#"}}),
    {"type": ["object", "null"], "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    {
        "type": ["object", "array"],
        "properties": {"a": {"$ref": "#"}},
        "required": ["a"],
        "items": {"$ref": "#"},
    },
    {"definitions": {"a b": INT}, "$ref": "#/definitions/a b"},
    an_object(properties={"multipleOf": INT, "type": TEXT, "if": TEXT}),  # names, not keywords
]

# schema, the path below "s" that is named, code
REFUSED: list[tuple[Any, str | None, str]] = [
    (None, "", "invalid_type"),
    (True, "", "invalid_type"),
    ([], "", "invalid_type"),
    # Unknown to the engine: ignored with or without a type beside it.
    *(
        ({"type": type_, keyword: value}, f".{keyword}", "unsupported_value")
        for type_, keyword, value in [
            ("integer", "multipleOf", 3),
            ("array", "uniqueItems", True),
            ("array", "uniqueItems", False),
            ("array", "contains", INT),
            ("array", "minContains", 1),
            ("array", "maxContains", 1),
            ("array", "additionalItems", False),
            ("string", "not", {"const": "a"}),
            ("object", "if", {}),
            ("object", "then", {}),
            ("object", "else", {}),
            ("object", "dependentRequired", {"a": ["b"]}),
            ("object", "dependentSchemas", {}),
            ("object", "dependencies", {}),
            ("object", "$dynamicRef", "#"),
            ("object", "$recursiveRef", "#"),
            ("string", "nullable", True),
        ]
    ),
    ({"multipleOf": 3}, ".multipleOf", "unsupported_value"),
    # Without a type the engine makes any JSON of these.
    ({"minimum": 3}, ".minimum", "unsupported_value"),
    ({"pattern": "a"}, ".pattern", "unsupported_value"),
    ({"format": "date"}, ".format", "unsupported_value"),
    ({"required": ["a"]}, ".required", "unsupported_value"),
    ({"minItems": 1}, ".minItems", "unsupported_value"),
    # What stands beside these is ignored.
    ({"allOf": [TEXT, {"minLength": 2}]}, ".allOf", "unsupported_value"),
    ({"type": "string", "allOf": [TEXT]}, ".type", "unsupported_value"),
    ({"anyOf": [INT, TEXT], "minimum": 3}, ".minimum", "unsupported_value"),
    ({"anyOf": [INT], "oneOf": [INT]}, ".oneOf", "unsupported_value"),
    ({"$ref": "#/$defs/a", "minimum": 3, "$defs": {"a": INT}}, ".minimum", "unsupported_value"),
    ({"enum": ["a"], "minLength": 2}, ".minLength", "unsupported_value"),
    ({"const": "a", "enum": ["a"]}, ".enum", "unsupported_value"),
    ({"type": "string", "enum": ["a", 1]}, ".enum", "invalid_value"),
    ({"type": "integer", "const": True}, ".const", "invalid_value"),
    ({"enum": []}, ".enum", "invalid_type"),
    ({"enum": "a"}, ".enum", "invalid_type"),
    ({"anyOf": []}, ".anyOf", "invalid_type"),
    ({"anyOf": {}}, ".anyOf", "invalid_type"),
    ({"anyOf": [5]}, ".anyOf[0]", "invalid_type"),
    ({"anyOf": [False]}, ".anyOf[0]", "unsupported_value"),
    # oneOf is anyOf to the engine.
    ({"oneOf": [INT, {"type": "number"}]}, ".oneOf", "unsupported_value"),
    ({"oneOf": [CAT, CAT]}, ".oneOf", "unsupported_value"),
    ({"oneOf": [{"const": 1}, {"enum": [1.0]}]}, ".oneOf", "unsupported_value"),
    ({"oneOf": [{"const": "a"}, TEXT]}, ".oneOf", "unsupported_value"),
    (
        {"oneOf": [CAT, an_object(properties={"kind": {"const": "dog"}})]},
        ".oneOf",
        "unsupported_value",
    ),
    ({"oneOf": [True, INT]}, ".oneOf", "unsupported_value"),
    # Types.
    ({"type": "int"}, ".type", "invalid_value"),
    ({"type": "STRING"}, ".type", "invalid_value"),
    ({"type": []}, ".type", "invalid_type"),
    ({"type": [["string"]]}, ".type", "invalid_value"),
    ({"type": None}, ".type", "invalid_type"),
    # Strings.
    ({"type": "string", "minLength": "3"}, ".minLength", "invalid_type"),
    ({"type": "string", "minLength": True}, ".minLength", "invalid_type"),
    ({"type": "string", "minLength": -1}, ".minLength", "invalid_value"),
    ({"type": "string", "maxLength": 2**31}, ".maxLength", "invalid_value"),
    ({"type": "string", "minLength": 5, "maxLength": 3}, ".maxLength", "invalid_value"),
    ({"type": "string", "format": "int32"}, ".format", "unsupported_value"),
    ({"type": "string", "format": 5}, ".format", "invalid_type"),
    ({"type": "string", "pattern": 5}, ".pattern", "invalid_type"),
    ({"type": "string", "pattern": "(?=a)b"}, ".pattern", "unsupported_value"),
    ({"type": "string", "pattern": "a", "maxLength": 3}, ".maxLength", "unsupported_value"),
    ({"type": "string", "format": "date", "minLength": 3}, ".minLength", "unsupported_value"),
    ({"type": "string", "format": "date", "pattern": "a"}, ".format", "unsupported_value"),
    # Numbers.
    ({"type": "integer", "minimum": 5, "maximum": 3}, ".minimum", "invalid_value"),
    (
        {"type": "integer", "exclusiveMinimum": 5, "exclusiveMaximum": 6},
        ".exclusiveMinimum",
        "invalid_value",
    ),
    (
        {"type": "number", "minimum": 5, "exclusiveMaximum": 5},
        ".minimum",
        "invalid_value",
    ),
    ({"type": "integer", "minimum": 1.5}, ".minimum", "unsupported_value"),
    ({"type": "integer", "minimum": 10**30}, ".minimum", "unsupported_value"),
    ({"type": "number", "minimum": 10**400}, ".minimum", "invalid_type"),
    ({"type": "integer", "exclusiveMinimum": True}, ".exclusiveMinimum", "invalid_type"),
    # The engine checks integers by themselves also where other numbers are allowed.
    ({"type": ["integer", "number"], "minimum": 0.5}, ".minimum", "unsupported_value"),
    (
        {"type": ["number", "integer"], "exclusiveMinimum": 0, "exclusiveMaximum": 1},
        ".exclusiveMinimum",
        "invalid_value",
    ),
    ({"type": "integer", "exclusiveMinimum": 2**63 - 1}, ".exclusiveMinimum", "invalid_value"),
    ({"type": "integer", "minimum": -float(2**63)}, ".minimum", "unsupported_value"),
    ({"type": "integer", "maximum": 2**64 - 1}, ".maximum", "unsupported_value"),
    # Bounds of numbers are doubles to the engine.
    ({"type": "number", "minimum": 2**53 + 1}, ".minimum", "unsupported_value"),
    ({"type": "number", "maximum": 2**64 - 1}, ".maximum", "unsupported_value"),
    # It writes at most six decimals, and nothing where none fits.
    ({"type": "number", "minimum": 1e-7, "maximum": 9e-7}, ".minimum", "invalid_value"),
    ({"type": "number", "minimum": 0.1234561, "maximum": 0.1234569}, ".minimum", "invalid_value"),
    (
        {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1e-6},
        ".exclusiveMinimum",
        "invalid_value",
    ),
    # The number of six decimals next to it is the same double.
    (
        {"type": "number", "minimum": 0.5, "exclusiveMaximum": 1e300},
        ".exclusiveMaximum",
        "unsupported_value",
    ),
    ({"type": "number", "exclusiveMinimum": -(2**32)}, ".exclusiveMinimum", "unsupported_value"),
    # An integer beyond 64 bits is a double to it.
    ({"const": 2**64 - 1}, ".const", "unsupported_value"),
    ({"type": "integer", "enum": [1, 2**63]}, ".enum", "unsupported_value"),
    ({"const": {"id": [-(2**63) - 1]}}, ".const", "unsupported_value"),
    # Objects.
    (an_object(properties=[]), ".properties", "invalid_type"),
    (an_object(properties={"a": 5}), ".properties.a", "invalid_type"),
    (an_object(properties={"a": False}), ".properties.a", "unsupported_value"),
    (an_object(properties={"a b": {"type": "x"}}), ".properties['a b'].type", "invalid_value"),
    (an_object(required="a"), ".required", "invalid_type"),
    (an_object(required=[5]), ".required", "invalid_type"),
    (an_object(properties={"a": INT}, required=["b"]), ".required", "unsupported_value"),
    (an_object(minProperties=1), ".minProperties", "unsupported_value"),
    (an_object(maxProperties=1), ".maxProperties", "unsupported_value"),
    (an_object(properties={"a": INT}, minProperties=2), ".minProperties", "invalid_value"),
    (
        an_object(properties={"a": INT, "b": INT}, required=["a", "b"], maxProperties=1),
        ".maxProperties",
        "invalid_value",
    ),
    (
        an_object(patternProperties={"^a": INT, "^b": INT}),
        ".patternProperties",
        "unsupported_value",
    ),
    (
        an_object(patternProperties={"^a": INT}, properties={"x": INT}),
        ".patternProperties",
        "unsupported_value",
    ),
    (
        an_object(patternProperties={"^a": INT}, additionalProperties=TEXT),
        ".additionalProperties",
        "unsupported_value",
    ),
    (an_object(patternProperties={"(": INT}), ".patternProperties['(']", "unsupported_value"),
    (
        an_object(propertyNames={"maxLength": 2}, properties={"a": INT}),
        ".propertyNames",
        "unsupported_value",
    ),
    (
        an_object(propertyNames={"pattern": "a", "maxLength": 3}),
        ".propertyNames.maxLength",
        "unsupported_value",
    ),
    (an_object(propertyNames=True), ".propertyNames", "invalid_type"),
    (an_object(propertyNames={"type": "integer"}), ".propertyNames", "unsupported_value"),
    (an_object(propertyNames={"anyOf": [TEXT]}), ".propertyNames", "unsupported_value"),
    (an_object(propertyNames={"enum": [1]}), ".propertyNames.enum", "invalid_value"),
    # It counts a name that comes twice as two properties.
    (an_object(additionalProperties=INT, minProperties=2), ".minProperties", "unsupported_value"),
    (
        an_object(patternProperties={"^a": INT}, minProperties=2),
        ".minProperties",
        "unsupported_value",
    ),
    (
        an_object(properties={"a": INT, "b": INT}, additionalProperties=True, minProperties=2),
        ".minProperties",
        "unsupported_value",
    ),
    # Of these names it does not exclude every spelling from those of other properties.
    *(
        (an_object(properties={name: INT}, **{keyword: TEXT}), f".{keyword}", "unsupported_value")
        for name in ("é", 'a"b', "a\\b", "a\n")
        for keyword in ("additionalProperties", "unevaluatedProperties")
    ),
    (an_object(additionalProperties=None), ".additionalProperties", "invalid_type"),
    (an_object(additionalProperties=0), ".additionalProperties", "invalid_type"),
    (an_object(unevaluatedProperties=None), ".unevaluatedProperties", "invalid_type"),
    (
        an_object(
            properties={"a": INT},
            additionalProperties=False,
            unevaluatedProperties=INT,
            minProperties=2,
        ),
        ".minProperties",
        "invalid_value",
    ),
    # It allows any names then.
    (
        an_object(propertyNames={"enum": ["a"]}, additionalProperties=False),
        ".additionalProperties",
        "unsupported_value",
    ),
    # Arrays. Without `items` the engine makes `[]`.
    ({"type": "array"}, ".items", "invalid_value"),
    ({"type": "array", "items": [INT]}, ".items", "invalid_type"),
    ({"type": "array", "items": False, "minItems": 1}, ".minItems", "invalid_value"),
    ({"type": "array", "items": INT, "minItems": 3, "maxItems": 2}, ".maxItems", "invalid_value"),
    ({"type": "array", "prefixItems": []}, ".prefixItems", "invalid_type"),
    ({"type": "array", "prefixItems": [True]}, ".prefixItems", "unsupported_value"),
    # The engine's own check looks at them beside any type.
    ({"type": "string", "items": INT}, ".items", "unsupported_value"),
    ({"type": "array", "items": INT, "properties": {}}, ".properties", "unsupported_value"),
    (
        {"type": "array", "prefixItems": [INT, INT], "items": INT, "maxItems": 1},
        ".maxItems",
        "unsupported_value",
    ),
    # References.
    ({"$ref": 5}, ".$ref", "invalid_type"),
    ({"$ref": "http://x/y"}, ".$ref", "unsupported_value"),
    ({"$ref": "#name"}, ".$ref", "unsupported_value"),
    ({"$ref": "#/$defs/a"}, ".$ref", "invalid_value"),
    ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": INT}}, ".$ref", "unsupported_value"),
    ({"$ref": "#/anyOf/0", "$defs": {}}, ".$ref", "invalid_value"),
    ({"$ref": "#/$defs//a", "$defs": {"": {"a": INT}, "a": TEXT}}, ".$ref", "unsupported_value"),
    # No text of these ends.
    (an_object(properties={"a": {"$ref": "#"}}, required=["a"]), "", "invalid_value"),
    ({"type": "array", "prefixItems": [{"$ref": "#"}]}, "", "invalid_value"),
    ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, "", "invalid_value"),
    (
        an_object(
            properties={"b": INT, "a": {"$ref": "#/$defs/c"}},
            **{"$defs": {"c": an_object(properties={"a": {"$ref": "#/$defs/c"}}, minProperties=1)}},
        ),
        ".$defs.c",
        "invalid_value",
    ),
    ({"$ref": "#"}, "", "invalid_value"),
    (
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        None,
        "invalid_value",
    ),
    ({"anyOf": [{"$ref": "#"}, INT]}, None, "invalid_value"),
    (
        {"$ref": "#/x-other/a", "x-other": {"a": {"type": "int"}}},
        ".x-other.a.type",
        "invalid_value",
    ),
    (
        an_object(properties={"a": {"$id": "b", "type": "null"}}),
        ".properties.a.$id",
        "unsupported_value",
    ),
    (
        {"type": "integer", "$defs": {"a": {"type": "integer", "multipleOf": 2}}},
        ".$defs.a.multipleOf",
        "unsupported_value",
    ),
    # The engine's own check looks into data.
    ({"type": "object", "default": {"allOf": [1, 2]}}, ".default", "unsupported_value"),
    ({"const": {"type": "string", "format": "x"}}, ".const", "unsupported_value"),
]


@cases.each("schema", ACCEPTED)
def test_a_schema_that_the_engine_enforces_is_accepted(schema: dict[str, Any]) -> None:
    schemas.check(schema, "s")
    if "$ref" not in str(schema):  # references start at the root
        schemas.check(an_object(properties={"inner": schema}), "s")


@cases.each(("schema", "path", "code"), REFUSED)
def test_what_is_not_enforced_is_named(schema: Any, path: str | None, code: str) -> None:
    with pytest.raises(errors.ApiError) as error:
        schemas.check(schema, "s")
    assert error.value.code == code
    if path is not None:
        assert error.value.param == "s" + path


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "null"}
    for _ in range(depth - 1):
        schema = {"items": schema}
    return schema


class TestBounds:
    def test_of_depth(self) -> None:
        schemas.check(nested(schemas.MAX_SCHEMA_DEPTH), "s")
        with pytest.raises(errors.ApiError) as error:
            schemas.check_bounds(nested(schemas.MAX_SCHEMA_DEPTH + 1), "s")
        assert error.value.param == "s"

    def test_of_size(self) -> None:
        fits = {"description": "x" * (schemas.MAX_SCHEMA_BYTES - 18)}
        schemas.check(fits, "s")
        with pytest.raises(errors.ApiError) as error:
            schemas.check_bounds({"description": fits["description"] + "x"}, "s")
        assert error.value.param == "s"

    def test_a_long_chain_of_references_needs_no_stack(self) -> None:
        defs: dict[str, Any] = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(1500)}
        schemas.check({"$ref": "#/$defs/d0", "$defs": {**defs, "d1500": INT}}, "s")


def test_a_name_in_a_path_is_printable_and_bounded() -> None:
    assert schema_errors.member("s", "ok-name") == "s.ok-name"
    assert schema_errors.member("s", "a'\n\\b") == "s['a???b']"
    assert len(schema_errors.member("s", "é" * 1000)) < 80


KEYWORDS = st.sampled_from(
    [
        *("type", "properties", "items", "$ref", "enum", "const", "anyOf", "oneOf", "allOf"),
        *("required", "additionalProperties", "patternProperties", "propertyNames", "prefixItems"),
        *("minLength", "pattern", "format", "minimum", "exclusiveMaximum", "maxItems", "$defs"),
        *("minProperties", "multipleOf", "not", "title", "$id", "nullable", "default"),
    ]
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(
        ["string", "object", "integer", "array", "#", "#/$defs/a", "^a$", "a", "date"]
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(KEYWORDS | st.sampled_from(["a", "b"]), inner, max_size=4)
    ),
    max_leaves=14,
)


@hypothesis.given(st.dictionaries(KEYWORDS, VALUES, max_size=5))
def test_any_json_is_a_schema_or_a_refusal_that_names_a_path_in_it(schema: dict[str, Any]) -> None:
    try:
        schemas.check(schema, "s")
    except errors.ApiError as error:
        refusal = error
    else:
        return
    assert refusal.status == 400
    assert (refusal.param or "").startswith("s")


MANY = {"enum": list(range(2500))}
CHAIN: dict[str, Any] = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(900)}
CHAIN["d900"] = INT


@pytest.mark.parametrize(
    "schema",
    [
        {"oneOf": [{"$ref": "#/$defs/a"}] * 1800, "$defs": {"a": MANY}},
        {"oneOf": [{"$ref": "#/$defs/d0"} for _ in range(900)], "$defs": CHAIN},
    ],
)
def test_each_reference_and_value_is_looked_at_once(schema: dict[str, Any]) -> None:
    steps = 0

    def step(*_: Any) -> None:
        nonlocal steps
        steps += 1

    before = sys.getprofile()
    sys.setprofile(step)  # at each call of a function and each return: no load changes the number
    try:
        with pytest.raises(errors.ApiError):
            schemas.check(schema, "s")
    finally:
        sys.setprofile(before)
    assert steps < 1_000_000, "90,000 and 300,000; with each looked at again it is 20,000,000"


class TestBoundedTexts:
    """The engine takes 10 ms of CPU for each character of a bound (xgrammar 0.2.8)."""

    def test_of_one_schema_have_a_bound_together(self) -> None:
        most = {f"p{i}": {"type": "string", "maxLength": 256} for i in range(4)}
        schemas.check(an_object(properties=most), "s")
        for more in ({"maxLength": 1}, {"minLength": 1}):
            with pytest.raises(errors.ApiError) as error:
                schemas.check(an_object(properties={**most, "q": {**TEXT, **more}}), "s")
            assert error.value.code == "unsupported_value"
            assert error.value.param is not None
            assert error.value.param.endswith("Length")

    def test_a_long_one_counts_as_one_that_is_repeated(self) -> None:
        long = {f"p{i}": {"type": "string", "maxLength": 100_000} for i in range(4)}
        schemas.check(an_object(properties=long), "s")

    def test_one_that_all_refer_to_counts_once(self) -> None:
        there = {"$defs": {"t": {"type": "string", "maxLength": 256}}}
        refer = {f"p{i}": {"$ref": "#/$defs/t"} for i in range(40)}
        schemas.check(an_object(properties=refer, **there), "s")

    def test_of_several_schemas_share_one_budget(self) -> None:
        budget = schemas.Budget()
        half = {"type": "string", "maxLength": 200}
        for _ in range(5):
            schemas.check(half, "s", budget)
        with pytest.raises(errors.ApiError):
            schemas.check(half, "s", budget)
        schemas.check(TEXT, "s", budget)
