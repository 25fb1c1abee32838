"""The source of a fork, as the new request record is made of it."""

from __future__ import annotations

from typing import Any, Final

from gateway.parsing import forks
from tailrace import log
from tailrace.delivery import delivery
from tailrace.protocol import errors, records

# Members of the Response object that say what the prompt was made of.
_OF_THE_PROMPT: Final = (
    "instructions",
    "previous_response_id",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "max_tool_calls",
    "text",
    "reasoning",
)


async def source(
    deliver: delivery.Delivery, fork: records.Fork, model: str, owner: records.Owner
) -> records.Request:
    """The request record of the response that is forked.

    Raises:
        errors.ApiError: it is unknown, another owner's, deleted or not stored; it has fewer tokens;
            it is of another model.
        log.LogUnavailable
    """
    try:
        found = await deliver.find(fork.rid, owner)
        if not found.response["store"]:
            raise errors.previous_response_not_found(fork.rid, forks.SOURCE)
        request = await deliver.request_of(fork.rid, owner)
    except (delivery.NotFound, log.HistoryLost) as error:
        raise errors.previous_response_not_found(fork.rid, forks.SOURCE) from error
    if request.model != model:
        raise errors.invalid_value(
            "model", f"A fork is continued by the model of its source, '{request.model}'."
        )
    if found.claim is None or fork.at > found.tokens:
        raise errors.invalid_value(
            forks.AT,
            f"Invalid '{forks.AT}': the response has {found.tokens} tokens"
            f"{'' if found.claim is not None else ' and was not started'}.",
        )
    return request


def prompt(request: records.Request) -> dict[str, Any]:
    """The members of a source's record that make the prompt, and say what it was made of."""
    return {
        name: getattr(request, name)
        for name in (
            "messages",
            "input",
            "previous",
            "tools",
            "tool_choice",
            "parallel_tool_calls",
            "max_tool_calls",
            "format",
            "reasoning",
            "raw",
        )
    }


def echo(request: records.Request, fork: records.Fork) -> dict[str, Any]:
    """The members of the Response object that a fork has of its source, and its own."""
    of_source: dict[str, Any] = {
        name: request.echo[name] for name in _OF_THE_PROMPT if name in request.echo
    }
    said = {"response_id": fork.rid, "at": fork.at, "replace": fork.replace or None}
    return {**of_source, "fork": said}
