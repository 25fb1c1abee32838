"""Installed wheels work from any folder: they need no source tree beside them."""

from __future__ import annotations

import ast
import email
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tailrace.local import paths

BUILDER = paths.ROOT / ".tools" / "bin" / "python"
BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
COMMAND = "from tailrace.cli.main import main; main()"

pytestmark = pytest.mark.skipif(not BUILDER.exists(), reason="no setuptools (make install)")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheels of both distributions, built from a copy of the tree."""
    folder = tmp_path_factory.mktemp("wheel")
    source, built = folder / "source", folder / "wheels"
    for name in ("gateway", "push", "worker", "pipelines", "tailrace"):
        shutil.copytree(paths.ROOT / name, source / name)
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(paths.ROOT / name, source)
    built.mkdir()
    environ = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    for project in (source, source / "pipelines"):
        subprocess.run(
            [BUILDER, "-W", "ignore", "-c", BUILD, str(built)],
            cwd=project,
            env=environ,
            check=True,
            capture_output=True,
        )
    return built


def contents(wheels: Path, distribution: str) -> zipfile.ZipFile:
    (wheel,) = wheels.glob(f"{distribution}-*.whl")
    return zipfile.ZipFile(wheel)


def requirements(wheels: Path, distribution: str) -> list[str]:
    """What its metadata asks for."""
    wheel = contents(wheels, distribution)
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    return email.message_from_bytes(wheel.read(name)).get_all("Requires-Dist", [])


def required(wheels: Path, distribution: str) -> set[str]:
    """The names of what its metadata asks for, extras included."""
    return {
        re.split(r"[^\w.-]", each)[0].lower().replace("_", "-")
        for each in requirements(wheels, distribution)
    }


@pytest.fixture(scope="module")
def installed(wheels: Path) -> Path:
    """The unpacked wheels, in a folder with nothing else."""
    target = wheels.parent / "site-packages"
    for distribution in ("tailrace", "tailrace_pipelines"):
        contents(wheels, distribution).extractall(target)
    return target


def call(installed: Path, folder: Path, *arguments: str) -> tuple[int, str]:
    """Run with the wheel's modules only; the libraries are those of this environment."""
    environ = {
        **os.environ,
        "PYTHONPATH": str(installed),
        "TAILRACE_DATA": str(folder / "data"),
    }
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environ,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["token"], 0, "eyJ"),
        (["ps"], 0, "nothing runs"),
        (["doctor"], None, "the checksums are in the source tree"),
        (["verify"], 2, "name a broker with --kafka"),
        (["pipelines", "--help"], 0, "Answers to the records of a topic"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_commands_work_from_an_installed_wheel(
    installed: Path, tmp_path: Path, arguments: list[str], code: int | None, said: str
) -> None:
    returned, output = call(installed, tmp_path, "-c", COMMAND, *arguments)
    assert said in output
    assert "Traceback" not in output
    assert code in (None, returned)


def test_what_an_installed_wheel_runs_is_complete(installed: Path, tmp_path: Path) -> None:
    modules = ["gateway.app", "push.app", "worker.app", "pipelines.command", "pipelines.view.app"]
    code = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]: print(importlib.import_module(name).__file__)"
    )
    returned, output = call(installed, tmp_path, "-c", code, *modules)
    assert returned == 0, output
    assert output.split() == [str(installed / f"{name.replace('.', '/')}.py") for name in modules]


def test_the_distribution_of_the_product_has_no_pipelines(wheels: Path) -> None:
    folders = {name.split("/")[0] for name in contents(wheels, "tailrace").namelist()}
    assert {name for name in folders if not name.endswith(".dist-info")} == {
        *("gateway", "push", "tailrace", "worker")
    }
    asked = [each for each in requirements(wheels, "tailrace") if "extra ==" not in each]
    assert asked
    assert not [each for each in asked if each.startswith(("jsonschema", "duckdb"))]


def test_the_distribution_of_pipelines_has_every_file_of_its_folder(wheels: Path) -> None:
    folder = paths.ROOT / "pipelines"
    tree = {
        str(path.relative_to(paths.ROOT))
        for path in folder.rglob("*.*")
        if path.is_file() and path.suffix != ".pyc" and path.name != "pyproject.toml"
    }
    names = contents(wheels, "tailrace_pipelines").namelist()
    assert {name for name in names if ".dist-info/" not in name} == tree


def test_pipelines_ask_for_the_product_of_their_version_and_for_what_they_import(
    wheels: Path,
) -> None:
    (product,) = wheels.glob("tailrace-*.whl")
    asked = requirements(wheels, "tailrace_pipelines")
    assert f"tailrace=={product.name.split('-')[1]}" in asked
    known = importlib.metadata.packages_distributions()
    imported = {
        name.lower().replace("_", "-")
        for module in imports(paths.ROOT / "pipelines") - sys.stdlib_module_names - {"pipelines"}
        for name in known[module]
    }
    assert imported <= required(wheels, "tailrace") | required(wheels, "tailrace_pipelines")


def imports(folder: Path) -> set[str]:
    """Names of the packages that modules below a folder import."""
    nodes = [
        node for path in folder.rglob("*.py") for node in ast.walk(ast.parse(path.read_bytes()))
    ]
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.split(".")[0] for name in names}
