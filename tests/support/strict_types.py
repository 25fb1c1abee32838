"""What a strict client would say of a body: it is held against the types of openai-python.

The SDK itself takes anything: its models are constructed without validation and keep what they do
not know. Clients in typed languages, and clients that validate, do not. So every member must be of
its declared type, all required ones must be there, and one that is not declared must be a
documented extension.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping, Set
from typing import Any, Final

import pydantic
import typing_extensions

# Members that openai-python does not declare, by the name of its type, and why they are sent.
# docs/protocol.md names each of them.
_SPECIFICATION: Final = {"presence_penalty", "frequency_penalty", "store"}  # Open Responses
EXTENSIONS: Final[Mapping[str, Set[str]]] = {
    "Response": _SPECIFICATION | {"continue", "shortened"},
    "ChatCompletionMessage": {"reasoning_content", "reasoning"},
    "ChoiceDelta": {"reasoning_content", "reasoning"},
    "ChoiceDeltaToolCall": {"custom"},
    # OpenAI sends it, and its types require it of the same item in lists.
    "ResponseCustomToolCall": {"status"},
    # Open Responses has one type of log probabilities, in events too.
    "Logprob": {"bytes"},
    "LogprobTopLogprob": {"bytes"},
}

_UNIONS: Final = (typing.Union, types.UnionType)
_SCALARS: Final[Mapping[Any, tuple[type, ...]]] = {
    str: (str,),
    int: (int,),
    float: (int, float),
    bool: (bool,),
    type(None): (type(None),),
}


def complaints(
    kind: Any, value: Any, extensions: Mapping[str, Set[str]] = EXTENSIONS, at: str = "$"
) -> list[str]:
    """What is wrong with the decoded JSON `value` as one of the annotated type `kind`: lines of
    path and reason; none where a strict client would take it."""
    while isinstance(kind, typing_extensions.TypeAliasType):
        kind = kind.__value__
    origin = typing.get_origin(kind)
    if origin is typing.Annotated or origin in (
        typing_extensions.Required,
        typing_extensions.NotRequired,
        typing.ClassVar,
    ):
        return complaints(typing.get_args(kind)[0], value, extensions, at)
    if kind in (Any, object):
        return []
    if origin in _UNIONS:
        return _of_union(typing.get_args(kind), value, extensions, at)
    if origin is typing.Literal:
        allowed = typing.get_args(kind)
        same = any(value == each and type(value) is type(each) for each in allowed)
        return [] if same else [f"{at}: {value!r} is none of {allowed}"]
    if origin in (list, tuple) or kind is list:
        return _of_list(kind, value, extensions, at)
    if origin is dict or kind is dict:
        return _of_dict(kind, value, extensions, at)
    if isinstance(kind, type) and issubclass(kind, pydantic.BaseModel):
        return _of_model(kind, value, extensions, at)
    if kind in _SCALARS:
        wrong = type(value) not in _SCALARS[kind]
        return [f"{at}: {value!r} is no {kind.__name__}"] if wrong else []
    raise TypeError(f"{at}: cannot check {kind!r}")


def _of_union(
    kinds: tuple[Any, ...], value: Any, extensions: Mapping[str, Set[str]], at: str
) -> list[str]:
    """Of the alternatives, the one that comes nearest says what is wrong."""
    every = [complaints(kind, value, extensions, at) for kind in kinds]
    tagged = [
        found
        for kind, found in zip(kinds, every, strict=True)
        if not any(line.startswith(f"{at}.type: ") for line in found)
    ]
    return min(tagged or every, key=len)


def _of_list(kind: Any, value: Any, extensions: Mapping[str, Set[str]], at: str) -> list[str]:
    if not isinstance(value, list):
        return [f"{at}: {value!r} is no list"]
    element = (typing.get_args(kind) or (Any,))[0]
    return [
        line
        for index, each in enumerate(value)
        for line in complaints(element, each, extensions, f"{at}[{index}]")
    ]


def _of_dict(kind: Any, value: Any, extensions: Mapping[str, Set[str]], at: str) -> list[str]:
    if not isinstance(value, dict):
        return [f"{at}: {value!r} is no object"]
    element = (typing.get_args(kind) or (str, Any))[1]
    return [
        line
        for key, each in value.items()
        for line in complaints(element, each, extensions, f"{at}.{key}")
    ]


def _of_model(
    kind: type[pydantic.BaseModel], value: Any, extensions: Mapping[str, Set[str]], at: str
) -> list[str]:
    if not isinstance(value, dict):
        return [f"{at}: {value!r} is no {kind.__name__}"]
    names = {field.alias or name: field for name, field in kind.model_fields.items()}
    known = extensions.get(kind.__name__.split("[")[0], frozenset())
    found = [
        f"{at}.{name}: {kind.__name__} has no such member"
        for name in value
        if name not in names and name not in known
    ]
    for name, field in names.items():
        if name in value:
            found += complaints(field.annotation, value[name], extensions, f"{at}.{name}")
        elif field.is_required():
            found.append(f"{at}.{name}: is missing in {kind.__name__}")
    return found
