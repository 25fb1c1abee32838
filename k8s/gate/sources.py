"""The source files contain no secret. Kustomize itself refuses duplicate keys."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from k8s.gate.manifests import Verdict, verdict_on

HERE = Path(__file__).resolve().parents[1]
_SECRET = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----|^kind: Secret\b|://[^/\s:@]+:[^@\s{]+@", re.MULTILINE
)
_SUFFIXES = {".yaml", ".yml", ".env", ".conf", ".json"}


def secret_free(file: Path, text: str) -> Verdict:
    match = _SECRET.search(text)
    return verdict_on(
        file.relative_to(HERE).as_posix(),
        not match,
        f"looks like a secret: {match and match[0][:40]}",
    )


def check() -> Iterator[tuple[str, Verdict]]:
    for file in sorted(f for f in HERE.rglob("*") if f.suffix in _SUFFIXES):
        yield "no secret in the files", secret_free(file, file.read_text())
