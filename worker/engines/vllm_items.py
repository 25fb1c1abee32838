"""The items of one response, by a parser of vLLM.

vLLM's `Parser` gets one id per call and returns the additions to the reasoning, the text and the
calls. Text that it does not understand and would lose becomes text of a message.

    whitespace around calls and reasoning      begins no item of its own
    text after a call (hermes drops it)        a message: the parser begins anew after each call
    an invalid call (no JSON, no name)         a message, with its marks
    arguments before the name (hermes spoils)  the call is read as a whole when it is complete
    text still held at the end                 a message
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tailrace.prompts import chat_template
from tailrace.protocol import records
from worker.engines import vllm_internals
from worker.text import generation
from worker.text.item_parser import Piece

# Parsers with a state machine may scan all arguments for each delta. So after this many ids of a
# call they get ids in blocks, each a share of the call so far. They read blocks like single ids.
_SINGLE_IDS: Final = 256
_BLOCKS: Final = 64


@dataclass(frozen=True)
class Kit:
    """The parser of one response and its parameters.

    Attributes:
        new_parser: makes vLLM's parser; with True it begins after the reasoning.
        request: vLLM's request, adjusted by the parser.
        prompt_ids: of the response.
        stop_ids: ids that end the response; they are not text.
        customs: names of custom tools.
        marks: what begins and ends a call, if the parser reads the text between as one call.
        in_blocks: a parser that reads several ids at once like single ones.
        in_message: the prompt ends within a message, so the reasoning is over.
    """

    new_parser: Callable[[bool], Any]
    request: Any
    prompt_ids: Sequence[int]
    detokenizer: generation.Detokenizer
    stop_ids: Collection[int]
    customs: Collection[str]
    marks: tuple[str, str] | None
    in_blocks: bool
    in_message: bool = False


class Items:
    """The item parser of one response.

    Attributes:
        _reasoning_over: the reasoning is over.
        _raw: text after the reasoning since the parser began.
        _content: the part of it that was returned as message text.
        _call: index of the open call in the parser's numbers; None without one.
        _out_of_order: the open call has an order that the parser cannot read; nothing of it was
            returned.
        _arguments: characters of the open call's arguments.
        _space: whitespace that begins an item only if text follows, and the item's kind.
        _block, _block_text: ids that the parser has not read yet, and their text.
    """

    def __init__(self, kit: Kit) -> None:
        self._kit = kit
        self._parser = kit.new_parser(kit.in_message)
        reasoner = self._parser.reasoning_parser
        self._reasoning_over = (
            kit.in_message or reasoner is None or reasoner.is_reasoning_end(list(kit.prompt_ids))
        )
        self._failed = False
        self._open = ""
        self._anything = False
        self._in_call = 0
        self._block: list[int] = []
        self._block_text = ""
        self._space: tuple[records.MarkKind, str] | None = None
        self._custom: CustomInput | None = None
        self._begin()

    def push(self, token: int) -> list[Piece]:
        if token not in self._kit.stop_ids:
            self._block_text += self._kit.detokenizer.push((token,))
        self._block.append(token)
        self._in_call = self._in_call + 1 if self._call is not None else 0
        if (
            self._kit.in_blocks
            and self._in_call > _SINGLE_IDS
            and len(self._block) < self._in_call // _BLOCKS
        ):
            return []
        return self._feed_block(finished=False)

    def finish(self) -> list[Piece]:
        self._block_text += self._kit.detokenizer.flush()
        pieces = self._feed_block(finished=True)
        pieces += self._rest()
        if self._custom is not None:
            pieces += self._out("x", self._custom.finish())
        if self._space is not None and not self._anything:
            pieces.append(Piece(*self._space))
        return pieces

    # ---- the parser ------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._raw = ""
        self._content = ""
        self._call: int | None = None
        self._has_name = False
        self._out_of_order = False
        self._arguments = 0

    def _feed_block(self, *, finished: bool) -> list[Piece]:
        ids, self._block = self._block, []
        text, self._block_text = self._block_text, ""
        return self._feed(text, ids, finished=finished)

    def _feed(self, text: str, ids: list[int], *, finished: bool) -> list[Piece]:
        if self._failed:
            return self._message(text)
        try:
            delta = self._parser.parse_delta(
                text, ids, self._kit.request, list(self._kit.prompt_ids), finished=finished
            )
        except Exception:  # a parser that fails on some text fails on it in every worker
            self._failed = True
            rest = self._raw[len(self._content) :] if not self._has_name else ""
            return self._message(rest + text)
        content = delta.content or "" if delta is not None else ""
        before = len(self._raw)
        if self._reasoning_over:
            self._raw += text
        elif vllm_internals.reasoning_is_over(self._parser):
            self._reasoning_over = True
            self._raw += content  # without the mark that ended the reasoning
        pieces: list[Piece] = []
        if delta is not None:
            if delta.reasoning:
                pieces += self._out("r", delta.reasoning)
            if content:
                self._content += content
                pieces += self._message(content)
            for call in delta.tool_calls or []:
                pieces += self._of_call(call)
        if self._kit.marks is not None and not finished:
            pieces += self._close_call(before, ids)
        return pieces

    def _of_call(self, call: Any) -> list[Piece]:
        pieces: list[Piece] = []
        name = call.function.name if call.function is not None else None
        if name:
            pieces += self._end_call()
            self._call, self._has_name, self._arguments = call.index, True, 0
            self._out_of_order = self._is_out_of_order()
            if not self._out_of_order:
                pieces += self._begin_call(name)
        text = call.function.arguments if call.function is not None else None
        if text and call.index == self._call and not self._out_of_order:
            pieces += self._argue(text)
        return pieces

    def _begin_call(self, name: str) -> list[Piece]:
        custom = name in self._kit.customs
        self._custom = CustomInput() if custom else None
        self._space = None
        self._anything = True
        self._open = "x" if custom else "c"
        return [Piece("x" if custom else "c", "", name)]

    def _argue(self, text: str) -> list[Piece]:
        self._arguments += len(text)
        if self._custom is None:
            return [Piece("c", text)]
        return [Piece("x", plain)] if (plain := self._custom.push(text)) else []

    def _end_call(self) -> list[Piece]:
        pieces: list[Piece] = []
        if self._custom is not None:
            rest, self._custom = self._custom.finish(), None
            pieces += [Piece("x", rest)] if rest else []
        elif self._call is not None and not self._arguments and not self._out_of_order:
            pieces.append(Piece("c", "{}"))  # a call without arguments
        self._call = None
        return pieces

    # ---- calls between marks ---------------------------------------------------------------------

    def _is_out_of_order(self) -> bool:
        if self._kit.marks is None:
            return False
        call = self._raw[self._raw.find(self._kit.marks[0]) :]
        name, arguments = call.find('"name"'), call.find('"arguments"')
        return -1 < arguments < name

    def _close_call(self, before: int, ids: list[int]) -> list[Piece]:
        """Begin anew after a complete call."""
        assert self._kit.marks is not None
        begin, end = self._kit.marks
        start = self._raw.find(begin)
        if start < 0:
            return []
        at = self._raw.find(end, max(start + len(begin), before - len(end)))
        if at < 0:
            return []
        end_at = at + len(end)
        pieces: list[Piece] = []
        if not self._has_name or self._out_of_order:
            pieces += self._whole(self._raw[start:end_at], self._raw[start + len(begin) : at])
        pieces += self._end_call()
        rest = self._raw[end_at:]
        self._parser = self._kit.new_parser(True)
        self._begin()
        self._open = ""
        if rest:
            pieces += self._feed(rest, ids[-1:], finished=False)
        return pieces

    def _whole(self, marked: str, inside: str) -> list[Piece]:
        """A complete call that the parser could not read: its pieces, or its text."""
        try:
            call = json.loads(inside)
            name, arguments = call["name"], call["arguments"]
        except (ValueError, TypeError, KeyError):
            return self._message(marked)
        if not isinstance(name, str) or not name or not isinstance(arguments, dict):
            return self._message(marked)
        text = json.dumps(arguments, ensure_ascii=False)
        pieces = [*self._begin_call(name), *self._argue(text)]
        self._call, self._out_of_order = 0, False
        return pieces

    def _rest(self) -> list[Piece]:
        """The text that the parser still holds at the end."""
        if self._failed:
            return []
        if self._has_name and not self._out_of_order:
            return []
        if self._out_of_order and self._kit.marks is not None:
            return self._message(self._raw[self._raw.find(self._kit.marks[0]) :])
        if self._raw.startswith(self._content):
            return self._message(self._raw[len(self._content) :])
        return []

    # ---- pieces ----------------------------------------------------------------------------------

    def _message(self, text: str) -> list[Piece]:
        return self._out("m", text)

    def _out(self, kind: records.MarkKind, text: str) -> list[Piece]:
        """Text of a message, of reasoning or of a custom call."""
        if not text:
            return []
        if self._open != kind:
            if self._space is not None and self._space[0] == kind:
                text = self._space[1] + text
            self._space = None
            if not text.strip():
                self._space = (kind, text)
                return []
        self._open, self._anything = kind, True
        return [Piece(kind, text)]


class CustomInput:
    """The text of a custom call from its arguments, `{"input": "…"}`, incrementally. Arguments of
    another form are the text themselves."""

    def __init__(self) -> None:
        self._buffer = ""
        self._inside: bool | None = None  # None: the text has not begun

    def push(self, more: str) -> str:
        """Text that `more` completes."""
        self._buffer += more
        if self._inside is None:
            start = _skip_tokens(self._buffer, ("{", f'"{chat_template.CUSTOM_INPUT}"', ":", '"'))
            if start is None:
                return ""
            self._inside = start >= 0
            self._buffer = self._buffer[max(start, 0) :]
        if not self._inside:
            text, self._buffer = self._buffer, ""
            return text
        return self._unescape()

    def finish(self) -> str:
        """The text still held."""
        text, self._buffer = self._buffer, ""
        return text if self._inside is None else ""

    def _unescape(self) -> str:
        out: list[str] = []
        at, buffer = 0, self._buffer
        while at < len(buffer):
            if buffer[at] == '"':
                self._buffer = '"'  # closed: the rest is not text
                return "".join(out)
            length = 1
            if buffer[at] == "\\":
                length = _escape_length(buffer, at)
                if at + length > len(buffer) or length == 0:
                    break
            out.append(_character(buffer[at : at + length]))
            at += length
        self._buffer = buffer[at:]
        return "".join(out)


def _escape_length(text: str, at: int) -> int:
    """Characters of the escape at `at`; 0 if it is not complete yet. Two halves of one character
    count as one."""
    if text[at + 1 : at + 2] != "u":
        return 2
    if text[at + 2 : at + 4].lower() in ("d8", "d9", "da", "db"):
        if len(text) < at + 8:
            return 0
        return 12 if text[at + 6 : at + 8] == "\\u" else 6
    return 6


def _character(escape: str) -> str:
    if len(escape) == 1:
        return escape
    try:
        character = json.loads(f'"{escape}"')
    except ValueError:
        return escape
    return str(character).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _skip_tokens(text: str, tokens: Sequence[str]) -> int | None:
    """The end of these tokens, with whitespace between them, at the beginning of `text`; -1 if it
    does not begin with them, None if more text is needed."""
    at = 0
    for token in tokens:
        while at < len(text) and text[at].isspace():
            at += 1
        if not text.startswith(token, at):
            return None if token.startswith(text[at:]) else -1
        at += len(token)
    return at
