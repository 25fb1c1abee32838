"""The judge of the real engine's answers finds what it is there to find."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.faults import real_engine


class Letters:
    def decode(self, ids: list[int]) -> str:
        return "".join(map(chr, ids))


def problems(
    text: str = "abc", reason: str = "length", bias: bool = True, total: int = 3, bound: int = 3
) -> list[str]:
    sampling = SimpleNamespace(max_tokens=bound, logit_bias=real_engine.NO_EOS if bias else {})
    response: Any = SimpleNamespace(
        asked=[SimpleNamespace(request=SimpleNamespace(sampling=sampling))]
    )
    account: Any = SimpleNamespace(reason=reason, total=total, ids=[97, 98, 99], text=text)
    tokenizer: Any = Letters()
    return list(real_engine.Judge(tokenizer).content(response, account))


def test_a_sound_answer_passes() -> None:
    assert problems() == []
    assert problems(reason="stop", bias=False, bound=9) == []
    assert problems(reason="cancelled", text="") == []


@pytest.mark.parametrize(
    "history",
    [
        {"text": "ab"},  # a token's text was lost
        {"text": "abbc"},  # or doubled
        {"text": "acb"},  # or moved
        {"text": "a\ufffdbc"},  # or cut in half at a seam
        {"total": 2},  # ended before its bound
        {"reason": "stop"},  # ended although it could not
    ],
)
def test_what_is_wrong_is_said(history: dict[str, Any]) -> None:
    assert problems(**history)
