"""The commands of a watch socket: which texts are commands, and what is said about the others."""

from __future__ import annotations

import json

import pytest

from tailrace.web import watch_commands
from tailrace.web.watch_commands import Invalid, Unwatch, Watch
from tests.support import cases


def command(**fields: object) -> watch_commands.Command | Invalid:
    return watch_commands.parse(json.dumps(fields))


def test_a_watch_without_a_position_begins_before_the_first_event() -> None:
    assert command(type="watch", response_id="r") == Watch("r", -1)


@cases.each("after", [-1, 0, 7, 2**53])
def test_a_watch_goes_on_after_a_position(after: int) -> None:
    assert command(type="watch", response_id="r", starting_after=after) == Watch("r", after)


def test_an_unwatch_needs_no_position_and_looks_at_none() -> None:
    assert command(type="unwatch", response_id="r", starting_after="x") == Unwatch("r")


@cases.each("after", [-2, 1.0, True, "1", None, [], {}])
def test_a_position_that_is_no_position_is_refused_for_its_response(after: object) -> None:
    found = command(type="watch", response_id="r", starting_after=after)
    assert isinstance(found, Invalid)
    assert (found.rid, found.error.param) == ("r", "starting_after")
    assert found.error.code == "invalid_value"


@cases.each("rid", [None, 1, [], {}])
@cases.each("kind", ["watch", "unwatch"])
def test_a_command_without_a_response_is_refused(kind: str, rid: object) -> None:
    found = command(type=kind, response_id=rid)
    assert isinstance(found, Invalid)
    assert (found.rid, found.error.param) == (None, "response_id")


@cases.each("text", ["[]", "1", '"watch"', "null", "{}", '{"type":"x"}'])
def test_json_that_is_no_command_is_refused(text: str) -> None:
    found = watch_commands.parse(text)
    assert isinstance(found, Invalid)
    assert (found.rid, found.error.param) == (None, "type")


@cases.each("text", ["", "{", "watch", "[" * 100_000, "\ud800"])
def test_text_that_is_no_json_is_refused(text: str) -> None:
    found = watch_commands.parse(text)
    assert isinstance(found, Invalid)
    assert found.error.code == "invalid_json"


def test_a_binary_message_is_refused() -> None:
    found = watch_commands.parse(None)
    assert isinstance(found, Invalid)
    assert "text frames" in str(found.error)


@pytest.mark.parametrize("kind", ["watch", "unwatch"])
def test_an_id_that_no_response_can_have_is_neither_kept_nor_repeated(kind: str) -> None:
    found = command(type=kind, response_id="r" * 10_000)
    assert isinstance(found, Invalid)
    assert found.rid is not None
    assert len(found.rid) == watch_commands.MAX_RID_CHARS
    assert found.error.status == 404
