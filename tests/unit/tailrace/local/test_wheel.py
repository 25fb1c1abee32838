"""An installed wheel works from any folder: it needs no source tree beside it."""

from __future__ import annotations

import os
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
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked wheel, in a folder with nothing else."""
    folder = tmp_path_factory.mktemp("wheel")
    source, wheels, target = folder / "source", folder / "wheels", folder / "site-packages"
    for name in ("gateway", "push", "worker", "tailrace"):
        shutil.copytree(paths.ROOT / name, source / name)
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(paths.ROOT / name, source)
    wheels.mkdir()
    environ = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    subprocess.run(
        [BUILDER, "-W", "ignore", "-c", BUILD, str(wheels)],
        cwd=source,
        env=environ,
        check=True,
        capture_output=True,
    )
    (wheel,) = wheels.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(target)
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


@pytest.mark.parametrize("service", ["gateway", "push", "worker"])
def test_a_service_of_an_installed_wheel_is_complete(
    installed: Path, tmp_path: Path, service: str
) -> None:
    code = f"import {service}.app as app; print(app.__file__)"
    returned, output = call(installed, tmp_path, "-c", code)
    assert returned == 0, output
    assert output.startswith(str(installed))
