"""What an error means."""

from __future__ import annotations

import pytest

from tests.support import cases
from worker.engines import base


@cases.each(
    ("error", "verdict"),
    [
        (base.EngineDead("x"), base.Verdict.DIE),
        (MemoryError(), base.Verdict.DIE),
        (base.Refused("c", "m"), base.Verdict.FAIL),
        (base.NotResumable(), base.Verdict.FAIL),
        (base.Transient("x"), base.Verdict.RETRY),
        (base.Busy("x", 1.0), base.Verdict.RETRY),
        (RuntimeError("a defect"), base.Verdict.RETRY),
    ],
)
def test_every_class_of_error_has_its_verdict(error: Exception, verdict: base.Verdict) -> None:
    assert base.classify(error) is verdict


def test_a_prompt_needs_room_for_one_token() -> None:
    base.check_length(99, 100)
    with pytest.raises(base.Refused) as caught:
        base.check_length(100, 100)
    assert caught.value.code == "context_length_exceeded"
