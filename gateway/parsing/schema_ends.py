"""Whether the texts of a schema come to an end (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

Need = tuple[int, tuple[int, ...]]  # at least this number of these schemas must end


def circle(same: Mapping[int, tuple[int, ...]]) -> int | None:
    """A schema that refers to itself at one level; None if there is none.

    Args:
        same: schema → the schemas that its value must also match.
    """
    counts: dict[int, int] = {}
    for targets in same.values():
        for target in targets:
            counts[target] = counts.get(target, 0) + 1
    free = [each for each in same if not counts.get(each)]
    remaining = dict(same)
    while free:
        for target in remaining.pop(free.pop()):
            counts[target] -= 1
            if not counts[target] and target in remaining:
                free.append(target)
    return next(iter(remaining), None)


def endless(needs: Mapping[int, Iterable[Need]]) -> Iterable[int]:
    """The schemas that no finite text matches.

    Args:
        needs: of each schema. It ends when all its needs are met.
    """
    waiting: dict[int, list[list[int]]] = {}  # schema → open needs that count it
    unmet = dict.fromkeys(needs, 0)
    for schema, wanted in needs.items():
        for least, inner in wanted:
            unmet[schema] += 1
            need = [least, schema]
            for each in inner:
                waiting.setdefault(each, []).append(need)
    ready = [schema for schema, number in unmet.items() if not number]
    while ready:
        schema = ready.pop()
        del unmet[schema]
        for need in waiting.get(schema, ()):
            need[0] -= 1
            if need[0] == 0:
                unmet[need[1]] -= 1
                if not unmet[need[1]]:
                    ready.append(need[1])
    return unmet
