"""The files as they are written: style, doubled keys, and nothing secret committed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from yamllint import linter  # type: ignore[import-untyped]
from yamllint.config import YamlLintConfig  # type: ignore[import-untyped]

from k8s.gate.manifests import Verdict

HERE = Path(__file__).resolve().parents[1]
_SECRET = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----|^kind: Secret\b|://[^/\s:@]+:[^@\s{]+@", re.MULTILINE
)


def yaml_files() -> list[Path]:
    return sorted(f for f in HERE.rglob("*") if f.suffix in {".yaml", ".yml"})


def lint(file: Path, text: str) -> Verdict:
    config = YamlLintConfig(file=str(HERE / ".yamllint"))
    problems = [
        f"{p.line}: {p.desc}"
        for p in linter.run(text, config, str(file))
        if p.level in {"error", "warning"}
    ]
    return Verdict(file.relative_to(HERE).as_posix(), "; ".join(problems[:5]))


def secret_free(file: Path, text: str) -> Verdict:
    found = _SECRET.search(text)
    return Verdict(
        file.relative_to(HERE).as_posix(), f"looks like a secret: {found[0][:40]}" if found else ""
    )


def check() -> Iterator[tuple[str, Verdict]]:
    for file in yaml_files():
        yield "YAML style", lint(file, file.read_text())
    for file in sorted(
        f for f in HERE.rglob("*") if f.suffix in {".yaml", ".yml", ".env", ".conf", ".json"}
    ):
        yield "no secret in the files", secret_free(file, file.read_text())
