"""The model engine's environment, its requirements, and the default model."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tailrace.local import paths
from tailrace.local.install_steps import apt, digest, has_stamp, run_logged


def has_gpu() -> bool:
    """Whether an NVIDIA driver works here. The program alone proves nothing."""
    program = shutil.which("nvidia-smi")
    if not program:
        return False
    try:
        listing = subprocess.run(
            [program, "-L"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return listing.returncode == 0 and "GPU" in listing.stdout


def _engine_lock() -> Path:
    kind = "gpu" if has_gpu() else "cpu"
    return paths.ROOT / "locks" / f"requirements-engine-{kind}.lock"


def _version(python: Path) -> str:
    process = subprocess.run(
        [str(python), "-c", "import sys; print(*sys.version_info[:2], sep='.')"],
        capture_output=True,
        text=True,
        check=False,
    )
    return process.stdout.strip()


def _wanted_version() -> str:
    lock = _engine_lock()
    here = ".".join(str(part) for part in sys.version_info[:2])
    return f"{here} {lock.name} {digest(lock, paths.ROOT / 'pyproject.toml')}"


def engine_installed() -> bool:
    """Whether the environment matches the lock file and pyproject.toml."""
    return has_stamp(paths.ENGINE_ENVIRONMENT / "tailrace-stamp", _wanted_version())


def install_environment() -> None:
    """Bring the engine's environment to its lock file, and register this tree in it."""
    uv = paths.ROOT / ".tools" / "bin" / "uv"
    python = paths.ENGINE_ENVIRONMENT / "bin" / "python"
    if not python.exists() or _version(python) != _version(Path(sys.executable)):
        shutil.rmtree(paths.ENGINE_ENVIRONMENT, ignore_errors=True)
        run_logged(
            "engine",
            [
                uv,
                "venv",
                "--quiet",
                "--python",
                Path(sys.executable).resolve(),
                paths.ENGINE_ENVIRONMENT,
            ],
        )
    run_logged(
        "engine", [uv, "pip", "sync", "--require-hashes", "--python", python, _engine_lock()]
    )
    run_logged("engine", [paths.ROOT / "scripts" / "register.sh", paths.ENGINE_ENVIRONMENT])
    (paths.ENGINE_ENVIRONMENT / "tailrace-stamp").write_text(_wanted_version())


def has_numa() -> bool:
    """Whether libnuma is here, which vLLM's CPU build is linked against. Without it, vLLM's
    operators are missing without a message, and the engine fails at the first use of one."""
    if has_gpu():
        return True
    try:
        ctypes.CDLL("libnuma.so.1")
    except OSError:
        return False
    return True


def install_numa() -> None:
    """Install libnuma."""
    apt(
        "libnuma",
        ["libnuma1"],
        (
            "vLLM's CPU build needs libnuma. Ask for: apt-get install libnuma1; or use --engine "
            "with the URL of a server"
        ),
    )


def _model_recipe() -> str:
    """A digest of the recipe: a changed recipe builds the model again."""
    return digest(Path(__file__).with_name("model_build.py"))


def model_present() -> bool:
    """Whether the default model was built by this recipe."""
    return has_stamp(paths.model() / "tailrace-stamp", _model_recipe())


def build_model() -> None:
    """Build the default model in the engine's environment."""
    paths.model().parent.mkdir(parents=True, exist_ok=True)
    environ = {**os.environ, "HF_HUB_OFFLINE": "1"}
    run_logged(
        "model",
        [
            paths.ENGINE_ENVIRONMENT / "bin" / "python",
            "-m",
            "tailrace.local.model_build",
            paths.model(),
        ],
        environ=environ,
    )
    (paths.model() / "tailrace-stamp").write_text(_model_recipe())
