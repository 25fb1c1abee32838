"""Generated records for the examples. `planted` of a record says what a right answer is."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec

_PRODUCTS: Final = ("kettle", "lamp", "bicycle", "headphones", "backpack", "keyboard")
_PRAISE: Final = (
    "It does what it should, and it looks good.",
    "Better than the one I had before. I would buy it again.",
    "It came a day early and works well.",
)
_NEUTRAL: Final = (
    "It is what the picture shows. Nothing more, nothing less.",
    "Fine for the price. The manual could be clearer.",
)
_COMPLAINT: Final = (
    "It broke after two days.",
    "The box was open and a part was missing.",
    "It is much louder than you say.",
)
_LEAVING: Final = (
    "That was the last time that I bought here.",
    "I have closed my account.",
)


class Generated(NamedTuple):
    """A record. `broken`: no runner can read it. `planted`: the right answer; None for records that
    are passed over or broken."""

    key: bytes
    value: bytes
    planted: dict[str, Any] | None = None
    broken: bool = False


def reviews(records: int, seed: int = 1) -> Iterator[Generated]:
    """Reviews of a shop: 1 in 100 is no JSON, 1 in 100 lacks its product, 1 in 100 has no text."""
    drawn = random.Random(seed)
    for number in range(records):
        key, kind = f"customer-{drawn.randrange(500)}".encode(), drawn.random()
        if kind < 0.01:
            yield Generated(key, f'{{"id": {number}, "text": "cut o'.encode(), broken=True)
            continue
        sentiment = drawn.choice(("positive", "neutral", "negative"))
        words = {"positive": _PRAISE, "neutral": _NEUTRAL, "negative": _COMPLAINT}[sentiment]
        leaving = sentiment == "negative" and drawn.random() < 0.2
        text = drawn.choice(words) + (f" {drawn.choice(_LEAVING)}" if leaving else "")
        stars = {"positive": 5, "neutral": 3, "negative": 1}[sentiment]
        planted = {
            "sentiment": sentiment,
            "confidence": round(drawn.uniform(0.6, 1.0), 2),
            "leaving": leaving,
        }
        review = {"id": number, "product": drawn.choice(_PRODUCTS), "stars": stars, "text": text}
        if kind < 0.02:
            del review["product"]
            yield Generated(key, msgspec.json.encode(review), broken=True)
        elif kind < 0.03:
            review["text"] = ""
            yield Generated(key, msgspec.json.encode(review))
        else:
            yield Generated(key, msgspec.json.encode({**review, "planted": planted}), planted)
