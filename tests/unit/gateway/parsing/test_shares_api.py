"""What a link is asked for with."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.parsing import shares_api
from tailrace.protocol import errors
from tests.support import cases


@cases.each(
    ("body", "seconds"),
    [
        ({}, 30 * 86_400),
        ({"expires_in": None}, 30 * 86_400),
        ({"expires_in": 60}, 60),
        ({"expires_in": 60.0}, 60),
        ({"expires_in": 365 * 86_400}, 365 * 86_400),
    ],
)
def test_a_link_holds_as_long_as_is_said(body: dict[str, Any], seconds: int) -> None:
    assert shares_api.seconds(body) == seconds


@cases.each(
    ("body", "code", "param"),
    [
        ({"expires_in": 59}, "invalid_value", "expires_in"),
        ({"expires_in": 365 * 86_400 + 1}, "invalid_value", "expires_in"),
        ({"expires_in": 60.5}, "invalid_type", "expires_in"),
        ({"expires_in": True}, "invalid_type", "expires_in"),
        ({"expires_in": "60"}, "invalid_type", "expires_in"),
        ({"head": "resp_1"}, "unsupported_parameter", "head"),
    ],
)
def test_what_is_wrong_is_named(body: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(errors.ApiError) as error:
        shares_api.seconds(body)
    assert (error.value.status, error.value.code, error.value.param) == (400, code, param)


def test_a_place_is_what_an_answer_said() -> None:
    assert [shares_api.start(each) for each in (None, "0", "50", "000050")] == [0, 0, 50, 50]
    for wrong in ("", "-1", "1.0", "x", "١", "1" * 7, "1" * 5000):
        with pytest.raises(errors.ApiError):
            shares_api.start(wrong)
