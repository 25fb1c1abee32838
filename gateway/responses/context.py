"""The messages that a continued response starts with.

They come from the connection's memory, from the cached session, or from the log. All three hold the
same flat list of messages, so the result does not depend on the source. Instructions are not part
of it.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NotRequired, TypedDict

import msgspec

from gateway.cache import Cache
from gateway.parsing import conversation
from gateway.responses import busy
from gateway.responses.memory import ResponseMemory
from tailrace import log, telemetry
from tailrace.delivery import delivery
from tailrace.protocol import errors, events, file_search, fold, ids, records
from tailrace.store import redis_store

MAX_TURNS: Final = 10
HALF_A_CHARACTER: Final = "\ufffd"  # shown for a part of a character's bytes

Messages = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class History:
    """The messages before a request. `partition`: that of the previous response, for placement;
    None without one."""

    messages: Messages
    partition: int | None = None


NO_HISTORY: Final = History([])


class _Call(TypedDict):
    """A call in a message (`gateway.parsing.conversation`)."""

    id: str
    type: str
    function: NotRequired[dict[str, str]]
    custom: NotRequired[dict[str, str]]


class _Part(TypedDict):
    """A part of a message that shows images (`tailrace.protocol.images`)."""

    type: Literal["text", "image"]
    text: NotRequired[str]
    sha256: NotRequired[str]
    media: NotRequired[str]
    width: NotRequired[int]
    height: NotRequired[int]
    detail: NotRequired[str]
    data: NotRequired[str]
    file: NotRequired[dict[str, Any]]


class _Message(TypedDict):
    """A message as an engine accepts it (`gateway.parsing.conversation`)."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | list[_Part]
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[_Call]]
    tool_call_id: NotRequired[str]
    cut: NotRequired[bool]
    open: NotRequired[bool]


class _Session(msgspec.Struct, frozen=True):
    """A cached turn. It names its owner, because the cache key does not prove who may read it."""

    owner: records.Owner
    messages: list[_Message]


def last_turns(messages: Sequence[dict[str, Any]], turns: int = MAX_TURNS) -> Messages:
    """Return the last `turns` turns. A turn ends with its answer. A message that calls tools is not
    an answer, so that a call stays with its output. System messages before an older turn are
    dropped with it."""
    ends = [i + 1 for i, m in enumerate(messages) if _is_answer(m)]
    if messages and not _is_answer(messages[-1]):
        ends.append(len(messages))
    return list(messages[ends[-turns - 1] :]) if len(ends) > turns else list(messages)


def _is_answer(message: dict[str, Any]) -> bool:
    return message["role"] == "assistant" and "tool_calls" not in message


def without_instructions(request: records.Request) -> Messages:
    """The messages of a request as the next turn inherits them: without instructions, and without
    the passages of files, which belong to one question."""
    first = 1 if request.echo.get("instructions") is not None else 0
    return file_search.without_passages(request.messages[first:], request.echo)


def with_answer(
    messages: Messages, response: dict[str, Any], *, continues: bool = False
) -> Messages:
    """Return the dialogue after a response. An answer without text and calls adds no message. Calls
    of an incomplete answer may have no output; such a message has `cut`.

    If an incomplete answer can be continued, its message has `open` true. If it cannot and has no
    message, the message before it has `open` false.

    Args:
        continues: the response continues the text of the last message (log rule §23). The two are
            one message from now on.
    """
    output = [each for each in response["output"] if each["type"] != file_search.CALL]
    items = [item for each in output if (item := dialogue_item(each)) is not None]
    answer = [m for m in conversation.messages(items) if m["content"] or "tool_calls" in m]
    if answer and events.ITEMS in (response.get(events.FALLBACK) or {}):
        # Its items are one text by several models (log rule §25).
        answer = [{**answer[0], "content": "".join(m["content"] for m in answer)}]
    dialogue = [*messages, *answer]
    if continues and answer and "reasoning_content" not in answer[0]:
        whole = {**messages[-1], **answer[0], "content": messages[-1]["content"]}
        whole["content"] += answer[0]["content"]
        dialogue = [*messages[:-1], whole, *answer[1:]]
    if response["status"] == "completed":
        return last_turns(dialogue) if answer else messages
    begin = len(messages) - continues
    dialogue[begin:] = [{**m, "cut": True} if "tool_calls" in m else m for m in dialogue[begin:]]
    if output or continues:
        dialogue[-1] = _cut_short(
            dialogue[-1], can_continue=not output or bool(response.get(events.CONTINUE))
        )
    return last_turns(dialogue) if answer else dialogue


def _cut_short(last: dict[str, Any], *, can_continue: bool) -> dict[str, Any]:
    """The last message after an incomplete answer. `can_continue`: its text can be continued. Then
    a character that the bound cut in two is left to the continuation."""
    if last["role"] != "assistant":
        return {**last, "open": can_continue}
    if not can_continue:
        return last
    return {**last, "content": last["content"].rstrip(HALF_A_CHARACTER), "open": True}


