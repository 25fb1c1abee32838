"""The grammar of a stream of Responses events, as the protocol says it, and nothing of our code.

One item is open at a time, its parts come in order, deltas add up to what is `done`, and the final
object holds exactly what was shown.
"""

from __future__ import annotations

from typing import Any, Final

# By the type of an item: the events that show its characters, and the member of the item with all.
_SHOWN: Final = {
    "function_call": ("response.function_call_arguments", "arguments"),
    "custom_tool_call": ("response.custom_tool_call_input", "input"),
}
# By the type of a part: the same.
_PARTS: Final = {
    "output_text": ("response.output_text", "text"),
    "refusal": ("response.refusal", "refusal"),
    "reasoning_text": ("response.reasoning_text", "text"),
    "summary_text": ("response.reasoning_summary_text", "text"),
}
_PART_OWNERS: Final = {
    "message": {"output_text", "refusal"},
    "reasoning": {"reasoning_text", "summary_text"},
}
_TERMINAL: Final = {
    "response.completed": {"completed"},
    "response.failed": {"failed"},
    "response.incomplete": {"incomplete", "cancelled"},
}
# Members of a Response that change while it runs.
_MOVING: Final = {
    "status",
    "output",
    "usage",
    "error",
    "incomplete_details",
    "completed_at",
    "model",
    "fallback",
    "continue",
    "cached_answer",
}


class Violation(AssertionError):
    """An event that the protocol does not allow here."""


