"""The source of a fork, and what the new request record copies from it."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from gateway.parsing import forks
from tailrace import log
from tailrace.delivery import delivery
from tailrace.protocol import errors, events, file_search, fold, history, records, truncation

# A worker finds younger sources in the log: answers stay there one hour longer than this, and a
# request that waits for more than ten minutes is not served.
SURELY_LOGGED_S: Final = 24 * 3_600
# Members of the echo that describe the prompt.
_OF_THE_PROMPT: Final = (
    "instructions",
    "previous_response_id",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "max_tool_calls",
    "text",
    "reasoning",
    file_search.MEMBER,
)


class Source(NamedTuple):
    """The request of the source, with the messages of its prompt; and the fork. The fork carries
    the source's token ids if workers may not find them in the log. `dropped`: number of messages
    that the prompt lacks."""

    request: records.Request
    fork: records.Fork
    dropped: int


async def source(
    deliver: delivery.Delivery,
    fork: records.Fork,
    model: str,
    owner: records.Owner,
    now_s: float,
) -> Source:
    """The source of a fork, from the log or the archive.

    Raises:
        errors.ApiError: it is unknown, another owner's, deleted or not stored; it has fewer tokens;
            another model, or two models, answered it.
        log.LogUnavailable
    """
    try:
        snapshot = await deliver.find(fork.rid, owner)
        if not snapshot.response["store"]:
            raise errors.previous_response_not_found(fork.rid, forks.SOURCE)
        request = await deliver.request_of(fork.rid, owner)
    except (delivery.NotFound, log.HistoryLost) as error:
        raise errors.previous_response_not_found(fork.rid, forks.SOURCE) from error
    if events.ITEMS in snapshot.response.get(events.FALLBACK, {}):
        raise errors.invalid_value(
            forks.SOURCE,
            f"Another model continued the response '{fork.rid}', so it cannot be forked.",
        )
    source_model = snapshot.response["model"]
    if source_model != model:
        raise errors.invalid_value(
            "model", f"A fork needs the model of its source, '{source_model}'."
        )
    if snapshot.claim is None or fork.at > snapshot.tokens:
        raise errors.invalid_value(
            forks.AT,
            f"Invalid '{forks.AT}': the response has {snapshot.tokens} tokens"
            f"{'' if snapshot.claim is not None else ' and was not started'}.",
        )
    if snapshot.archived or snapshot.response["created_at"] < now_s - SURELY_LOGGED_S:
        archive_copy = await deliver.archived.find(fork.rid, owner)
        if archive_copy is not None:
            fork = msgspec.structs.replace(fork, source=_beginning(archive_copy, fork.at))
            return _with_messages(request, fork, snapshot.claim)
        if snapshot.archived:
            raise errors.previous_response_not_found(fork.rid, forks.SOURCE)  # erased meanwhile
    return _with_messages(request, fork, snapshot.claim)


def _with_messages(request: records.Request, fork: records.Fork, claim: records.Claim) -> Source:
    messages = truncation.prompt(request, claim.dropped)
    return Source(msgspec.structs.replace(request, messages=messages), fork, claim.dropped)


def _beginning(archive_copy: history.History, at: int) -> records.ForkSource:
    state = fold.Fold(retain_ids=True, principal=archive_copy.owner)
    for number, record in enumerate(history.to_records(archive_copy)):
        state.apply(record, number, archive_copy.ended_ms)
    revision, tokenizer, _ = state.model
    return records.ForkSource(revision, tokenizer, list(state.ids[:at]))


def prompt(request: records.Request) -> dict[str, Any]:
    """The members of a source's record that the prompt is built from."""
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
            "continue_final",
        )
    }


def echo(fork_source: Source) -> dict[str, Any]:
    """The members of the Response object that a fork copies from its source, and `fork`."""
    source_echo, fork = fork_source.request.echo, fork_source.fork
    members: dict[str, Any] = {
        name: source_echo[name] for name in _OF_THE_PROMPT if name in source_echo
    }
    members["fork"] = {"response_id": fork.rid, "at": fork.at, "replace": fork.replace or None}
    if fork_source.dropped:
        members[events.DROPPED] = fork_source.dropped
    return members
