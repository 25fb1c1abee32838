"""The commands of a watch socket, read from the client's text (pure; docs/protocol.md)."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from tailrace.protocol import errors, feed
from tailrace.web import auth_messages

MAX_RID_CHARS: Final = 128


class Watch(NamedTuple):
    """Follow this response. `after`: the last sequence_number the client has; -1 for none."""

    rid: str
    after: int


class Unwatch(NamedTuple):
    """Follow this response no more."""

    rid: str


class Feed(NamedTuple):
    """Follow the feed. `after`: the position that the client has; None: from now on."""

    after: feed.Position | None


class Unfeed(NamedTuple):
    """Follow the feed no more."""


class Invalid(NamedTuple):
    """No command. `rid`: the response it was about, where that is known."""

    rid: str | None
    error: errors.ApiError


Command = Watch | Unwatch | Feed | Unfeed | auth_messages.Presented


def parse(text: str | None) -> Command | Invalid:
    """The command in one message. `text`: None for a binary message."""
    if text is None:
        return Invalid(None, errors.invalid_request("Messages are JSON text frames."))
    try:
        command = msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return Invalid(None, errors.invalid_json())
    if isinstance(command, dict) and command.get("type") == auth_messages.TYPE:
        try:
            return auth_messages.parse(command)
        except errors.ApiError as refused:
            return Invalid(None, refused)
    if isinstance(command, dict) and command.get("type") in ("feed", "unfeed"):
        return Unfeed() if command["type"] == "unfeed" else _feed(command.get("after"))
    if not isinstance(command, dict) or command.get("type") not in ("watch", "unwatch"):
        types = "'watch', 'unwatch', 'feed', 'unfeed' or 'auth'"
        return Invalid(None, errors.invalid_request(f"The 'type' must be {types}.", "type"))
    rid = command.get("response_id")
    if not isinstance(rid, str):
        return Invalid(None, errors.missing_required_parameter("response_id"))
    if len(rid) > MAX_RID_CHARS:  # no response has such an id, and it would be kept and repeated
        return Invalid(rid[:MAX_RID_CHARS], errors.response_not_found(rid))
    if command["type"] == "unwatch":
        return Unwatch(rid)
    after = command.get("starting_after", -1)
    if type(after) is not int or after < -1:
        error = errors.invalid_request(
            "starting_after must be an integer", "starting_after", "invalid_value"
        )
        return Invalid(rid, error)
    return Watch(rid, after)


def _feed(after: object) -> Feed | Invalid:
    if after is None:
        return Feed(None)
    try:
        return Feed(feed.parse_position(after if isinstance(after, str) else ""))
    except feed.InvalidPosition:
        return Invalid(None, errors.invalid_value("after", "Invalid 'after': no such position."))
