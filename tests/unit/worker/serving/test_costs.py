"""The cost of a response: by the models that answered it, and by `usage`."""

from __future__ import annotations

from tailrace.protocol import fold, records
from tailrace.settings import Price
from tests.support import cases
from tests.support.memory_log import MemoryLog
from tests.support.memory_worker import MODEL, new_request
from worker.serving import costs

PRICES = {MODEL: Price(0.05, 0.2), "other": Price(1, 3), "free": Price()}
USAGE = records.Usage(1_000, 100)


def cost(
    served: str = "",
    former: list[fold.Former] | None = None,
    usage: records.Usage = USAGE,
    status: str = "completed",
    answer_of: str = "",
) -> costs.Cost | None:
    ended = fold.Ended("stop", status, "", usage, None, 0)
    state = fold.Fold(served=served, former=former or [], ended=ended, answer_of=answer_of)
    return costs.response_cost(new_request(MemoryLog()), state, PRICES.get)


@cases.each("status", ["completed", "incomplete", "failed", "cancelled"])
def test_whatever_the_status_each_counted_token_has_its_price(status: str) -> None:
    assert cost(status=status) == (50_000, 20_000)


def test_a_short_response_of_a_cheap_model_is_not_rounded_away() -> None:
    assert cost(usage=records.Usage(3, 1)) == (150, 200)


def test_cached_tokens_are_part_of_the_prompt_and_reasoning_of_the_answer() -> None:
    assert cost(usage=records.Usage(1_000, 100, 900, 50)) == cost()


def test_the_model_that_stands_in_for_another_one_has_its_own_price() -> None:
    assert cost("other") == (1_000_000, 300_000)
    assert cost("free") == (0, 0)
    assert cost("unknown") is None


def test_each_segment_has_the_price_of_its_model() -> None:
    former = [fold.Former(30, 90, ""), fold.Former(50, 150, "free")]
    assert cost("other", former) == (50_000, 30 * 200 + 50 * 3_000)
    assert cost("unknown", former) is None
    assert cost("other", [fold.Former(30, 90, "unknown")]) is None


def test_what_the_end_does_not_count_costs_nothing() -> None:
    former = [fold.Former(30, 90, "")]
    assert cost("other", former, records.Usage(1_000, 0)) == (50_000, 0)


def test_an_answer_that_is_given_again_costs_nothing() -> None:
    assert cost(answer_of="resp_x") == (0, 0)
    assert cost("unknown", answer_of="resp_x") is None
