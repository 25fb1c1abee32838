"""Which credentials a revocation refuses, for how long, and that the list stays small."""

from __future__ import annotations

import dataclasses
from typing import Any

from tailrace.auth import revocation_list
from tailrace.auth.principal import Principal
from tailrace.auth.revocation_list import LONGEST_S, RevocationList
from tailrace.protocol import records
from tests.support import cases, traced

NOW = 1_000_000.0
ALICE = Principal(
    "https://i", "alice", "acme", frozenset(), int(NOW) + 600, int(NOW) - 60, credential="c1"
)


def revoked(number: int = 0, until: int = int(NOW), **named: Any) -> records.Revoked:
    return records.Revoked(f"{number:016x}", "https://i", until, **named)


@cases.each(
    "named",
    [
        {"subject": "alice"},
        {"tenant": "acme"},
        {"credential": "c1"},
        {"subject": "alice", "tenant": "acme"},
        {"subject": "alice", "tenant": "acme", "credential": "c1"},
    ],
)
def test_a_credential_that_carries_all_that_is_named_is_refused(named: dict[str, Any]) -> None:
    known = RevocationList()
    assert known.apply(revoked(**named), NOW)
    assert known.refuses(ALICE)


@cases.each(
    "named",
    [
        {"subject": "bob"},
        {"tenant": "other"},
        {"credential": "c2"},
        {"subject": "alice", "tenant": "other"},
        {"subject": "alice", "credential": "c2"},
        {"subject": "acme"},
        {"tenant": "alice"},
    ],
)
def test_any_other_credential_is_not(named: dict[str, Any]) -> None:
    known = RevocationList()
    known.apply(revoked(**named), NOW)
    assert not known.refuses(ALICE)


def test_equal_names_of_another_issuer_are_not_meant() -> None:
    known = RevocationList()
    known.apply(revoked(subject="alice"), NOW)
    assert not known.refuses(dataclasses.replace(ALICE, issuer="https://j"))


def test_what_is_issued_later_is_let_in() -> None:
    known = RevocationList()
    known.apply(revoked(subject="alice"), NOW)
    assert known.refuses(dataclasses.replace(ALICE, issued_at=int(NOW)))
    assert not known.refuses(dataclasses.replace(ALICE, issued_at=int(NOW) + 1))


def test_a_revocation_reaches_over_the_clocks_differences_and_as_far_ahead_as_asked() -> None:
    assert revocation_list.issued_until(NOW) == NOW + 60
    assert revocation_list.issued_until(NOW, 3600) == NOW + 3600


def test_a_credential_of_unknown_age_is_refused() -> None:
    known = RevocationList()
    known.apply(revoked(subject="alice"), NOW)
    assert known.refuses(Principal("https://i", "alice", None, frozenset(), int(NOW) + 600))


def test_of_two_revocations_the_lifted_one_alone_is_gone() -> None:
    known = RevocationList()
    known.apply(revoked(1, subject="alice"), NOW)
    known.apply(revoked(2, until=int(NOW) - 100, subject="alice"), NOW)
    lifted = records.Revoked(f"{1:016x}", "https://i", int(NOW), subject="alice", lifted=True)
    assert not known.apply(lifted, NOW)
    assert not known.refuses(ALICE), "the other one ends before the credential was issued"
    assert [each.id for each in known] == [f"{2:016x}"]
    assert known.get(f"{1:016x}") is None


def test_the_same_record_twice_is_one() -> None:
    known = RevocationList()
    for _ in range(2):
        known.apply(revoked(subject="alice"), NOW)
    assert len(known) == 1


def test_what_no_credential_can_outlive_is_neither_taken_nor_kept() -> None:
    known = RevocationList()
    assert not known.apply(revoked(until=int(NOW) - LONGEST_S, subject="alice"), NOW)
    for number in range(1_000):
        known.apply(revoked(number, until=int(NOW) - LONGEST_S + 1, subject=f"u{number}"), NOW)
    known.apply(revoked(5_000, subject="alice"), NOW)
    known.forget(NOW + 1)
    assert len(known) == 1
    assert known.refuses(ALICE)
    known.forget(NOW + LONGEST_S)
    assert len(known) == 0


def test_nothing_is_held_of_what_is_over() -> None:
    known = RevocationList()
    with traced.held() as held:
        for number in range(1_000):
            known.apply(revoked(number, subject=f"u{number}"), NOW)
            known.forget(NOW + LONGEST_S)
    assert held.size < 20_000
