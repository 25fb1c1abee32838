"""`TAILRACE_POOLS`: a YAML file of pools and rules, or the pools themselves as inline JSON."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from tailrace.settings import catalog, kinds
from tailrace.settings.catalog import Catalog


def parse(text: str) -> Catalog:
    """The pools in their order, of a file or of inline JSON. A model or alias names its pool, so
    none may be in two.

    Raises:
        ValueError: the text names the line, or the pool and the member.
    """
    if not text.lstrip().startswith("{"):
        return decode(content(Path(text)), Path(text))
    try:
        return catalog.from_pools(msgspec.json.decode(text))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error)) from error


def content(path: Path) -> bytes:
    """The file's content.

    Raises:
        ValueError: it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise ValueError(error.strerror) from error


def decode(data: bytes, path: Path) -> Catalog:
    """The catalog that a file's content says.

    Raises:
        ValueError: the text names the line, or the pool and the member.
    """
    try:
        value = _Loader(data).get_single_data()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = f"line {mark.line + 1}: " if mark is not None else ""
        raise ValueError(f"{line}{error.problem}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"no YAML: {error}") from error
    return catalog.from_file(value, path)


class _Loader(yaml.SafeLoader):
    """YAML in which no member of a mapping is given twice: the second one would win silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = set()
        for key, _ in node.value:
            if key.value in keys:
                problem = f"{key.value!r} is given twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            keys.add(key.value)
        return super().construct_mapping(node, deep)


POOLS: Final = kinds.Kind("a YAML file of pools, or a JSON object of them", parse, Catalog(()))
