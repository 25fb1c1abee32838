"""Pages of a response's input items."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.routes import responses
from tailrace.protocol import errors
from tests.support import cases

ITEMS = [{"id": f"msg_{i}"} for i in range(30)]


def page_ids(*args: Any) -> list[str]:
    return [item["id"] for item in responses.list_page(ITEMS, *args)["data"]]


def test_newest_first_twenty_at_a_time() -> None:
    page = responses.list_page(ITEMS, None, None, None)
    assert [i["id"] for i in page["data"]] == [f"msg_{i}" for i in range(29, 9, -1)]
    assert (page["first_id"], page["last_id"], page["has_more"]) == ("msg_29", "msg_10", True)
    assert page_ids(None, None, "msg_10") == [f"msg_{i}" for i in range(9, -1, -1)]


def test_oldest_first() -> None:
    assert page_ids("2", "asc", None) == ["msg_0", "msg_1"]
    assert page_ids("2", "asc", "msg_28") == ["msg_29"]


def test_an_empty_list() -> None:
    assert responses.list_page([], None, None, None) == {
        "object": "list",
        "data": [],
        "first_id": None,
        "last_id": None,
        "has_more": False,
    }


@cases.each(
    ("args", "param"),
    [
        (("0", None, None), "limit"),
        (("101", None, None), "limit"),
        (("-1", None, None), "limit"),
        (("x", None, None), "limit"),
        (("1" * 99, None, None), "limit"),
        (("٣", None, None), "limit"),
        ((None, "up", None), "order"),
        ((None, None, "msg_99"), "after"),
    ],
)
def test_refused(args: Any, param: str) -> None:
    with pytest.raises(errors.ApiError) as error:
        responses.list_page(ITEMS, *args)
    assert error.value.param == param
