"""A second fold of `llm.conversations`, for the judge (docs/design/history.md; pure).

It has another shape than `tailrace.protocol.conversations`: it reads plain JSON, and for each
conversation it stores the list of all former heads.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

MOST_NODES: Final = 10_000


@dataclass(slots=True)
class Tree:
    """A conversation.

    Attributes:
        owner: as the records name it; None: there is none, or the conversation was deleted.
        nodes: the parent of each accepted node, in the order of the log.
        heads: all that there were; the last one is the head.
        turns: owner and `until` of the accepted turns, by response id.
        shares: the node that each link which was not revoked leads to.
    """

    owner: Any = None
    nodes: dict[str, str | None] = field(default_factory=dict)
    heads: list[str | None] = field(default_factory=lambda: [None])
    removed: set[str] = field(default_factory=set)
    turns: dict[str, int] = field(default_factory=dict)
    shares: dict[str, str] = field(default_factory=dict)

    @property
    def head(self) -> str | None:
        return self.heads[-1]


NONE: Final = Tree()


def fold(records: Iterable[tuple[bytes | None, bytes | None]]) -> dict[str, Tree]:
    """Trees by conversation, of the keys and values of one partition in order."""
    trees: dict[str, Tree] = {}
    deletions: list[tuple[str, Any]] = []
    for key, value in records:
        name, act = _read(key, value)
        if act is None:
            if name and value is None and (key or b"").decode(errors="replace") == name:
                trees.pop(name, None)
            continue
        tree = trees.get(name)
        if act["t"] == "CONVERSATION":
            if tree is None and (name, act["by"]) not in deletions:
                trees[name] = Tree(act["by"])
        elif act["t"] == "GONE" and (tree is None or act["by"] == tree.owner):
            trees.pop(name, None)
            deletions.append((name, act["by"]))
        elif tree is None or act["by"] != tree.owner:
            continue
        else:
            _apply(tree, act)
    return trees


def _apply(tree: Tree, act: dict[str, Any]) -> None:
    kind = act["t"]
    if kind in ("TURN", "ADDED"):
        node, parent = act["node"], act.get("parent")
        there = {None, *tree.nodes}
        if (
            node not in there
            and parent in (there if act.get("branch") else {tree.head})
            and (kind == "TURN" or act["items"])
            and len(tree.nodes) < MOST_NODES
        ):
            tree.nodes[node] = parent
            tree.heads.append(node)
            if kind == "TURN":
                tree.turns[node] = act.get("until", 0)
    elif kind == "CHOSEN":
        head = act.get("head")
        if head in {None, *tree.nodes} and (not act.get("only") or act.get("was") == tree.head):
            tree.heads.append(head)
    elif kind == "REMOVED":
        tree.removed.add(act["item"])
    elif kind == "UNSHARED":
        tree.shares.pop(act["share"], None)
    elif kind == "SHARED" and act.get("head") in tree.nodes:
        tree.shares[act["share"]] = act["head"]


def _read(key: bytes | None, value: bytes | None) -> tuple[str, dict[str, Any] | None]:
    """The conversation to which a record belongs, and the record; None for one without effect."""
    text = (key or b"").decode(errors="replace")
    name, _, rest = text.partition(":")
    if not name.startswith("conv_"):
        return "", None
    try:
        act = json.loads(value or b"null")
    except (ValueError, RecursionError):
        return name, None
    if not isinstance(act, dict) or act.get("id") != name or act.get("v", 1) != 1:
        return name, None
    kind = act.get("t")
    if kind == "CONVERSATION" and act.get("attempt"):
        good = rest == f"c:{act['attempt']}"
    elif kind in ("CONVERSATION", "GONE"):
        good = not rest
    elif kind in ("TURN", "ADDED"):
        good = rest == f"n:{act.get('node')}"
    elif kind == "CHOSEN":
        good = rest.startswith("p:") and len(rest) > 2
    elif kind in ("SHARED", "UNSHARED"):
        good = rest == f"s:{act.get('share')}"
    else:
        good = kind == "REMOVED" and rest == f"d:{act.get('item')}"
    return name, act if good and isinstance(act.get("by"), dict) else None
