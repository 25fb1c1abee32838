"""Writes the close codes into frontend/src/core/closeCodes.ts and docs/protocol.md from
`tailrace/protocol/close_codes.py`: `scripts/close_codes.py [--check]`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # also when the package is not installed

from tailrace.protocol.close_codes import TABLE, Reconnect  # noqa: E402

TYPESCRIPT = ROOT / "frontend" / "src" / "core" / "closeCodes.ts"
DOCUMENT = ROOT / "docs" / "protocol.md"
BEGIN, END = "<!-- close codes: scripts/close_codes.py -->", "<!-- end of close codes -->"

DOES = {
    Reconnect.NEVER: "does not come back",
    Reconnect.RESUME: "comes back and resumes",
    Reconnect.NEW_CREDENTIAL: "comes back with a new credential and resumes",
}


def typescript() -> str:
    """The codes of `/v1/watch`, which the page receives, as a TypeScript module."""
    rows = [
        f"  {int(code)}: {{ reason: {json.dumps(row.reason)}, "
        f"reconnect: {json.dumps(row.reconnect.value)} }},"
        for code, row in sorted(TABLE.items())
        if row.on_watch
    ]
    return "\n".join(
        [
            "/* Written by scripts/close_codes.py from tailrace/protocol/close_codes.py. */",
            "",
            "export type Reconnect = " + " | ".join(json.dumps(r.value) for r in Reconnect) + ";",
            "",
            "export interface CloseCode {",
            "  readonly reason: string;",
            "  readonly reconnect: Reconnect;",
            "}",
            "",
            "/** The codes that `/v1/watch` sends. */",
            "export const CLOSE_CODES: Readonly<Record<number, CloseCode>> = {",
            *rows,
            "};",
            "",
        ]
    )


def markdown() -> str:
    """The codes of both sockets as a table of the protocol document."""
    rows = [
        f"| {row.reason.partition(',')[0]} | {int(code) if row.on_watch else '–'} "
        f"| {int(row.on_responses)} | {DOES[row.reconnect]} |"
        for code, row in sorted(TABLE.items())
    ]
    return "\n".join(
        [
            BEGIN,
            "",
            "| cause | `/v1/watch` | `/v1/responses` | a client |",
            "|---|---|---|---|",
            *rows,
            "",
            END,
        ]
    )


def main() -> int:
    """Write both files, or compare them (`--check`). Returns 0 if they are right now."""
    text = DOCUMENT.read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        sys.stderr.write(f"{DOCUMENT.name}: the markers of the close codes are missing\n")
        return 1
    document = {DOCUMENT: before + markdown() + after, TYPESCRIPT: typescript()}
    stale = [
        path
        for path, content in document.items()
        if not path.exists() or path.read_text() != content
    ]
    if "--check" in sys.argv[1:]:
        for path in stale:
            sys.stderr.write(f"{path.relative_to(ROOT)}: out of date; run scripts/close_codes.py\n")
        return int(bool(stale))
    for path in stale:
        path.write_text(document[path])
    return 0


if __name__ == "__main__":
    sys.exit(main())
