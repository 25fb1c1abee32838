"""The texts that the page is measured with are what the report says of them."""

from __future__ import annotations

from bench import page, page_text
from worker.engines import scripted


def test_answers_are_long_enough_and_have_what_costs_a_page_most() -> None:
    answers = [page_text.answer(number) for number in range(page.TURNS)]
    assert len(set(answers)) == page.TURNS
    assert 1_400 < sum(map(len, answers)) / page.TURNS < 1_600
    for number, text in enumerate(answers):
        assert all(mark in text for mark in ("```", "\n|:--", "\n> "))
        assert "\n- " in text or "\n1. " in text
        assert ("\\frac" in text) == (number % 3 == 0)


def test_a_passage_is_as_many_tokens_as_an_answer_is_measured_with() -> None:
    tokens = len(scripted.text_ids(page_text.passage()))
    assert abs(tokens - page.TOKENS) < page.TOKENS * 0.05