def is_open(messages: Messages) -> bool | None:
    """Whether the last message is an incomplete answer that can be continued; None if it is not an
    answer and no incomplete one follows it."""
    if not messages:
        return None
    last = messages[-1]
    if last["role"] != "assistant":
        return False if last.get("open") is False else None
    return bool(last.get("open"))


def without_open_calls(messages: Sequence[dict[str, Any]], open_calls: Container[str]) -> Messages:
    """Return the dialogue for a model: without the calls of incomplete answers that have no
    output."""
    dialogue = []
    for each in messages:
        message = {name: value for name, value in each.items() if name != "open"}
        if "cut" in message:
            message = {name: value for name, value in message.items() if name != "cut"}
            calls = [call for call in message.pop("tool_calls") if call["id"] not in open_calls]
            if calls:
                message["tool_calls"] = calls
            elif not message["content"]:
                continue
        dialogue.append(message)
    return dialogue


def dialogue_item(item: dict[str, Any]) -> conversation.Item | None:
    """An output item as a part of the dialogue; None for an incomplete call and for a search."""
    kind = item["type"]
    if kind == file_search.CALL:
        return None
    if kind in ("function_call", "custom_tool_call"):
        if item["status"] != "completed":
            return None
        custom = kind == "custom_tool_call"
        arguments = item["input" if custom else "arguments"]
        name, namespace = item["name"], item.get("namespace")
        return conversation.Call(item["call_id"], name, arguments, "", namespace, custom=custom)
    text = "".join(part.get("text", "") for part in item.get("content", ()))
    if kind == "reasoning":
        summary = "".join(part.get("text", "") for part in item.get("summary", ()))
        return conversation.Reasoning(text or summary, "")
    return conversation.Message("assistant", text, "")


def continuable(response: dict[str, Any]) -> bool:
    """Return whether a response may be continued: a failed one may not, an incomplete one may."""
    return response["status"] in ("completed", "incomplete", "cancelled")


def pack(messages: Messages) -> bytes:
    """Encode messages for a memory."""
    return msgspec.json.encode(messages)


def unpack(state: bytes) -> Messages:
    """Decode the messages of `pack`."""
    return msgspec.json.decode(state, type=Messages)


def encode(owner: records.Owner, messages: Messages) -> bytes:
    """Encode a turn for the session cache."""
    return msgspec.json.encode({"owner": owner, "messages": messages})


def decode(value: bytes | None, owner: records.Owner) -> Messages | None:
    """Return the cached turn. None: it is absent, another owner's, or cannot be decoded."""
    session = redis_store.decode(value, _Session)
    if session is None or session.owner != owner:
        return None
    return [{**message} for message in session.messages]


class Resolver:
    """Finds the messages before a request."""

    def __init__(self, deliver: delivery.Delivery, cache: Cache, partitions: int) -> None:
        self._delivery = deliver
        self._cache = cache
        self._partitions = partitions

    async def resolve(
        self, previous: str | None, owner: records.Owner, memory: ResponseMemory | None = None
    ) -> History:
        """Return the messages that lead up to `previous`.

        Args:
            previous: The response to continue; None for a new conversation.
            memory: The connection's memory of it. It is used before any cache.

        Raises:
            errors.ApiError: previous_response_not_found, also for a response of another owner, a
                failed one and one that was not stored.
            busy.Busy: it is still running.
            log.LogUnavailable: The log had to be read and cannot be.
        """
        if previous is None:
            return NO_HISTORY
        try:
            partition = ids.parse(previous, self._partitions).partition
        except ids.InvalidId as error:
            raise errors.previous_response_not_found(previous) from error
        if memory is not None:
            return History(unpack(memory.state), partition)
        messages = await self.cached_turn(previous, owner)
        if messages is None:
            messages = await self._rebuild(previous, owner)
        return History(messages, partition)

    async def cached_turn(self, rid: str, owner: records.Owner) -> Messages | None:
        """The messages up to and including a response, if cached. The cache has responses that
        ended and can be continued."""
        messages = decode(await self._cache.turn(rid), owner)
        telemetry.SESSION_LOOKUPS.labels(outcome="hit" if messages is not None else "miss").inc()
        return messages

    async def _rebuild(self, previous: str, owner: records.Owner) -> Messages:
        try:
            snapshot = await self._delivery.find(previous, owner)
            if not snapshot.response["store"] or (
                snapshot.phase is fold.Phase.DONE and not continuable(snapshot.response)
            ):
                raise errors.previous_response_not_found(previous)
            if snapshot.phase is not fold.Phase.DONE:
                raise busy.Busy(previous, "previous_response_id")
            request = await self._delivery.request_of(previous, owner)
        except (delivery.NotFound, log.HistoryLost) as error:
            raise errors.previous_response_not_found(previous) from error
        messages = with_answer(
            without_instructions(request), snapshot.response, continues=request.continue_final
        )
        telemetry.SESSION_LOOKUPS.labels(outcome="rebuilt").inc()
        await self._cache.put_turn(owner.key, previous, encode(owner, messages))
        return messages
