"""What is a JSON object, and what a client is told about anything else."""

from __future__ import annotations

import pytest

from gateway.parsing import json_body
from tailrace.protocol import errors
from tests.support import cases


class TestDecode:
    @cases.each(
        "data",
        [
            b"",
            b"{",
            b"nul",
            b'{"a":NaN}',
            b'{"a":1e999}',
            b'{"a":"\\ud800"}',
            b'{"a":"\xff"}',
            '{"a":"\ud800"}',
            b"[" * 100_000,
            b'{"a":' * 50_000,
            b"\xef\xbb\xbf{}",
        ],
        ids=[
            "empty",
            "open",
            "word",
            "nan",
            "infinite",
            "surrogate-escape",
            "bad-utf8",
            "surrogate",
            "deep-list",
            "deep-object",
            "bom",
        ],
    )
    def test_what_is_not_json_is_said_to_be_so(self, data: bytes | str) -> None:
        with pytest.raises(errors.ApiError) as error:
            json_body.decode(data)
        assert error.value.code == "invalid_json"

    @cases.each("data", ["[]", "5", '"x"', "null", "true"])
    def test_what_is_no_object_is_refused(self, data: str) -> None:
        with pytest.raises(errors.ApiError):
            json_body.decode(data)
