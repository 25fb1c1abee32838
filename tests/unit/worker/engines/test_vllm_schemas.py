"""Schemas for xgrammar. What it makes of them: tests/contract/test_schemas.py."""

from __future__ import annotations

import datetime
import re
from typing import Any

from tests.support import cases
from worker.engines import vllm_schemas

TEXT: dict[str, Any] = {"type": "string"}
INT: dict[str, Any] = {"type": "integer"}

VALID = [
    ("email", ["a@b", "a.b+c@d-e.org"]),
    ("date", ["2024-02-29", "2000-02-29", "2023-04-30", "2023-12-31"]),
    ("date-time", ["2023-01-31T23:59:60.5Z", "2023-01-01T00:00:00-05:30"]),
    ("ipv4", ["0.0.0.0", "255.249.199.99"]),
    ("json-pointer", ["", "/", "/a~0b~1/é", "//0"]),
    ("relative-json-pointer", ["0", "12#", "1/a"]),
]
INVALID = [
    ("email", ['"a"@b', "a@", "@b", "a..b@c", "a@b-"]),
    ("date", ["2023-02-29", "1900-02-29", "2023-04-31", "2023-13-01", "2023-00-10"]),
    ("date-time", ["2023-02-30T00:00:00Z", "2023-01-01T24:00:00Z", "2023-01-01T00:00:00"]),
    ("ipv4", ["256.0.0.1", "01.1.1.1", "1.1.1"]),
    ("json-pointer", ["a", "/~2", "/~"]),
    ("relative-json-pointer", ["01", "#", "/a"]),
]


def pattern(form: str) -> str:
    restated = vllm_schemas.restate({"type": "string", "format": form})
    assert "format" not in restated
    return str(restated["pattern"])


@cases.each(("form", "texts"), VALID)
def test_a_format_is_a_pattern_of_valid_texts(form: str, texts: list[str]) -> None:
    assert [text for text in texts if not re.search(pattern(form), text, re.ASCII)] == []


@cases.each(("form", "texts"), INVALID)
def test_a_format_is_a_pattern_without_other_texts(form: str, texts: list[str]) -> None:
    assert [text for text in texts if re.search(pattern(form), text, re.ASCII)] == []


def test_each_day_of_four_centuries_is_a_date_and_no_other_is() -> None:
    dates = re.compile(pattern("date"))
    for year in (1896, 1900, 1999, 2000, 2023, 2024):
        for month in range(1, 13):
            for day in range(1, 32):
                text = f"{year}-{month:02}-{day:02}"
                try:
                    datetime.date.fromisoformat(text)
                except ValueError:
                    assert not dates.search(text), text
                else:
                    assert dates.search(text), text


def test_a_pattern_is_written_in_ascii() -> None:
    """With other characters in it, its classes included quotes and control characters."""
    restated = vllm_schemas.restate(
        {
            "type": "object",
            "patternProperties": {"^é": {"type": "string", "pattern": "[日-本]😀\t."}},
        }
    )
    assert restated["patternProperties"] == {
        r"^\u{e9}": {"type": "string", "pattern": r"[\u{65e5}-\u{672c}]\u{1f600}\u{9}."}
    }


def test_schemas_that_differ_only_in_names_of_annotations_are_told_apart() -> None:
    """The second of two objects got the grammar of the first when their properties were called
    `title` or `description`: xgrammar's cache skips these names also where they are properties."""

    def unseen(value: Any) -> Any:
        """What xgrammar compares."""
        if isinstance(value, list):
            return [unseen(each) for each in value]
        if not isinstance(value, dict):
            return value
        return {k: unseen(v) for k, v in value.items() if k not in ("title", "description")}

    def titled(inner: dict[str, Any], name: str = "title") -> dict[str, Any]:
        return {"type": "object", "properties": {name: inner}}

    several = [
        titled(TEXT),
        titled(INT),
        titled(TEXT, "description"),
        {"items": titled(TEXT)},
        {"items": titled(INT)},
        {"const": {"title": 1}},
        {"const": {"title": 2}},
        {"enum": [[{"title": 1}]]},
        {"enum": [[{"title": 2}]]},
        {"type": "object", "patternProperties": {"title": INT}},
        {"type": "object", "patternProperties": {"description": INT}},
    ]
    branches = [unseen(each) for each in vllm_schemas.restate({"anyOf": several})["anyOf"]]
    for i, branch in enumerate(branches):
        assert branch not in branches[:i]


def test_names_without_a_type_are_texts() -> None:
    restated = vllm_schemas.restate({"type": "object", "propertyNames": {}})
    assert restated["propertyNames"] == TEXT


def test_each_place_of_a_schema_is_restated_and_data_is_not() -> None:
    date = {"type": "string", "format": "date"}
    places = {
        "type": ["object", "array"],
        "properties": {"format": date, "properties": date},
        "additionalProperties": date,
        "prefixItems": [date],
        "items": {"anyOf": [date, {"allOf": [date]}, {"oneOf": [True, date]}]},
        "$defs": {"d": date, "r": {"$ref": "#/x-elsewhere/d"}},
        "definitions": {"d": date},
        "x-elsewhere": {"d": date},
    }
    restated = vllm_schemas.restate(places)
    assert "format': 'date'" not in str(restated)
    data: dict[str, Any] = {"const": {"format": "date"}, "default": date, "format": "date"}
    assert vllm_schemas.restate({"enum": [date], "examples": [data]}) == {
        "enum": [date],
        "examples": [data],
    }


def test_a_schema_that_xgrammar_understands_stays_as_it_is() -> None:
    schema = {
        "title": "t",
        "type": "object",
        "properties": {"a": {**TEXT, "title": "A", "pattern": "^a$"}, "b": {"$ref": "#"}},
        "required": ["a"],
    }
    copy = vllm_schemas.restate(schema)
    assert copy == schema
    assert copy is not schema
