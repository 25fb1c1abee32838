"""All interleavings of a few unlucky workers keep the rule; without any one of its ingredients some
interleaving breaks it, and is found."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tailrace.protocol import fold, records
from tests.model import search
from tests.support import cases

SMALL = search.Setting(workers=2, claims=1, tokens=2, doubles=1, losses=1, cancels=1)
USUAL = search.Setting(workers=2, claims=2, tokens=2, doubles=1, losses=1, cancels=1)
SETTINGS = [
    USUAL,
    search.Setting(workers=3, claims=1, tokens=2, doubles=1),
    search.Setting(workers=2, claims=1, tokens=3, doubles=2, losses=1),
    search.Setting(workers=2, claims=3, tokens=2),
]
# Of two models: the second continues the text of the first, or the first that of the second.
MODELS = search.Setting(workers=2, claims=2, tokens=3, doubles=1, losses=1, models=(0, 1))
FEWER = search.Setting(workers=2, claims=2, tokens=2, doubles=1, losses=1, models=(0, 1))
# The same kinds with more of everything.
LARGE = [
    search.Setting(workers=2, claims=2, tokens=3, doubles=2, losses=1, cancels=1),
    search.Setting(workers=3, claims=1, tokens=3, doubles=2, losses=1, cancels=1),
    search.Setting(workers=2, claims=3, tokens=2, losses=1),
    MODELS,
]


def name(setting: search.Setting) -> str:
    return (
        f"{setting.workers} workers x {setting.claims} claims, {setting.tokens} tokens, "
        f"{setting[3:]}"
    )


@pytest.mark.parametrize(
    "setting",
    [
        *SETTINGS,
        FEWER,
        *(pytest.param(setting, marks=pytest.mark.nightly) for setting in LARGE),
    ],
    ids=name,
)
def test_no_interleaving_breaks_the_rule(setting: search.Setting) -> None:
    found = search.Search(setting)
    found.run()
    print(f"{found.states} states, {sum(found.outcomes.values())} distinct arrivals")
    reached = set(found.outcomes)
    assert {
        "claimed",
        "accepted",
        "ended",
        "lost_race",
        "stale_owner",
        "after_done",
        "end",
    } <= reached  # it went everywhere, or it proves nothing
    assert ("duplicate" in reached) == bool(setting.doubles)
    assert ("gap" in reached) == bool(setting.losses)
    assert found.takeovers > 0
    assert (found.continued > 0) == bool(setting.models)
    assert found.logs() >= {search.Log(done=True)} if setting.cancels else True


@pytest.mark.parametrize(
    "setting", [SMALL, search.Setting(workers=2, claims=2, tokens=1, doubles=1)], ids=name
)
def test_what_the_search_leaves_out_makes_no_difference(setting: search.Setting) -> None:
    """Records that are certain to be ignored are not followed. With them the log comes to the same
    results, in many more states."""
    short, whole = search.Search(setting), search.Search(setting, prune=False)
    short.run()
    whole.run()
    assert short.logs() == whole.logs()
    assert short.states * 3 < whole.states


class LatestClaimWins(fold.Fold):
    """Without compare-and-set."""

    def _claim(self, record: records.Claim) -> fold.Outcome:
        return super()._claim(msgspec.structs.replace(record, prev=self.owner))


class NoSeqCheck(fold.Fold):
    def _token(self, record: records.Tok) -> fold.Outcome:
        return super()._token(msgspec.structs.replace(record, seq=self.next))


class NoOwnCheck(fold.Fold):
    def _token(self, record: records.Tok) -> fold.Outcome:
        return super()._token(msgspec.structs.replace(record, own=self.owner or ""))


class EndIsNotFinal(fold.Fold):
    def _decide(self, record: records.TokenRecord, timestamp: int) -> fold.Outcome:
        phase, self.phase = (
            self.phase,
            fold.Phase.LIVE if self.phase is fold.Phase.DONE else self.phase,
        )
        outcome = super()._decide(record, timestamp)
        self.phase = fold.Phase.DONE if phase is fold.Phase.DONE else self.phase
        return outcome


class EndUnchecked(fold.Fold):
    def _end(self, record: records.End, timestamp: int) -> fold.Outcome:
        return super()._end(
            records.End(record.rid, self.owner or "", self.next, record.reason, self.h), timestamp
        )


class NoSegments(fold.Fold):
    """What another model continues belongs to the item of the one before."""

    def _claim(self, record: records.Claim) -> fold.Outcome:
        former = list(self.former)
        outcome = super()._claim(record)
        self.former = former
        return outcome


REMOVED: dict[str, dict[str, Any]] = {
    "the barrier": {"barrier": False},
    "the replay of accepted ids": {"replays": False},
    "compare-and-set": {"fold_class": LatestClaimWins},
    "fencing tokens": {"name_claim": search.integer_epochs},
    "the seq check": {"fold_class": NoSeqCheck},
    "the own check": {"fold_class": NoOwnCheck},
    "the check of an end": {"fold_class": EndUnchecked},
    "the finality of an end": {"fold_class": EndIsNotFinal},
    "the model of the ids": {"setting": MODELS, "own_model": False},
    "the segments": {"setting": MODELS, "fold_class": NoSegments},
}


@cases.each("ingredient", REMOVED)
def test_without_one_ingredient_the_search_finds_a_violation(ingredient: str) -> None:
    without = {"setting": USUAL, **REMOVED[ingredient]}
    broken = search.Search(prune=False, **without)
    with pytest.raises(search.Violation):
        broken.run()
    print(f"{broken.states} states before a violation")
