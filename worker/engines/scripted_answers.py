"""Answers of the scripted engine to requests with tools, reasoning or a format (pure).

The lines of the last user message are commands; other lines are not:

    think WORDS        reasoning, if the request asks for some
    say WORDS          text of the message
    json JSON          the message is this, if the request has a format; else it is text like any
    call NAME JSON     a call of this tool, with these arguments; of a custom tool with the rest of
                       the line as its input, or with what a JSON string in it says
    then               what follows is for the next answer, when the outputs of the calls are there

WORDS and JSON may be a number of tokens, each of which depends on all before it. In arguments and
formats these tokens stand in the strings of a value for the schema; without a number each string
has three. In detail:

- Without a command the answer is as to a plain request; after outputs of tools it quotes them.
- `tool_choice` is obeyed: calls that it does not allow are left out, and one that it requires is
  made. So are `parallel_tool_calls` and `max_tool_calls`.
- A format is obeyed: a message is a value for it, whatever the command.
- Arguments that are not JSON are replaced by a value for the schema, as a grammar would do.
- The grammar of a custom tool is obeyed if it is a regular expression and no input is given.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, NamedTuple

from tailrace.prompts.chat_template import content_text
from tailrace.protocol import records
from worker.engines import scripted_markers, scripted_values

Run = str | int  # text, or a number of tokens that depend on all before them

WORDS: Final = 3  # for each free string
MAX_QUOTE: Final = 2_000  # characters of an output of a tool
_COMMAND: Final = re.compile(r"(think|say|json|call|then)(?:[ \t]+(.*))?")
_THOUGHT: Final = "I was asked something, and I answer in order."


class Impossible(Exception):
    """The engine cannot write the requested answer; the text is for the client."""


class Command(NamedTuple):
    """A line of the question. `name`: of the tool, for `call`."""

    verb: str
    rest: str
    name: str = ""


def has_items(request: records.Request) -> bool:
    """Whether the answer may be more than one message."""
    return bool(request.tools) or request.reasoning is not None


def runs(request: records.Request, otherwise: Run) -> list[Run]:
    """The answer. `otherwise` is the message of an answer without a command.

    Raises:
        Impossible
    """
    return list(_Answer(request, otherwise).all())


class _Answer:
    """One answer in the making."""

    def __init__(self, request: records.Request, otherwise: Run) -> None:
        self._request = request
        self._otherwise = otherwise
        self._tools = _callable_tools(request)

    def all(self) -> list[Run]:
        runs: list[Run] = []
        commands = self._commands()
        reasons = self._request.reasoning is not None
        if reasons and self._request.reasoning.get("effort") != "none":  # type: ignore[union-attr]
            if not any(each.verb == "think" for each in commands):
                commands.insert(0, Command("think", _THOUGHT))
        else:
            commands = [each for each in commands if each.verb != "think"]
        spoken = False
        for each in commands:
            if each.verb == "think":
                runs += [scripted_markers.THINK, *_words(each.rest), scripted_markers.END]
            elif each.verb == "call":
                runs += self._call(self._tools[each.name], each.rest)
            elif not spoken:
                runs += self._message(each)
                spoken = self._request.format is not None
        return runs

    def _commands(self) -> list[Command]:
        """The commands that the request allows."""
        requested = self._requested_commands()
        if not requested and self._outputs():
            requested = [Command("quote", "")]
        most = self._request.max_tool_calls
        most = 1 if not self._request.parallel_tool_calls else most
        commands, calls = [], 0
        for each in requested:
            if each.verb == "call":
                if each.name not in self._tools or calls == most:
                    continue
                calls += 1
            commands.append(each)
        if not calls and self._request.tool_choice.mode == "required" and self._tools:
            commands = [c for c in commands if c.verb == "think"]
            commands.append(Command("call", "", next(iter(self._tools))))
        if not any(each.verb != "think" for each in commands):
            commands.append(Command("otherwise", ""))
        return commands

    def _requested_commands(self) -> list[Command]:
        """The commands that this answer is for."""
        messages = self._request.messages
        last = max((i for i, m in enumerate(messages) if m.get("role") == "user"), default=None)
        if last is None:
            return []
        answered = sum("tool_calls" in m for m in messages[last + 1 :])
        sections: list[list[Command]] = [[]]
        for line in content_text(messages[last].get("content")).split("\n"):
            command = _COMMAND.fullmatch(line.strip())
            if command is None:
                continue
            verb, rest = command[1], (command[2] or "").strip()
            if verb == "then":
                sections.append([])
            elif verb == "call":
                name, _, rest = rest.partition(" ")
                sections[-1].append(Command(verb, rest.strip(), name))
            else:
                sections[-1].append(Command(verb, rest))
        return sections[answered] if answered < len(sections) else []

    def _outputs(self) -> list[str]:
        """The outputs of tools that this answer follows."""
        outputs: list[str] = []
        for message in reversed(self._request.messages):
            if message.get("role") != "tool":
                break
            outputs.insert(0, content_text(message.get("content"))[:MAX_QUOTE])
        return outputs

    def _message(self, command: Command) -> list[Run]:
        if self._request.format is not None:
            return self._format(command)
        if command.verb == "quote":
            return [_quote(self._outputs())]
        return [self._otherwise] if command.verb == "otherwise" else _words(command.rest)

    def _format(self, command: Command) -> list[Run]:
        content = command.rest if command.verb == "json" else ""
        form: dict[str, Any] = self._request.format or {}
        match form["type"]:
            case "json_schema":
                return _value(form["schema"], content)
            case "json_object":
                return _value({"properties": {"answer": {"type": "string"}}}, content)
            case "regex":
                return [_matching(form["pattern"])]
            case "choice":
                return [str(form["choices"][0])]
        raise Impossible("The scripted engine has no grammars: `format` is not supported.")

    def _call(self, tool: dict[str, Any], text: str) -> list[Run]:
        kind = tool["type"]
        about = tool[kind]
        marker = scripted_markers.call(about["name"], custom=kind == "custom")
        content = _input(about, text) if kind == "custom" else _value(about["parameters"], text)
        return [marker, *content, scripted_markers.END]


def _callable_tools(request: records.Request) -> dict[str, dict[str, Any]]:
    """The tools that may be called, by name."""
    choice = request.tool_choice
    if choice.mode == "none":
        return {}
    tools = {tool[tool["type"]]["name"]: tool for tool in request.tools}
    return {n: tool for n, tool in tools.items() if not choice.names or n in choice.names}


def _words(text: str) -> list[Run]:
    return [int(text)] if _is_number(text) else [scripted_markers.harmless(text)]


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 6


def _quote(outputs: list[str]) -> str:
    quotes = " and ".join(f"“{output}”" for output in outputs)
    return scripted_markers.harmless(f"The tools said: {quotes}.")


def _input(about: dict[str, Any], text: str) -> list[Run]:
    """The input of a custom tool."""
    form = about.get("format") or {}
    if not text and form.get("syntax") == "regex":
        return [_matching(form["definition"])]
    if text.startswith('"') and isinstance(decoded := _decode(text), str):
        return [scripted_markers.harmless(decoded)]
    return _words(text or str(WORDS))


def _value(schema: dict[str, Any], text: str) -> list[Run]:
    """A value for the schema: the given one, if it is JSON."""
    if text and not _is_number(text) and _decode(text) is not _NO_JSON:
        return [scripted_markers.harmless(text)]
    try:
        parts = scripted_values.parts(schema)
    except scripted_values.Impossible as error:
        raise Impossible("The scripted engine found no value for the schema.") from error
    return _fill(parts, int(text) if _is_number(text) else None)


def _fill(parts: list[scripted_values.Part], words: int | None) -> list[Run]:
    """With `words` words, shared by the free strings; the first ones get the remainder."""
    free = sum(part is None for part in parts)
    runs: list[Run] = []
    remaining = free * WORDS if words is None else words
    for part in parts:
        if part is not None:
            runs.append(scripted_markers.harmless(part))
            continue
        share = -(-remaining // free)
        runs.append(share)
        remaining, free = remaining - share, free - 1
    return runs


def _matching(pattern: str) -> str:
    try:
        return scripted_values.matching(pattern)
    except scripted_values.Impossible as error:
        raise Impossible("The scripted engine found no text for the pattern.") from error


_NO_JSON: Final = object()


def _decode(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return _NO_JSON
