"""The tree of a conversation: rules, and properties of any history."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.protocol import conversations, ids, records
from tailrace.verify import conversation_fold
from tests.support import cases

ALICE = records.Owner("i", "alice")
BOB = records.Owner("i", "bob")
C = ids.mint(ids.Address(bytes(4), 1, 0), bytes(11), conversations.PREFIX)

Act = conversations.Act


def turn(node: str, parent: str | None = None, **more: Any) -> conversations.Turn:
    return conversations.Turn(C, ALICE, node, parent, **more)


def created(**more: Any) -> conversations.Created:
    return conversations.Created(C, ALICE, 100, **more)


def folded(*acts: Act) -> conversations.Conversation:
    found = conversations.Conversation(C)
    for n, act in enumerate(acts):
        found.apply(act, 1_000 + n)
    return found


def test_turns_follow_the_head() -> None:
    found = folded(created(), turn("a"), turn("b", "a"))
    assert found.path() == ["a", "b"]
    assert (found.created_at, found.updated_ms) == (100, 1_002)


def test_of_two_that_follow_one_node_the_first_in_the_log_counts() -> None:
    found = folded(created(), turn("a"), turn("b", "a"), turn("c", "a"))
    assert found.path() == ["a", "b"]
    assert "c" not in found.nodes


def test_a_branch_follows_any_node_that_is_there() -> None:
    found = folded(created(), turn("a"), turn("b", "a"), turn("c", "a", branch=True))
    assert found.path() == ["a", "c"]
    assert set(found.nodes) == {"a", "b", "c"}
    assert not found.apply(turn("d", "unknown", branch=True), 0)


def test_another_head_is_chosen() -> None:
    chosen = conversations.Chosen(C, ALICE, "a")
    found = folded(created(), turn("a"), turn("b", "a"), chosen, turn("c", "a"))
    assert found.path() == ["a", "c"]
    assert not found.apply(conversations.Chosen(C, ALICE, "x"), 0)
    assert not found.apply(conversations.Chosen(C, ALICE, "b", was="a", only=True), 0)
    assert found.apply(conversations.Chosen(C, ALICE, "b", was="c", only=True), 0)
    assert found.apply(conversations.Chosen(C, ALICE), 0)
    assert found.path() == []


def test_nothing_is_accepted_before_a_conversation_and_after_it() -> None:
    found = folded(turn("a"))
    assert found == conversations.Conversation(C)
    found = folded(created(), turn("a"), conversations.Gone(C, ALICE), turn("b", "a"))
    assert found == conversations.Conversation(C, gone={ALICE.key})


def test_of_several_that_make_it_the_first_counts_and_none_behind_its_end() -> None:
    first, late = created(attempt="1", title="one"), created(attempt="2", title="two")
    found = folded(first, turn("a"), late)
    assert (found.title, found.attempt, found.head) == ("one", "1", "a")
    gone = conversations.Gone(C, ALICE)
    for before in ([first, gone], [gone]):
        assert folded(*before, late) == conversations.Conversation(C, gone={ALICE.key})
    other = conversations.Gone(C, BOB)
    assert folded(first, other).title == "one"
    assert folded(other, first).title == "one"


def test_nobody_else_changes_it() -> None:
    others = (
        conversations.Gone(C, BOB),
        conversations.Changed(C, BOB, title="x"),
        conversations.Turn(C, BOB, "b", "a"),
        conversations.Chosen(C, BOB),
        conversations.Removed(C, BOB, "i"),
        conversations.Shared(C, BOB, "s", "a", 1, 2),
        conversations.Item(C, BOB, "i", {}),
        conversations.Created(C, BOB, 1),
    )
    assert folded(created(), turn("a"), *others) == folded(created(), turn("a"))


def test_items_are_added_and_removed() -> None:
    added = conversations.Added(C, ALICE, "n", ["i", "j"])
    found = folded(
        created(),
        conversations.Item(C, ALICE, "i", {"x": 1}),
        conversations.Item(C, ALICE, "j", {"x": 2}),
        added,
        conversations.Removed(C, ALICE, "i"),
    )
    assert found.nodes["n"].items == ("i", "j")
    assert (found.contents, found.removed) == ({"j": {"x": 2}}, {"i"})
    assert not found.apply(conversations.Item(C, ALICE, "i", {"x": 3}), 0), "a late copy"
    assert not found.apply(conversations.Added(C, ALICE, "m", [], "n"), 0), "no items"


def shared(share: str, head: str, **more: Any) -> conversations.Shared:
    return conversations.Shared(C, ALICE, share, head, 100, 200, **more)


def test_a_link_leads_to_a_node_until_it_is_revoked() -> None:
    found = folded(created(), turn("a"), shared("s", "a", title="t"), turn("b", "a"))
    assert found.shares == {"s": conversations.Share("a", "t", 100, 200)}
    assert (found.path_to("a"), found.path()) == (["a"], ["a", "b"])
    assert not found.apply(shared("x", "unknown"), 0)
    assert found.apply(conversations.Unshared(C, ALICE, "s"), 0)
    assert not found.apply(conversations.Unshared(C, ALICE, "s"), 0)
    assert found.shares == {}


def test_a_link_is_gone_with_its_conversation() -> None:
    gone = conversations.Gone(C, ALICE)
    left = conversations.Conversation(C, gone={ALICE.key})
    assert folded(created(), turn("a"), shared("s", "a"), gone) == left


def test_what_is_done_to_a_copy_is_not_done_to_the_conversation() -> None:
    found = folded(created(), turn("a"), shared("s", "a"))
    found.copy().apply(conversations.Unshared(C, ALICE, "s"), 0)
    assert set(found.shares) == {"s"}


def test_there_is_a_most_of_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversations, "MAX_NODES", 2)
    found = folded(created(), turn("a"), turn("b", "a"), turn("c", "b"))
    assert found.head == "b"


@cases.each(
    ("key", "value"),
    [
        (C, b"no JSON"),
        (C, b'{"t":"CONVERSATION"}'),
        (C + ":title", conversations.encode(created())),
        (C, conversations.encode(turn("a"))),
        (C, conversations.encode(created(attempt="1"))),
        (f"{C}:c:", conversations.encode(created())),
        (f"{C}:c:2", conversations.encode(created(attempt="1"))),
        (f"{C}:n:b", conversations.encode(turn("a"))),
        (f"{C}:p:", conversations.encode(conversations.Chosen(C, ALICE))),
        (f"{C}:None", conversations.encode(conversations.Changed(C, ALICE))),
        (f"{C}:title", conversations.encode(conversations.Changed(C, ALICE, {}, "a"))),
        (f"{C}:n:a", conversations.encode(msgspec.structs.replace(turn("a"), v=9))),
        (f"{C}:s:t", conversations.encode(shared("s", "a"))),
        (f"{C}:n:a", None),
        (f"{C}:i:a", b'{"t":"ITEM","id":"x","item":"a","content":' + b"[" * 99 + b"]" * 99 + b"}"),
    ],
)
def test_garbage_is_no_act(key: str, value: bytes | None) -> None:
    assert conversations.decode(key.encode(), value) is None


NODES = "abcdef"
_acts = st.one_of(
    st.builds(created, title=st.sampled_from(["", "t"]), attempt=st.sampled_from(["", "1", "2"])),
    st.builds(
        turn,
        st.sampled_from(NODES),
        st.sampled_from([None, *NODES]),
        branch=st.booleans(),
    ),
    st.builds(
        conversations.Added,
        st.just(C),
        st.just(ALICE),
        st.sampled_from(NODES),
        st.lists(st.sampled_from("ij"), max_size=2),
        st.sampled_from([None, *NODES]),
        st.booleans(),
    ),
    st.builds(
        conversations.Chosen,
        st.just(C),
        st.sampled_from([ALICE, BOB]),
        st.sampled_from([None, *NODES]),
        st.sampled_from([None, *NODES]),
        st.booleans(),
    ),
    st.builds(conversations.Changed, st.just(C), st.just(ALICE), title=st.sampled_from("xyz")),
    st.builds(conversations.Changed, st.just(C), st.just(ALICE), pinned=st.booleans()),
    st.builds(
        conversations.Changed, st.just(C), st.sampled_from([ALICE, BOB]), st.just({"a": "b"})
    ),
    st.builds(conversations.Item, st.just(C), st.just(ALICE), st.sampled_from("ij"), st.just({})),
    st.builds(conversations.Removed, st.just(C), st.just(ALICE), st.sampled_from("ij")),
    st.builds(conversations.Gone, st.just(C), st.just(ALICE)),
    st.builds(
        conversations.Shared,
        *(st.just(C), st.sampled_from([ALICE, BOB]), st.sampled_from("st")),
        *(st.sampled_from(NODES), st.just(1), st.just(2)),
    ),
    st.builds(
        conversations.Unshared,
        *(st.just(C), st.sampled_from([ALICE, BOB]), st.sampled_from("st")),
    ),
)
# A key is written once, but for that of attributes, of the conversation itself, and of a link that
# is revoked.
_histories = st.lists(_acts, max_size=25).map(lambda acts: [created(), *_written_once(acts)])


def _written_once(acts: list[Act]) -> list[Act]:
    seen, found = set[str](), []
    for act in acts:
        at = conversations.key(act, "r")
        once = conversations.Turn | conversations.Added | conversations.Shared
        if isinstance(act, once) or ":c:" in at:
            if at in seen:
                continue
            seen.add(at)
        found.append(act)
    return found


def _keyed(acts: list[Act]) -> list[tuple[str, Act, int]]:
    return [(conversations.key(a, f"r{n}"), a, 1_000 + n) for n, a in enumerate(acts)]


def _fold(history: list[tuple[str, Act, int]]) -> conversations.Conversation:
    found = conversations.Conversation(C)
    for key, act, at in history:
        read = conversations.decode(key.encode(), conversations.encode(act))
        assert read == act
        found.apply(read, at)
    return found


@settings(max_examples=400, deadline=None)
@given(_histories)
def test_it_is_a_tree(acts: list[Act]) -> None:
    found = _fold(_keyed(acts))
    path = found.path()  # it ends
    assert len(path) == len(set(path))
    assert not path or path[-1] == found.head
    before = set[str | None]({None})
    for node, each in found.nodes.items():
        assert each.parent in before
        before.add(node)


@settings(max_examples=400, deadline=None)
@given(_histories, st.booleans(), st.randoms(use_true_random=False))
def test_compaction_changes_nothing(acts: list[Act], attempts: bool, chance: random.Random) -> None:
    """Of what gateways write: a conversation is created once, or by attempts, which may come at any
    time; else only its owner's acts, until it is gone."""
    mine: list[Act] = [created(attempt="0", title="first") if attempts else acts[0]]
    there = True
    for act in acts[1:]:
        if isinstance(act, conversations.Created):
            good = attempts and bool(act.attempt)
        else:
            good = there and act.by == ALICE
        mine += [act] if good else []
        there = there and not isinstance(act, conversations.Gone)
    history = _keyed(mine)
    last = {key: n for n, (key, _, _) in enumerate(history)}
    kept = [
        each
        for n, each in enumerate(history)
        if last[each[0]] == n or chance.random() < 0.5  # the cleaner has not come that far
    ]
    assert _fold(kept) == _fold(history)


@settings(max_examples=400, deadline=None)
@given(_histories)
def test_both_folds_accept_the_same(acts: list[Act]) -> None:
    history = _keyed(acts)
    found = _fold(history)
    judged = conversation_fold.fold(
        [(key.encode(), conversations.encode(act)) for key, act, _ in history]
    )
    assert judged.get(C, conversation_fold.NONE).nodes == {
        node: each.parent for node, each in found.nodes.items()
    }
    assert judged.get(C, conversation_fold.NONE).head == found.head
    assert judged.get(C, conversation_fold.NONE).removed == found.removed
    assert judged.get(C, conversation_fold.NONE).shares == {
        share: each.head for share, each in found.shares.items()
    }
