"""Writes the JSON schemas of the files that users write: docs/pools.schema.json, of the file that
TAILRACE_POOLS names, and docs/pipelines.schema.json, of a pipeline: `scripts/schemas.py
[--check]`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # also when the package is not installed

from pipelines import definition  # noqa: E402
from tailrace.settings import catalog  # noqa: E402


def pools() -> dict[str, Any]:
    """The schema of a file of pools."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Pools of Tailrace (TAILRACE_POOLS)",
        **msgspec.json.schema(catalog.CatalogShape),
    }


DOCUMENTS = {"pools.schema.json": pools, "pipelines.schema.json": definition.schema}


def main() -> int:
    """Write the documents, or compare them (`--check`). Returns 0 if they are right now."""
    wrong = 0
    for name, schema in DOCUMENTS.items():
        document = ROOT / "docs" / name
        content = json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"
        if "--check" not in sys.argv[1:]:
            document.write_text(content)
        elif not document.exists() or document.read_text() != content:
            sys.stderr.write(f"docs/{name}: out of date; run scripts/schemas.py\n")
            wrong = 1
    return wrong


if __name__ == "__main__":
    sys.exit(main())
