"""What is asked while it is measured what waiting clients are told."""

from __future__ import annotations

import random

import pytest

from bench import places

ANSWERS = places.Answers(short=20, long=600, long_share=0.03, most=1000, pace_ms=40)


def test_long_answers_at_equal_distances_have_their_share_in_few_answers() -> None:
    """The workers believe for minutes what the first requests make."""
    few = [ANSWERS.spread(number) for number in range(256)]
    assert sum(few) / len(few) == pytest.approx(ANSWERS.mean, rel=0.05)
    source = random.Random(3)
    many = [ANSWERS.draw(source) for _ in range(20_000)]
    assert sum(many) / len(many) == pytest.approx(ANSWERS.mean, rel=0.05)
