"""The judge of the real engine's answers finds what it is there to find."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tailrace.protocol import ids, records
from tailrace.verify.reference_fold import Beginning
from tests.faults import real_engine, real_parsers
from tests.support import cases
from worker.text.item_parser import Piece

RID = f"resp_{'0' * 32}"


CALL = Beginning(1, 1, "c", "now", ids.call_id(RID, 0))


class Letters:
    """The first letter is a message, and a call follows if the request has tools."""

    def read(self, request: Any, token_ids: list[int]) -> real_parsers.Pieces:
        found = [
            (count, [Piece("c" if count and request.tools else "m", chr(i))])
            for count, i in enumerate(token_ids)
        ]
        return [*found[:1], (1, [Piece("c", "", "now")]), *found[1:]] if request.tools else found


def problems(
    text: str = "abc",
    reason: str = "length",
    bias: bool = True,
    total: int = 3,
    bound: int = 3,
    tools: bool = False,
    marks: tuple[Beginning, ...] = (),
) -> list[str]:
    sampling = records.Sampling(bound, logit_bias=real_engine.NO_EOS if bias else {})
    request = SimpleNamespace(
        rid=RID, sampling=sampling, tools=[{}] * tools, format=None, max_tool_calls=None
    )
    response: Any = SimpleNamespace(requests=[SimpleNamespace(request=request)])
    account: Any = SimpleNamespace(
        reason=reason,
        total=total,
        ids=[97, 98, 99],
        text=text,
        marks=list(marks),
        end=SimpleNamespace(reason=reason),
    )
    parsers: Any = Letters()
    return list(real_engine.Judge(parsers).content(response, account))


def test_a_sound_answer_passes() -> None:
    assert problems() == []
    assert problems(reason="stop", bias=False, bound=9) == []
    assert problems(reason="cancelled", text="") == []
    assert problems(tools=True, marks=(CALL,)) == []


@cases.each(
    "history",
    [
        {"text": "ab"},  # a token's text was lost
        {"text": "abbc"},  # or doubled
        {"text": "acb"},  # or moved
        {"text": "a\ufffdbc"},  # or cut in half at a seam
        {"total": 2},  # ended before its bound
        {"reason": "stop"},  # ended although it could not
        {"tools": True},  # a call is not marked
        {"marks": (CALL,)},  # or marked where none is
        {"tools": True, "marks": (CALL._replace(at=2),)},  # or a character late
        {"tools": True, "marks": (CALL._replace(call_id="call_other"),)},  # or its id is drawn
    ],
)
def test_what_is_wrong_is_said(history: dict[str, Any]) -> None:
    assert problems(**history)
