"""Writes docs/files.md, the map of the code, from the first line of each module's docstring:
`scripts/filemap.py [--check]`."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "files.md"
TOPS = ("gateway", "push", "worker", "tailrace", "pipelines", "bench", "k8s")
# Folders without a line for each file: a migration's name describes it.
LEFT_OUT = ("tailrace/archive/migrations", "pipelines/examples")
OTHER = (
    ("frontend/", "the chat page and the admin page; its own map is frontend/README.md"),
    ("docker/, k8s/base/, k8s/overlays/", "images and manifests; k8s/validate.py checks them"),
    ("scripts/, locks/, Makefile, .ci/", "gates, test tiers, and installation from locks"),
    ("tests/", "the tiers of tests/README.md; tests/unit/ mirrors the tree"),
    ("locustfile.py", "load: users that converse, drop, resume and cancel, every event judged"),
)
HEADER = """# Files

Every module, with the first line of its docstring. `scripts/filemap.py` writes this file, and
`make check` fails where it is out of date. Start from [design.md](design.md).

<!-- file map: scripts/filemap.py -->
"""
FOOTER = "\n<!-- end of file map -->\n"


# What stands in brackets at the end: "(pure; log rule W1–W7)".
_ASIDE = re.compile(r" \((?:pure|log rule|docs/)[^()]*\)$")


def summary(path: Path) -> str:
    """The first sentence of the docstring's first paragraph, without references at its end."""
    text = (
        (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0].replace("\n", " ")
    )
    return _ASIDE.sub("", text.split(". ")[0].rstrip("."))


def packages() -> Iterator[Path]:
    """Every package with code, a parent before its children."""
    for top in TOPS:
        for init in sorted((ROOT / top).rglob("__init__.py"), key=lambda path: path.parent.parts):
            if not str(init.parent.relative_to(ROOT)).startswith(LEFT_OUT):
                yield init.parent


def render() -> str:
    """The document as Markdown."""
    out = [HEADER]
    for package in packages():
        own = summary(package / "__init__.py")
        out += [f"## {package.relative_to(ROOT)}/", ""]
        if own:
            out += [own[:1].upper() + own[1:] + ".", ""]
        out += [
            f"- `{path.name}`: {summary(path)}"
            for path in sorted(package.glob("*.py"))
            if path.name not in ("__init__.py", "__main__.py")
        ]
        out.append("")
    out += ["## Elsewhere", "", *(f"- `{path}`: {what}" for path, what in OTHER)]
    return "\n".join(out) + FOOTER


def main() -> int:
    """Write the document, or compare it (`--check`). Returns 0 if it is right now."""
    text = render()
    if "--check" in sys.argv[1:]:
        if not DOCUMENT.is_file() or DOCUMENT.read_text() != text:
            sys.stderr.write("docs/files.md: out of date; run scripts/filemap.py\n")
            return 1
        return 0
    DOCUMENT.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
