"""Reads the messages of a watch socket with the compact form of events, by the words of
docs/protocol.md, section 6, and nothing of our code."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any


class Reader:
    """Turns the messages of one socket into those that `tailrace.v1` has."""

    def __init__(self) -> None:
        self._watches: dict[int, dict[str, Any]] = {}

    def read(self, raw: str | bytes) -> dict[str, Any]:
        """Raises KeyError for an unknown number, and ValueError for a text that stands for
        nothing."""
        message = json.loads(raw)
        if isinstance(message, list):
            watch = self._watches[message[0]]
            return self._told(watch, message[1:])
        assert isinstance(message, dict)
        if message["type"] != "watch.events":
            return message
        watch = self._watches[message.pop("number")] = {"response_id": message["response_id"]}
        return self._told(watch, message["events"])

    def events(self, messages: Iterable[str | bytes], rid: str) -> list[dict[str, Any]]:
        """The events of this response in these messages."""
        read = [self.read(each) for each in messages]
        return [e for m in read if m.get("response_id") == rid for e in m.get("events", ())]

    def _told(self, watch: dict[str, Any], entries: list[Any]) -> dict[str, Any]:
        events = [self._event(watch, entry) for entry in entries]
        return {"type": "watch.events", "response_id": watch["response_id"], "events": events}

    def _event(self, watch: dict[str, Any], entry: Any) -> dict[str, Any]:
        if isinstance(entry, str):
            if "delta" not in watch:
                raise ValueError("a text before the first delta")
            event = {**watch["delta"], "sequence_number": watch["number"] + 1, "delta": entry}
        else:
            event = entry
            if event["type"].endswith(".delta"):
                watch["delta"] = event
        watch["number"] = event["sequence_number"]
        return event
