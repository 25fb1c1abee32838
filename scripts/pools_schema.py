"""Writes docs/pools.schema.json, the schema of the file that TAILRACE_POOLS names, from
`tailrace.settings.catalog`: `scripts/pools_schema.py [--check]`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # also when the package is not installed

from tailrace.settings import catalog  # noqa: E402

DOCUMENT = ROOT / "docs" / "pools.schema.json"


def render() -> str:
    """The schema as JSON."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Pools of Tailrace (TAILRACE_POOLS)",
        **msgspec.json.schema(catalog.CatalogShape),
    }
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def main() -> int:
    """Write the document, or compare it (`--check`). Returns 0 if it is right now."""
    wanted = render()
    if "--check" in sys.argv[1:]:
        if not DOCUMENT.exists() or DOCUMENT.read_text() != wanted:
            sys.stderr.write("docs/pools.schema.json: out of date; run scripts/pools_schema.py\n")
            return 1
        return 0
    DOCUMENT.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
