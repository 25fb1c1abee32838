"""A row as a file: its text, its name, its attributes, and what none of them may be."""

from __future__ import annotations

from typing import Any

import pytest

from pipelines import definition, stores
from pipelines.documents import Document, Documents
from pipelines.templates import Unusable
from tests.support import cases

STORE = "vs_" + "a" * 32


def made(record: Any, **changes: Any) -> Document:
    values = {"record": record, "key": "k", "topic": "in", "partition": 2, "offset": 5}
    embed = stores.Embed(**{"store": STORE, "text": "{{ record.text }}", **changes})
    return Documents(embed).document(values)


def test_a_document_says_where_its_record_is() -> None:
    document = made({"text": "größe"})
    assert document == Document("in-2-5.txt", "größe".encode(), {"source": "in/2/5"})


def test_name_and_attributes_are_of_the_record() -> None:
    document = made(
        {"text": "t", "id": 7, "price": 1.5, "new": True, "none": None},
        filename=" {{ record.id }}.md ",
        attributes={
            "id": "record.id",
            "price": "record.price",
            "new": "record.new",
            "none": "record.none",
            "who": "key ~ '!'",
        },
    )
    assert document.filename == "7.md"
    assert document.attributes == {
        "source": "in/2/5",
        "id": 7,
        "price": 1.5,
        "new": True,
        "who": "k!",
    }
    assert made({"text": "t"}, filename="{{ '' }}").filename == "in-2-5.txt"


@cases.each(
    ("record", "changes", "why"),
    [
        ({}, {}, "text"),
        ({"text": "\ud800"}, {}, "embed.text"),
        ({"text": "t", "a": "\ud800"}, {"filename": "{{ record.a }}"}, "embed.filename"),
        ({"text": "t"}, {"attributes": {"a": "record.a"}}, "a"),
        ({"text": "t", "a": []}, {"attributes": {"a": "record.a"}}, "embed.attributes.a"),
        ({"text": "t", "a": "x" * 513}, {"attributes": {"a": "record.a"}}, "512"),
        ({"text": "t", "a": "\ud800"}, {"attributes": {"a": "record.a"}}, "embed.attributes.a"),
        ({"text": "t", "a": 2**53 + 1}, {"attributes": {"a": "record.a"}}, "embed.attributes.a"),
        ({"text": "t", "a": 1e308}, {"attributes": {"a": "record.a * 10"}}, "embed.attributes.a"),
    ],
)
def test_what_no_file_may_be_is_unusable(
    record: dict[str, Any], changes: dict[str, Any], why: str
) -> None:
    with pytest.raises(Unusable, match=why):
        made(record, **changes)


def test_name_and_text_make_the_digest_and_attributes_do_not() -> None:
    one = made({"text": "ab"}, filename="a").digest
    assert one == made({"text": "ab"}, filename="a", attributes={"k": "key"}).digest
    others = {
        made({"text": t}, filename=n).digest for t, n in (("b", "a"), ("b", "aa"), ("a", "b"))
    }
    assert len({one, *others}) == 4


@cases.each(
    "changes",
    [{"text": "{{ record }"}, {"filename": "{% include 'x' %}"}, {"attributes": {"a": "record.("}}],
)
def test_an_error_in_a_template_is_told_when_the_file_is_read(changes: dict[str, Any]) -> None:
    with pytest.raises(definition.Invalid, match="embed"):
        made({"text": "t"}, **changes)
