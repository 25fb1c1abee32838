"""The list of pure modules in pyproject.toml is the set of modules that call themselves pure."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SAYS_PURE = re.compile(r"\(pure[;)]|; pure\)")


def modules(root: Path, packages: list[str]) -> Iterator[tuple[str, str]]:
    """Dotted name and docstring of every module below `packages`."""
    for package in packages:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            yield name, ast.get_docstring(ast.parse(path.read_text())) or ""


def differences(listed: list[str], found: dict[str, str]) -> list[str]:
    """What separates the contract's list from the docstrings; empty when they agree."""
    on_list = {
        name
        for name in found
        if any(name == each or name.startswith(f"{each}.") for each in listed)
    }
    pure = {name for name, docstring in found.items() if SAYS_PURE.search(docstring)}
    return (
        [f"{name} says (pure) and is not on the list" for name in sorted(pure - on_list)]
        + [f"{name} is on the list and does not say (pure)" for name in sorted(on_list - pure)]
        + [f"{name} is on the list and does not exist" for name in listed if name not in found]
    )


def test_the_purity_contract_lists_exactly_the_modules_that_say_they_are_pure() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    contract = next(each for each in config["contracts"] if each["name"].startswith("pure modules"))
    found = dict(modules(ROOT, config["root_packages"]))
    assert differences(contract["source_modules"], found) == []


def test_each_kind_of_disagreement_is_named() -> None:
    found = {
        "room": "One (pure).",
        "room.said": "Two\n(pure; see there).",
        "room.silent": "Three.",
        "loner": "Four (a; pure).",
    }
    assert differences(["room", "gone"], found) == [
        "loner says (pure) and is not on the list",
        "room.silent is on the list and does not say (pure)",
        "gone is on the list and does not exist",
    ]
