"""Docstrings name what the code has: entries of `Args` are parameters, those of `Attributes` are
names of the class. Renames leave the old ones behind."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOPS = ("gateway", "push", "worker", "tailrace", "pipelines", "bench")
Function = ast.FunctionDef | ast.AsyncFunctionDef


def entries(docstring: str, section: str) -> Iterator[str]:
    """The names that a section describes: `name: …` or `one, other: …` at its first indent."""
    lines = iter(docstring.splitlines())
    if f"{section}:" not in (line.strip() for line in lines):
        return
    indent = None
    for line in lines:
        if not line.strip():
            continue
        depth = len(line) - len(line.lstrip())
        indent = indent or depth
        if not depth:
            return
        if depth == indent and (names := re.match(r"\s*([\w*]+(?:, [\w*]+)*):", line)):
            yield from (name.strip("*") for name in names[1].split(", "))


def parameters(function: Function) -> set[str]:
    args = function.args
    named = [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]
    return {each.arg for each in named if each is not None}


def identifiers(tree: ast.AST) -> set[str]:
    """All names in code, and those in strings such as `__slots__`."""
    nodes = list(ast.walk(tree))
    return (
        {n.id for n in nodes if isinstance(n, ast.Name)}
        | {n.attr for n in nodes if isinstance(n, ast.Attribute)}
        | {n.name for n in nodes if isinstance(n, Function | ast.ClassDef)}
        | {n.arg for n in nodes if isinstance(n, ast.arg)}
    )


def stale(source: str) -> Iterator[str]:
    tree = ast.parse(source)
    everywhere = identifiers(tree)
    for node in ast.walk(tree):
        if isinstance(node, Function):
            known, section = parameters(node), "Args"
        elif isinstance(node, ast.ClassDef):
            # An inherited attribute may be described where it gets its meaning.
            known, section = everywhere if node.bases else identifiers(node), "Attributes"
        else:
            continue
        for name in entries(ast.get_docstring(node) or "", section):
            if name not in known:
                yield f"{node.lineno}: {node.name} has no {name}"


def test_docstrings_describe_parameters_and_attributes_that_are_there() -> None:
    problems = [
        f"{path.relative_to(ROOT)}:{problem}"
        for top in TOPS
        for path in sorted((ROOT / top).rglob("*.py"))
        for problem in stale(path.read_text())
    ]
    assert not problems, "\n" + "\n".join(problems)


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ('def f(a):\n    """F.\n\n    Args:\n        b: it.\n    """\n', "1: f has no b"),
        (
            'class C:\n    """C.\n\n    Attributes:\n        a, _old: both.\n    """\n\n'
            "    def __init__(self):\n        self.a = self._new = 0\n",
            "1: C has no _old",
        ),
    ],
)
def test_a_name_that_is_gone_is_noticed(source: str, problem: str) -> None:
    assert list(stale(source)) == [problem]
