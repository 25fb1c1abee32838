"""JSON schemas as hypothesis strategies: every keyword that the gateway knows, in combinations that
it mostly accepts."""

from __future__ import annotations

from typing import Any, Final

from hypothesis import strategies as st

Schema = dict[str, Any]

# Python's regular expressions mean the same by them.
PATTERNS: Final = (
    *("^a+$", "[a-z]{2,5}", r"\d+", "^(x|y)?z$", "(?:ab)+", '^[^"]*$', "é", r"\w+@\w+", "."),
    *(r"[\s\S]", "^a|b$", "a{0}", "(|a)", "[!-~]", r"^\S.\W$", r"\/", r"[\]\-]", "a{2,}?", "^$"),
    *(
        "é.",
        "^é[^a]$",
        "[^ü]",
        "[é-ü]+",
        "日.",
        "[a\t]",
        r"[\n-\r]",
        r"[\n-a]",
        r"[^\s\S]",
        "[^\n]",
    ),
)
FORMATS: Final = (
    *("email", "date", "time", "date-time", "duration", "ipv4", "ipv6", "hostname", "uuid", "uri"),
    *("uri-reference", "uri-template", "json-pointer", "relative-json-pointer"),
)
# Some are annotations where they stand as keywords; here they are names.
NAMES: Final = ("a", "ab", "b", "title", "description", "default", "é", 'q"', "/", "\\", "", "日x")
NUMBERS: Final = (
    *(
        0,
        1,
        -1,
        2,
        -3,
        10,
        99,
        100,
        2**53,
        2**53 + 1,
        2**63 - 1,
        2**63,
        -(2**63),
        2**64 - 1,
        10**20,
    ),
    *(0.5, 0.1, -0.1, 2.5, 1e-6, 1e-7, 1.5e-6, 0.1234567, 0.123457, 1.0, 5.0, 1e15, -1e15),
)
VALUES: Final[tuple[Any, ...]] = (
    *(
        "a",
        "b",
        "",
        'q"\\\n\t\0\x7f',
        "é日😀\u2028",
        "</s>",
        None,
        True,
        False,
        0,
        -1,
        2.5,
        1.0,
        1e-9,
    ),
    *(2**53 + 1, 2**63 - 1, 2**64 - 1, -(2**63), 10**19, 1e20, -0.0, [], {}, [1, [None]]),
    *({"x": [1]}, {"title": "a"}, {"title": "b"}, {"a": {"default": 1}}, [2**70], {"é": "\x1f"}),
)


def either(*values: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(values)


def some(**members: st.SearchStrategy[Any]) -> st.SearchStrategy[Schema]:
    """Each member or not."""
    return st.fixed_dictionaries({}, optional=members)


def merged(*parts: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    return st.tuples(*parts).map(lambda each: {k: v for part in each for k, v in part.items()})


def typed(name: Any, *parts: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    return merged(st.just({"type": name}), *parts)


COUNTS: Final = st.integers(0, 4)
TEXT: Final[st.SearchStrategy[Schema]] = (
    st.just({})
    | some(minLength=COUNTS, maxLength=COUNTS)
    | st.fixed_dictionaries({"pattern": either(*PATTERNS)})
    | st.fixed_dictionaries({"format": either(*FORMATS)})
)
NUMBER: Final = some(minimum=either(*NUMBERS), maximum=either(*NUMBERS)) | some(
    **dict.fromkeys(
        ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), either(*NUMBERS)
    )
)
CONSTANT: Final = st.fixed_dictionaries({"const": either(*VALUES)}) | st.fixed_dictionaries(
    {"enum": st.lists(either(*VALUES), min_size=1, max_size=4)}
)
SCALAR: Final = (
    typed("string", TEXT)
    | typed("integer", NUMBER)
    | typed("number", NUMBER)
    | CONSTANT
    | either({"type": "boolean"}, {"type": "null"}, {}, {"type": "string"}, {"type": "integer"})
)


@st.composite
def _objects(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> Schema:
    """Declared and other properties."""
    names = draw(st.lists(either(*NAMES), max_size=4, unique=True))
    open_names: st.SearchStrategy[Any] = either(True, False) | inner
    schema = draw(
        some(
            additionalProperties=open_names,
            unevaluatedProperties=open_names,
            minProperties=COUNTS,
            maxProperties=COUNTS,
        )
    )
    if names or draw(either(True, False)):
        schema["properties"] = {name: draw(inner) for name in names}
        schema["required"] = draw(st.lists(either(*names), unique=True)) if names else []
    elif draw(either(True, False)):
        schema["patternProperties"] = {draw(either(*PATTERNS)): draw(inner)}
    elif draw(either(True, False)):
        schema["propertyNames"] = draw(
            TEXT | st.fixed_dictionaries({"enum": st.lists(either(*NAMES), min_size=1)})
        )
    return {"type": "object", **schema}


def _arrays(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Schema]:
    counts = some(minItems=COUNTS, maxItems=COUNTS)
    first = st.lists(inner, min_size=1, max_size=2)
    return typed(
        "array",
        counts,
        st.fixed_dictionaries({"items": inner | st.booleans()})
        | st.fixed_dictionaries({"prefixItems": first}, optional={"items": inner | st.booleans()}),
    )


def _several(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Schema]:
    """Several types with the keywords of each."""
    types = st.lists(
        either("string", "integer", "number", "object", "array", "null", "boolean"),
        min_size=1,
        max_size=4,
        unique=True,
    )

    def of(names: list[str]) -> st.SearchStrategy[Schema]:
        parts = {
            "string": TEXT,
            "integer": NUMBER,
            "number": NUMBER,
            "object": _objects(inner),
            "array": _arrays(inner),
        }
        return merged(*(parts[n] for n in names if n in parts), st.just({"type": names}))

    return types.flatmap(of)


def _choices(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Schema]:
    return (
        st.fixed_dictionaries({"anyOf": st.lists(inner, min_size=1, max_size=3)})
        | st.fixed_dictionaries({"oneOf": st.lists(inner, min_size=1, max_size=3)})
        | st.fixed_dictionaries({"allOf": st.lists(inner, min_size=1, max_size=1)})
    )


REFERENCE: Final = st.fixed_dictionaries({"$ref": either("#", "#/$defs/a", "#/$defs/title")})
_INNER: Final[st.SearchStrategy[Any]] = st.recursive(
    SCALAR | REFERENCE | st.just(True),
    lambda inner: _objects(inner) | _arrays(inner) | _several(inner) | _choices(inner),
    max_leaves=5,
)


def schemas() -> st.SearchStrategy[Schema]:
    """Whole schemas, with the definitions that they refer to."""
    definitions = st.fixed_dictionaries({"a": _INNER, "title": _INNER})
    return merged(
        _INNER.filter(lambda schema: isinstance(schema, dict)),
        definitions.map(lambda named: {"$defs": named}),
        some(title=st.just("t"), description=st.just("d")),
    )
