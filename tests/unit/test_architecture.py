"""The contracts in pyproject.toml: each layers contract catches an import that runs upwards, and
the list of pure modules is the set of modules that call themselves pure."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grimp

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


def layers(contract: dict[str, Any]) -> list[grimp.Layer]:
    """As grimp wants them: modules that are divided by `|` do not know each other."""
    return [
        grimp.Layer(*(name.strip() for name in line.split("|")), independent=True)
        for line in contract["layers"]
    ]


def illegal(graph: grimp.ImportGraph, contract: dict[str, Any]) -> bool:
    return bool(
        graph.find_illegal_dependencies_for_layers(
            layers=layers(contract), containers=set(contract.get("containers", []))
        )
    )


def planted(contract: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Imports that the contract must catch: from its lowest floor to its highest, and between two
    modules of each floor."""
    prefix = f"{contract['containers'][0]}." if "containers" in contract else ""
    floors = [[prefix + name.strip() for name in line.split("|")] for line in contract["layers"]]
    yield floors[-1][0], floors[0][0]
    for floor in floors:
        if len(floor) > 1:
            yield floor[0], floor[1]


def test_each_layers_contract_catches_an_import_that_runs_upwards() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    graph = grimp.build_graph(*config["root_packages"], cache_dir=None)
    contracts = [each for each in config["contracts"] if each["type"] == "layers"]
    assert len(contracts) > 15
    missed = []
    for contract in contracts:
        assert not illegal(graph, contract), contract["name"]
        for importer, imported in planted(contract):
            graph.add_import(importer=importer, imported=imported)
            if not illegal(graph, contract):
                missed.append(f"{contract['name']}: {importer} -> {imported}")
            graph.remove_import(importer=importer, imported=imported)
    assert missed == []


def test_every_file_of_a_room_stands_on_one_floor_of_its_contract() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    for contract in config["contracts"]:
        for container in contract.get("containers", []):
            folder = ROOT / container.replace(".", "/")
            there = {path.stem for path in folder.glob("*.py")} - {"__init__"}
            there |= {path.parent.name for path in folder.glob("*/__init__.py")}
            listed = [name.strip() for line in contract["layers"] for name in line.split("|")]
            assert sorted(listed) == sorted(there), contract["name"]
