"""The file of a row in a vector store: its text, name and attributes (pure)."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from pipelines import stores
from pipelines.templates import Expression, Template, Unusable

MAX_VALUE: Final = 512  # characters of an attribute
_MAX_INTEGER: Final = 2**53  # what a float holds exactly

Value = str | int | float | bool


class Document(NamedTuple):
    """A file. `digest`: of its name and its text."""

    filename: str
    text: bytes
    attributes: dict[str, Value]

    @property
    def digest(self) -> str:
        content = len(self.filename).to_bytes(8, "big") + self.filename.encode() + self.text
        return hashlib.blake2b(content, digest_size=12).hexdigest()


class Documents:
    """Makes the documents of one pipeline."""

    def __init__(self, embed: stores.Embed) -> None:
        """Raises definition.Invalid: a template or an expression has an error."""
        self._text = Template(embed.text, "embed.text")
        self._filename = Template(embed.filename, "embed.filename") if embed.filename else None
        self._attributes = {
            name: Expression(text, f"embed.attributes.{name}")
            for name, text in embed.attributes.items()
        }

    def document(self, values: Mapping[str, Any]) -> Document:
        """The document of a row with these values (`rows.Row.values`).

        Raises:
            Unusable: a template fails, or an attribute has an invalid value.
        """
        topic, partition, offset = values["topic"], values["partition"], values["offset"]
        filename = f"{topic}-{partition}-{offset}.txt"
        if self._filename is not None:
            filename = self._filename.text(values).strip() or filename
            _encode(filename, "embed.filename")
        attributes: dict[str, Value] = {stores.SOURCE: f"{topic}/{partition}/{offset}"}
        for name, expression in self._attributes.items():
            value = expression.value(values)
            if value is not None:
                attributes[name] = _check_value(value, f"embed.attributes.{name}")
        text = _encode(self._text.text(values), "embed.text")
        return Document(filename, text, attributes)


def _encode(text: str, where: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise Unusable(f"{where}: no text: {error.reason}") from error


def _check_value(value: Any, where: str) -> Value:
    if isinstance(value, str):
        if len(value) > MAX_VALUE:
            raise Unusable(f"{where}: more than {MAX_VALUE} characters")
        _encode(value, where)
        return str(value)
    if isinstance(value, bool):
        return value
    if isinstance(value, int | float) and math.isfinite(value) and abs(value) <= _MAX_INTEGER:
        return value
    raise Unusable(f"{where}: neither a text, nor a number, nor true or false")
