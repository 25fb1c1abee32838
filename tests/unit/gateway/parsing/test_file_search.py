"""The tool `file_search` in a body: what it asks for, and when."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.parsing import command, responses_api
from tailrace.protocol import errors, records
from tests.support import cases
from tests.unit.gateway.parsing.parsers import POOLS, code_and_param, responses

TOOL: dict[str, Any] = {"type": "file_search", "vector_store_ids": ["vs_1"]}
CHOICE = {"type": "file_search"}
FUNCTION = {"type": "function", "name": "f"}
F_CHOICE = {"type": "function", "name": "f"}
AUTO, NONE = records.ToolChoice("auto"), records.ToolChoice("none")
OF_F = records.ToolChoice("required", ("f",))


def searching(body: dict[str, Any], **more: Any) -> command.Create:
    return responses_api.parse({"input": "hi", **body}, POOLS, searches=True, **more)


def refused(tool: dict[str, Any], **more: Any) -> errors.ApiError:
    with pytest.raises(errors.ApiError) as error:
        searching({"tools": [FUNCTION, {**TOOL, **tool}], **more})
    assert error.value.status == 400
    return error.value


def allowed(mode: str, *tools: dict[str, Any]) -> dict[str, Any]:
    return {"type": "allowed_tools", "mode": mode, "tools": list(tools)}


def test_all_that_it_may_ask_for() -> None:
    tool = {
        **TOOL,
        "vector_store_ids": ["vs_1", "vs_2", "vs_1"],
        "max_num_results": 7,
        "filters": {"type": "eq", "key": "topic", "value": "tax"},
        "ranking_options": {"ranker": "auto", "score_threshold": 0.25},
    }
    create = searching({"tools": [tool], "include": ["file_search_call.results"]})
    asked = create.search
    assert asked is not None
    assert (asked.stores, asked.results, asked.context) == (("vs_1", "vs_2"), True, 8192)
    search = asked.for_question("why?")
    assert (search.queries, search.limit, search.least) == (("why?",), 7, 0.25)
    assert search.filter is not None
    assert (search.filter({"topic": "tax"}), search.filter({})) == (True, False)
    assert create.tools.echo == (tool,)
    assert (create.tools.prompt, create.tools.hosted, create.headers) == ((), (), {})


def test_nothing_more_is_needed_and_null_is_nothing() -> None:
    tool = {**TOOL, "filters": None, "ranking_options": None, "max_num_results": None}
    for each in (TOOL, tool):
        search = searching({"tools": [each]}, websocket=True).search
        assert search is not None
        assert (search.search.limit, search.search.least, search.search.filter) == (10, 0.0, None)
        assert not search.results


@cases.each(
    ("tool", "param", "code"),
    [
        ({"vector_store_ids": None}, "vector_store_ids", "missing_required_parameter"),
        ({"vector_store_ids": "vs_1"}, "vector_store_ids", "invalid_type"),
        ({"vector_store_ids": [1]}, "vector_store_ids", "invalid_type"),
        ({"vector_store_ids": []}, "vector_store_ids", "invalid_value"),
        ({"vector_store_ids": [f"vs_{n}" for n in range(9)]}, "vector_store_ids", "invalid_value"),
        ({"max_num_results": 0}, "max_num_results", "integer_below_min_value"),
        ({"max_num_results": 51}, "max_num_results", "integer_above_max_value"),
        ({"max_num_results": True}, "max_num_results", None),
        ({"filters": {"type": "like"}}, "filters.type", "unsupported_value"),
        ({"filters": 1}, "filters", "invalid_type"),
        ({"ranking_options": {"score_threshold": 2}}, "ranking_options.score_threshold", None),
        ({"ranking_options": {"ranker": "best"}}, "ranking_options.ranker", "unsupported_value"),
        ({"other": 1}, "other", "unsupported_parameter"),
    ],
)
def test_what_is_wrong_is_named(tool: dict[str, Any], param: str, code: str | None) -> None:
    error = refused(tool)
    assert error.param == f"tools[1].{param}"
    assert code is None or error.code in (code, "invalid_value")


def test_two_of_them_are_one_too_many() -> None:
    assert code_and_param(refused({}, tools=[TOOL, TOOL]))[0] == "tools[1]"


@cases.each(
    ("choice", "tools", "searches", "model"),
    [
        (None, [TOOL], True, AUTO),
        ("auto", [TOOL, FUNCTION], True, AUTO),
        ("none", [TOOL], False, NONE),
        ("required", [TOOL], True, AUTO),
        ("required", [TOOL, FUNCTION], True, AUTO),
        (CHOICE, [TOOL, FUNCTION], True, AUTO),
        (F_CHOICE, [TOOL, FUNCTION], False, OF_F),
        (allowed("auto", CHOICE), [TOOL, FUNCTION], True, NONE),
        (allowed("required", CHOICE), [TOOL, FUNCTION], True, NONE),
        (
            allowed("required", CHOICE, F_CHOICE),
            [TOOL, FUNCTION],
            True,
            records.ToolChoice("auto", ("f",)),
        ),
        (allowed("required", F_CHOICE), [TOOL, FUNCTION], False, OF_F),
        (allowed("auto", {"type": "web_search"}), [TOOL], False, NONE),
    ],
)
def test_a_choice_says_whether_it_is_searched(
    choice: Any, tools: list[dict[str, Any]], searches: bool, model: records.ToolChoice
) -> None:
    create = searching({"tools": tools, "tool_choice": choice})
    assert (create.search is not None, create.tools.choice) == (searches, model)
    assert create.tools.choice_echo == ("auto" if choice is None else choice)


@pytest.mark.parametrize("choice", [CHOICE, allowed("required", CHOICE)], ids=str)
def test_it_is_not_chosen_where_it_is_not_offered(choice: dict[str, Any]) -> None:
    with pytest.raises(errors.ApiError) as error:
        searching({"tools": [FUNCTION], "tool_choice": choice})
    assert error.value.status == 400


def test_what_generates_nothing_searches_nothing() -> None:
    warm = searching({"tools": [TOOL], "generate": False}, websocket=True)
    count_request = responses_api.parse_count(
        {"input": "hi", "tools": [TOOL]}, POOLS, searches=True
    )
    assert (warm.search, count_request.search) == (None, None)
    assert count_request.headers == {}


def test_without_vector_stores_it_is_left_out_whatever_is_in_it() -> None:
    create = responses({"tools": [{"type": "file_search", "other": 1}]})
    assert (create.search, create.tools.hosted) == (None, ("file_search",))
    with pytest.raises(errors.ApiError):
        responses({"tools": [TOOL], "tool_choice": CHOICE})


def test_a_call_that_a_client_sends_back_is_left_out() -> None:
    call = {
        "id": "fs_1",
        "type": "file_search_call",
        "status": "completed",
        "queries": ["a"],
        "results": None,
    }
    reference: dict[str, Any] = {"type": "item_reference", "id": "fs_1"}
    question = [QUESTION := {"role": "user", "content": "a"}, call, reference, {"id": "fs_1"}]
    answer = {"type": "message", "role": "assistant", "content": "b", "id": "fs_1"}
    create = searching({"input": [*question, answer, QUESTION]})
    assert [m["content"] for m in create.input] == ["a", "b", "a"]
