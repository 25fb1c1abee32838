"""A form with one file, as `multipart/form-data` (pure)."""

from __future__ import annotations

import re
import urllib.parse
from dataclasses import dataclass, field
from typing import Final

import python_multipart
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from tailrace.protocol import errors

MAX_PARTS: Final = 16
MAX_FIELD_BYTES: Final = 4_096
MAX_BOUNDARY_BYTES: Final = 256
_STEP: Final = 65_536
_ENCODED_NAME: Final = re.compile(rb";\s*filename\*=utf-8'[^']*'([^;\s]*)", re.IGNORECASE)


@dataclass(slots=True)
class Form:
    """A parsed form. `filename` and `data`: those of its file; None without a file."""

    fields: dict[str, str] = field(default_factory=dict)
    filename: str | None = None
    data: bytearray | None = None


class _FormError(Exception):
    """The form is refused; the text gives the reason."""


@dataclass(slots=True)
class _Reader:
    """Builds a form from the parser's callbacks.

    Attributes:
        _name, _value: those of the present header.
        _headers: those of the present part.
        _part: name of the present part; None without a name.
        _field: value of the present part; None if it is the file.
    """

    name: str
    form: Form = field(default_factory=Form)
    _name: bytearray = field(default_factory=bytearray)
    _value: bytearray = field(default_factory=bytearray)
    _headers: dict[bytes, bytes] = field(default_factory=dict)
    _part: str | None = None
    _field: bytearray | None = None
    _parts: int = 0
    ended: bool = False

    def callbacks(self) -> python_multipart.multipart.MultipartCallbacks:
        return {
            "on_part_begin": self._begin,
            "on_header_field": lambda data, start, end: self._name.extend(data[start:end]),
            "on_header_value": lambda data, start, end: self._value.extend(data[start:end]),
            "on_header_end": self._header,
            "on_headers_finished": self._on_headers,
            "on_part_data": self._data,
            "on_part_end": self._end,
            "on_end": self._ended,
        }

    def _begin(self) -> None:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise _FormError(f"it has more than {MAX_PARTS} parts")
        self._headers = {}
        self._name.clear()
        self._value.clear()

    def _header(self) -> None:
        self._headers[bytes(self._name).lower()] = bytes(self._value)
        self._name.clear()
        self._value.clear()

    def _on_headers(self) -> None:
        disposition = self._headers.get(b"content-disposition", b"")
        kind, options = parse_options_header(disposition)
        if kind != b"form-data" or b"name" not in options:
            raise _FormError("a part of it has no name")
        self._part = options[b"name"].decode(errors="replace")
        self._field = bytearray()
        if self._part == self.name:
            if self.form.data is not None:
                raise _FormError(f"it has more than one '{self.name}'")
            filename = options.get(b"filename")
            if filename is None:
                filename = _encoded_name(disposition)
            # openai-java 4.101 sends bytes that have no name as a part with a type.
            if filename is None and b"content-type" not in self._headers:
                raise _FormError(f"'{self.name}' is not a file")
            self.form.filename = (filename or b"").decode(errors="replace")
            self.form.data = bytearray()
            self._field = None

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._field is None:
            assert self.form.data is not None
            self.form.data += memoryview(data)[start:end]
            return
        if len(self._field) + end - start > MAX_FIELD_BYTES:
            raise _FormError(f"'{self._part}' has more than {MAX_FIELD_BYTES} bytes")
        self._field += data[start:end]

    def _end(self) -> None:
        if self._field is not None and self._part is not None:
            self.form.fields[self._part] = self._field.decode(errors="replace")

    def _ended(self) -> None:
        self.ended = True


def _encoded_name(disposition: bytes) -> bytes | None:
    """The name in `filename*`; None without one. RFC 7578 forbids it in forms and the parser leaves
    it out, but for names beyond ASCII urllib3 before 1.25, which Python's requests may use, sends
    nothing else."""
    found = _ENCODED_NAME.search(disposition)
    return None if found is None else urllib.parse.unquote_to_bytes(found[1])


def parse(content_type: str, body: bytearray, name: str) -> Form:
    """The form of a body. Its file is the part called `name`.

    Raises:
        errors.ApiError: 400, it is not a form, is incomplete, or exceeds a limit.
    """
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary", b"")
    if kind != b"multipart/form-data" or not 0 < len(boundary) <= MAX_BOUNDARY_BYTES:
        raise errors.invalid_request(
            "The body must be a form: 'multipart/form-data' with its boundary."
        )
    reader = _Reader(name)
    parser = MultipartParser(boundary, reader.callbacks())
    try:
        for at in range(0, len(body), _STEP):
            parser.write(bytes(body[at : at + _STEP]))
        parser.finalize()
    except (FormParserError, UnicodeError) as error:
        raise errors.invalid_request(f"The form is not valid: {error}.") from error
    except _FormError as error:
        raise errors.invalid_request(f"The form is not accepted: {error}.") from error
    if not reader.ended:
        raise errors.invalid_request("The form is incomplete: its end is missing.")
    return reader.form
