"""Writes the settings into docs/operations.md from `tailrace/settings`:
`scripts/settings_table.py [--check]`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # also when the package is not installed

from tailrace.settings import catalog, shapes, table  # noqa: E402

DOCUMENT = ROOT / "docs" / "operations.md"
BEGIN, END = "<!-- settings: scripts/settings_table.py -->", "<!-- end of settings -->"


def render() -> str:
    """The variables, and the members of JSON variables, as Markdown."""
    return "\n".join(
        [
            BEGIN,
            "",
            "| variable | read by | value | default | meaning |",
            "|---|---|---|---|---|",
            *(_variable(row) for row in table.VARIABLES),
            "",
            "`TAILRACE_POOLS` names a YAML file with the members `pools` (by name) and `auto` (a "
            "list of rules). A pool has these members:",
            "",
            *_members(shapes.PoolShape),
            "",
            "A rule of `auto` matches a request that meets all of its conditions:",
            "",
            *_members(catalog.Rule),
            "",
            "`TAILRACE_LIMITS` is a JSON object with any of these members:",
            "",
            *_members(shapes.Limits),
            "",
            END,
        ]
    )


def _variable(row: table.Variable) -> str:
    readers = "services" if row.readers == table.SERVICES else ", ".join(row.readers)
    if row.readers == table.EVERYWHERE:
        readers = "all"
    value = row.kind.expected.removeprefix("a whole number from ").removeprefix("a ")
    value += f" {row.unit}" if row.unit else ""
    meaning = row.meaning + (" (secret)" if row.secret else "")
    return f"| `{row.name}` | {readers} | {value} | {_default(row)} | {_cell(meaning)} |"


def _default(row: table.Variable) -> str:
    if row.shown_default:
        return row.shown_default
    if row.default is None:
        return "required"
    if isinstance(row.default, str):
        return f"`{row.default}`" if row.default else ""
    texts = set(row.default.values())
    if len(texts) == 1:
        return f"`{texts.pop()}`"
    return ", ".join(f"{reader} `{text}`" for reader, text in row.default.items())


def _members(shape: type[msgspec.Struct]) -> list[str]:
    rows = ["| member | default | meaning |", "|---|---|---|"]
    info = msgspec.inspect.type_info(shape)
    assert isinstance(info, msgspec.inspect.StructType)
    for member in info.fields:
        default = "required" if member.required else f"`{_value(_default_of(member))}`"
        rows.append(f"| `{member.name}` | {default} | {_cell(_description(member.type))} |")
    return rows


def _description(kind: Any) -> str:
    if isinstance(kind, msgspec.inspect.Metadata):
        return str((kind.extra_json_schema or {}).get("description", ""))
    return ""


def _default_of(member: msgspec.inspect.Field) -> Any:
    if member.default_factory is not msgspec.NODEFAULT:
        return member.default_factory()
    return member.default


def _value(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        return msgspec.json.encode(value).decode()
    return f"{value:g}" if isinstance(value, float) and value < 1e6 else f"{value:.0f}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> int:
    """Write the document, or compare it (`--check`). Returns 0 if it is right now."""
    text = DOCUMENT.read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        sys.stderr.write(f"{DOCUMENT.name}: the markers of the settings are missing\n")
        return 1
    document = before + render() + after
    if "--check" in sys.argv[1:]:
        if document != text:
            sys.stderr.write(
                "docs/operations.md: the settings are out of date; run scripts/settings_table.py\n"
            )
            return 1
        return 0
    DOCUMENT.write_text(document)
    return 0


if __name__ == "__main__":
    sys.exit(main())
