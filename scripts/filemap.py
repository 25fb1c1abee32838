"""Writes the file map of docs/design.md from the first line of each module's docstring:
`scripts/filemap.py [--check]`."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = (
    "gateway",
    "gateway/parsing",
    "push",
    "worker",
    "worker/engines",
    "pipelines",
    "tailrace",
    *(
        f"tailrace/{room}"
        for room in (
            "protocol",
            "prompts",
            "log",
            "store",
            "auth",
            "telemetry",
            "delivery",
            "connections",
            "web",
            "cli",
            "local",
            "verify",
            "settings",
            "archive",
        )
    ),
    "pipelines/analytics",
    "pipelines/sinks",
    "pipelines/view",
    "bench",
    "k8s/gate",
)
OTHER = (
    ("frontend/", "the chat page and the admin page; its own map is frontend/README.md"),
    ("k8s/, docker/", "manifests and images, held against the code by k8s/validate.py"),
    (
        "locks/, scripts/, Makefile, .ci/",
        "installation from locks with hashes, the gates, the test tiers",
    ),
    (
        "tests/",
        (
            "unit (mirrors the tree), model (second fold, bounded search), contract, services, "
            "journey, attacks, faults; support"
        ),
    ),
    ("locustfile.py", "load: users that converse, drop, resume and cancel, every event judged"),
)
BEGIN, END = "<!-- file map: scripts/filemap.py -->", "<!-- end of file map -->"


def summary(path: Path) -> str:
    """The first sentence of the docstring's first paragraph."""
    text = (
        (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0].replace("\n", " ")
    )
    first = text.split(". ")[0]
    return first.rstrip(".").replace("|", "\\|")


def render() -> str:
    """The file map as Markdown."""
    out = [BEGIN]
    for package in PACKAGES:
        own = summary(ROOT / package / "__init__.py")
        out += [
            "",
            f"**{package}/** {own[:1].lower() + own[1:]}",
            "",
            "| file | what it is |",
            "|---|---|",
        ]
        modules = sorted(
            p for p in (ROOT / package).glob("*.py") if p.name not in ("__init__.py", "__main__.py")
        )
        out += [f"| {p.name} | {summary(p)} |" for p in modules]
    out += [
        "",
        "**Elsewhere**",
        "",
        "| path | what it is |",
        "|---|---|",
        *(f"| {path} | {what} |" for path, what in OTHER),
        "",
        END,
    ]
    return "\n".join(out)


def main() -> int:
    """Write the document, or compare it (`--check`). Returns 0 if it is right now."""
    path = ROOT / "docs/design.md"
    text = path.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    wanted = before + render() + after
    if "--check" in sys.argv[1:]:
        if wanted != text:
            sys.stderr.write(
                "docs/design.md: the file map is out of date; run scripts/filemap.py\n"
            )
            return 1
        return 0
    path.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