class Grammar:
    """Give it all events of one response, in order, as decoded JSON.

    Attributes:
        ended: the terminal event was seen.
        text: all characters of deltas, by output_index.
    """

    def __init__(self) -> None:
        self.ended = False
        self.text: list[str] = []
        self._next = 0
        self._before: list[str] = []  # lifecycle events so far
        self._static: dict[str, Any] = {}
        self._model = ""
        self._done: list[dict[str, Any]] = []
        self._item: dict[str, Any] | None = None
        self._part: dict[str, Any] | None = None
        self._parts: list[dict[str, Any]] = []
        self._whole: str | None = None  # said by the event that ends the characters
        self._shown = ""
        self._likely: list[Any] = []
        self._ids: set[str] = set()
        self._cut: set[int] = set()  # items that another model continued

    def take(self, event: dict[str, Any]) -> None:
        """Take the next event.

        Raises:
            Violation: the protocol does not allow it here.
        """
        kind = event["type"]
        self._is(not self.ended, event, "nothing follows the terminal event")
        if "queue" in event:
            self._wait(event)
            return
        self._is(event["sequence_number"] == self._next, event, f"number {self._next} is next")
        self._next += 1
        match kind:
            case "response.created" | "response.queued" | "response.in_progress":
                self._begin(kind, event)
            case "response.output_item.added":
                self._open(event)
            case "response.content_part.added" | "response.reasoning_summary_part.added":
                self._open_part(event)
            case "response.content_part.done" | "response.reasoning_summary_part.done":
                self._close_part(event)
            case "response.output_item.done":
                self._close(event)
            case _ if kind in _TERMINAL:
                self._end(event)
            case _ if kind.endswith(".delta"):
                self._delta(event)
            case _ if kind.endswith(".done"):
                self._all(event)
            case _:
                self._is(False, event, "unknown type")

    def _is(self, right: bool, event: dict[str, Any], rule: str) -> None:
        if not right:
            raise Violation(f"{rule}: {event}")

    def _wait(self, event: dict[str, Any]) -> None:
        self._is(event["type"] == "response.queued", event, "type of a place in the queue")
        self._is(event["sequence_number"] == self._next - 1, event, "it repeats the last number")
        self._is(self._before[-1:] != ["response.in_progress"], event, "it has begun")
        self._is(event["response"]["status"] == "queued", event, "status")
        self._same(event)

    def _begin(self, kind: str, event: dict[str, Any]) -> None:
        order = ["response.created", "response.queued", "response.in_progress"]
        response = event["response"]
        continues = "items" in response.get("fallback", {})
        if kind == "response.in_progress" and kind in self._before:
            self._is(response["model"] != self._model, event, "told again only of another model")
        else:
            self._before.append(kind)
        self._model = response["model"]
        self._is(
            self._before == [each for each in order if each in self._before]
            and self._before[0] == order[0]
            and (continues or not self.text),
            event,
            "created, queued, in_progress, once each and before all items",
        )
        if continues:
            begun = {"output_index": len(self._done), "model": self._model}
            self._is(self._item is None, event, "no item is open where another model continues")
            self._is(response["fallback"]["items"][-1] == begun, event, "it names the next item")
            self._cut.add(len(self._done) - 1)
        if kind == "response.queued":
            self._is(response["background"] is True, event, "only a background response is queued")
        expected = {"response.queued": {"queued"}, "response.in_progress": {"in_progress"}}
        self._is(
            response["status"] in expected.get(kind, {"queued", "in_progress"}), event, "status"
        )
        self._is(
            response["output"] == self._done
            and response["usage"] is None
            and response["error"] is None,
            event,
            "only whole items are there yet",
        )
        self._same(event)

    def _same(self, event: dict[str, Any]) -> None:
        static = {k: v for k, v in event["response"].items() if k not in _MOVING}
        self._static = self._static or static
        self._is(static == self._static, event, "what was asked never changes")

    def _open(self, event: dict[str, Any]) -> None:
        item = event["item"]
        self._is("response.in_progress" in self._before, event, "an item before in_progress")
        self._is(self._item is None, event, "one item is open at a time")
        self._is(event["output_index"] == len(self._done), event, "output_index is dense")
        self._is(item["status"] == "in_progress", event, "it has just begun")
        self._is(item["id"] not in self._ids, event, "ids of items differ")
        if item["type"] in _SHOWN:
            self._is(item[_SHOWN[item["type"]][1]] == "", event, "a call begins empty")
            self._is(bool(item["call_id"]) and bool(item["name"]), event, "a call names its tool")
            self._is(item["call_id"] not in self._ids, event, "ids of calls differ")
            self._ids.add(item["call_id"])
        else:
            self._is(item["type"] in _PART_OWNERS, event, "unknown item")
            self._is(item["content"] == [], event, "an item begins without parts")
            self._is(not item.get("summary"), event, "an item begins without a summary")
        self._ids.add(item["id"])
        self._item, self._parts, self._whole = item, [], None
        self._shown, self._likely = "", []
        self.text.append("")

    def _here(self, event: dict[str, Any]) -> dict[str, Any]:
        """The open item, which the event must name."""
        item = self._item
        if item is None:
            raise Violation(f"no item is open: {event}")
        self._is(event["output_index"] == len(self._done), event, "output_index of the open item")
        if "item_id" in event:
            self._is(event["item_id"] == item["id"], event, "item_id of the open item")
        return item

    def _open_part(self, event: dict[str, Any]) -> None:
        item, part = self._here(event), event["part"]
        self._is(self._part is None, event, "one part is open at a time")
        self._is(part["type"] in _PART_OWNERS.get(item["type"], ()), event, "part of another item")
        self._is(self._index(event, part) == len(self._parts), event, "indices are dense")
        self._is(part[_PARTS[part["type"]][1]] == "", event, "a part begins empty")
        self._part, self._whole, self._shown, self._likely = part, None, "", []

    def _index(self, event: dict[str, Any], part: dict[str, Any]) -> Any:
        """The number of a part, which the event has by the kind of the part."""
        is_summary = part["type"] == "summary_text"
        if event["type"].startswith("response.reasoning_summary_part."):
            self._is(is_summary, event, "a part of a summary")
        if event["type"].startswith("response.content_part."):
            self._is(not is_summary, event, "a part of the content")
        return event["summary_index" if is_summary else "content_index"]

    def _place(self, event: dict[str, Any]) -> tuple[str, str]:
        item = self._here(event)
        if item["type"] in _SHOWN:
            return _SHOWN[item["type"]]
        part = self._part
        if part is None:
            raise Violation(f"no part is open: {event}")
        self._is(self._index(event, part) == len(self._parts), event, "index of the part")
        return _PARTS[part["type"]]

    def _delta(self, event: dict[str, Any]) -> None:
        prefix, _ = self._place(event)
        self._is(event["type"] == prefix + ".delta", event, "a delta of something else")
        self._is(self._whole is None, event, "a delta behind done")
        self._is(bool(event["delta"] or event.get("logprobs")), event, "a delta shows something")
        self._shown += event["delta"]
        self._likely += event.get("logprobs", [])
        self.text[-1] += event["delta"]

    def _all(self, event: dict[str, Any]) -> None:
        prefix, member = self._place(event)
        self._is(event["type"] == prefix + ".done", event, "done of something else")
        self._is(self._whole is None, event, "done once")
        self._is(event[member] == self._shown, event, f"deltas said {self._shown!r}")
        self._is(event.get("logprobs", []) == self._likely, event, "log probabilities of deltas")
        self._whole = event[member]

    def _close_part(self, event: dict[str, Any]) -> None:
        _, member = self._place(event)
        part = event["part"]
        self._is(self._whole is not None, event, "characters are done before their part")
        self._is(part[member] == self._shown, event, f"deltas said {self._shown!r}")
        self._is(part.get("logprobs", []) == self._likely, event, "log probabilities of deltas")
        self._parts.append(part)
        self._part = None

    def _close(self, event: dict[str, Any]) -> None:
        begun, item = self._here(event), event["item"]
        self._is(self._part is None, event, "parts are done before their item")
        grown = {"status"}
        if item["type"] in _SHOWN:
            member = _SHOWN[item["type"]][1]
            self._is(self._whole is not None, event, "characters are done before their item")
            self._is(item[member] == self._shown, event, f"deltas said {self._shown!r}")
            grown.add(member)
        else:
            shown = [*item.get("summary", ()), *item["content"]]
            self._is(shown == self._parts, event, "the parts that were done")
            grown |= {"content", "summary"}
        self._is(item["status"] in ("completed", "incomplete"), event, "it is over")
        if item["type"] == "reasoning" and begun.get("encrypted_content", "") is None:
            sealed = item.get("encrypted_content", "")
            self._is(sealed != "", event, "it may be sealed")
            whole = item["status"] == "completed"
            self._is(sealed is None or whole, event, "only what is whole is sealed")
            grown.add("encrypted_content")
        self._is(
            {k: v for k, v in item.items() if k not in grown}
            == {k: v for k, v in begun.items() if k not in grown},
            event,
            "the item that was added",
        )
        self._done.append(item)
        self._item = None

    def _end(self, event: dict[str, Any]) -> None:
        response = event["response"]
        status = response["status"]
        self._is("response.created" in self._before, event, "created comes first")
        self._is(self._item is None, event, "all items are done before the end")
        self._is(status in _TERMINAL[event["type"]], event, "status of the terminal event")
        self._is(response["output"] == self._done, event, "the items that were done")
        cut = [at for at, item in enumerate(self._done) if item["status"] != "completed"]
        last = len(self._done) - 1
        self._is(self._cut <= set(cut), event, "an item that another model continues is cut short")
        self._is(set(cut) <= {*self._cut, last}, event, "only the last item is cut short")
        if status == "completed":
            self._is(set(cut) <= self._cut, event, "whole items")
        self._is((response["error"] is not None) == (status == "failed"), event, "error")
        self._is(
            (response["incomplete_details"] is not None) == (status == "incomplete"),
            event,
            "incomplete_details",
        )
        self._is(response["usage"] is not None, event, "usage")
        self._is((response["completed_at"] is not None) == (status == "completed"), event, "time")
        self._same(event)
        self.ended = True
