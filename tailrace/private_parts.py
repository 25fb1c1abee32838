"""The check that private parts of a library are as the code that uses them expects.

An adapter lists what it uses as `Part`s. `changes` compares the list with the installed library. A
difference turns the adapter off and a slower one on public API on.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Part:
    """A private part that an adapter relies on.

    Attributes:
        module, name: where it is, for example "RequestState.make_request_output".
        parameters: names of its first parameters, in order. Empty: not compared.
        names: attributes that its code must read or set. Instance attributes have no other trace
            before an instance exists.
    """

    module: str
    name: str
    parameters: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


def changes(
    parts: Sequence[Part], load: Callable[[str], Any] = importlib.import_module
) -> list[str]:
    """What is different from `parts` in the installed library, one text for each difference. `load`
    imports a module by name."""
    differences = (_change(part, load) for part in parts)
    return [text for text in differences if text]


def _change(part: Part, load: Callable[[str], Any]) -> str:
    try:
        there: Any = load(part.module)
    except ImportError:
        return f"there is no module {part.module}"
    for name in part.name.split("."):
        there = getattr(there, name, None)
        if there is None:
            return f"{part.module} has no {part.name}"
    if part.parameters:
        takes = tuple(inspect.signature(there).parameters)
        if takes[: len(part.parameters)] != part.parameters:
            return (
                f"{part.name} takes ({', '.join(takes)}), expected ({', '.join(part.parameters)})"
            )
    code = getattr(inspect.unwrap(there), "__code__", None)
    absent = [name for name in part.names if code is None or name not in code.co_names]
    return f"{part.name} does not use {', '.join(absent)}" if absent else ""
