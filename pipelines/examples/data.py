"""Generated records for the examples. `planted` of a record is the right answer."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
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


class ExampleRecord(NamedTuple):
    """A record. `broken`: no runner can read it. `planted`: the right answer; None for records that
    are skipped or broken."""

    key: bytes
    value: bytes
    planted: dict[str, Any] | None = None
    broken: bool = False


def reviews(records: int, seed: int = 1) -> Iterator[ExampleRecord]:
    """Reviews of a shop: 1 in 100 is no JSON, 1 in 100 lacks its product, 1 in 100 has no text."""
    rng = random.Random(seed)
    for number in range(records):
        key, kind = f"customer-{rng.randrange(500)}".encode(), rng.random()
        if kind < 0.01:
            yield ExampleRecord(key, f'{{"id": {number}, "text": "cut o'.encode(), broken=True)
            continue
        sentiment = rng.choice(("positive", "neutral", "negative"))
        words = {"positive": _PRAISE, "neutral": _NEUTRAL, "negative": _COMPLAINT}[sentiment]
        leaving = sentiment == "negative" and rng.random() < 0.2
        text = rng.choice(words) + (f" {rng.choice(_LEAVING)}" if leaving else "")
        stars = {"positive": 5, "neutral": 3, "negative": 1}[sentiment]
        planted = {
            "sentiment": sentiment,
            "confidence": round(rng.uniform(0.6, 1.0), 2),
            "leaving": leaving,
        }
        review = {"id": number, "product": rng.choice(_PRODUCTS), "stars": stars, "text": text}
        if kind < 0.02:
            del review["product"]
            yield ExampleRecord(key, msgspec.json.encode(review), broken=True)
        elif kind < 0.03:
            review["text"] = ""
            yield ExampleRecord(key, msgspec.json.encode(review))
        else:
            yield ExampleRecord(key, msgspec.json.encode({**review, "planted": planted}), planted)


_LINES: Final = (
    "GET /cart 200 in {ms} ms",
    "payment {id} accepted in {ms} ms",
    "cache refreshed, {id} entries",
    "worker {id} took a job",
)
_ODD_LINES: Final = (
    ("payment {id} was charged twice", "high"),
    ("GET /cart 500 in {ms}000 ms: connection pool exhausted", "high"),
    ("certificate expires in 2 days", "low"),
    ("clock moved back by {ms} s", "low"),
)


def anomalies(records: int, seed: int = 1) -> Iterator[ExampleRecord]:
    """Log lines of services: 1 in 10 is odd, 1 in 5 is of level DEBUG and passed over, 1 in 100 is
    no JSON."""
    rng = random.Random(seed)
    for number in range(records):
        service, kind = rng.choice(("shop", "payments", "search")), rng.random()
        if kind < 0.01:
            yield ExampleRecord(service.encode(), b"\x00\x01 core dumped", broken=True)
            continue
        odd = rng.random() < 0.1
        line, severity = rng.choice(_ODD_LINES) if odd else (rng.choice(_LINES), "none")
        entry = {
            "service": service,
            "level": "INFO",
            "line": line.format(id=number, ms=rng.randrange(3, 90)),
        }
        if rng.random() < 0.2:
            yield ExampleRecord(service.encode(), msgspec.json.encode({**entry, "level": "DEBUG"}))
            continue
        planted = {"anomalous": odd, "severity": severity}
        yield ExampleRecord(
            service.encode(), msgspec.json.encode({**entry, "planted": planted}), planted
        )


_POSTS: Final = (
    ("Has anybody repaired the hinge of this lamp?", "none"),
    ("I think the new bicycle is too heavy, but it rides well.", "none"),
    ("Lovely weather for a ride today!", "none"),
    ("People like you should not be allowed to speak here.", "harassment"),
    ("Send me your password and I will double your points.", "fraud"),
    ("I know where you live, and I will come tonight.", "threat"),
)


def moderation(records: int, seed: int = 1) -> Iterator[ExampleRecord]:
    """Posts of a forum: half of them are harmful, 1 in 100 has no text and is passed over."""
    rng = random.Random(seed)
    for number in range(records):
        user = f"user-{rng.randrange(200)}".encode()
        text, category = rng.choice(_POSTS)
        if rng.random() < 0.01:
            yield ExampleRecord(user, msgspec.json.encode({"id": number, "text": ""}))
            continue
        planted = {"harmful": category != "none", "category": category}
        yield ExampleRecord(
            user, msgspec.json.encode({"id": number, "text": text, "planted": planted}), planted
        )


_SENTENCES: Final = (
    ("Good morning.", "Guten Morgen."),
    ("Where is the station?", "Wo ist der Bahnhof?"),
    ("The parcel arrives tomorrow.", "Das Paket kommt morgen an."),
    ("Thank you for your help.", "Danke für Ihre Hilfe."),
)


def translation(records: int, seed: int = 1) -> Iterator[ExampleRecord]:
    """English sentences; 1 in 10 is German already and is passed over."""
    rng = random.Random(seed)
    for number in range(records):
        english, german = rng.choice(_SENTENCES)
        key = f"text-{number}".encode()
        if rng.random() < 0.1:
            text_record = {"id": number, "language": "de", "text": german}
            yield ExampleRecord(key, msgspec.json.encode(text_record))
            continue
        planted = {"text": german}
        text_record = {"id": number, "language": "en", "text": english, "planted": planted}
        yield ExampleRecord(key, msgspec.json.encode(text_record), planted)


_TICKETS: Final = (
    (("The lamp flickers.", "We have a spare part for you.", "Great, thanks."), "low"),
    (("My order is late.", "When did you order?", "Two weeks ago."), "normal"),
    (("The battery smokes!", "Please take it outdoors.", "It is burning now."), "urgent"),
    (("You charged me three times.", "We look into it.", "My account is empty."), "urgent"),
)


def tickets(records: int, seed: int = 1) -> Iterator[ExampleRecord]:
    """Conversations between customers and support; 1 in 100 has lost its messages."""
    rng = random.Random(seed)
    for number in range(records):
        texts, priority = rng.choice(_TICKETS)
        key = f"ticket-{number}".encode()
        ticket: dict[str, Any] = {"id": number, "product": rng.choice(_PRODUCTS)}
        if rng.random() < 0.01:
            yield ExampleRecord(key, msgspec.json.encode(ticket), broken=True)
            continue
        ticket["messages"] = [
            {"from": ("customer", "support")[place % 2], "text": text}
            for place, text in enumerate(texts)
        ]
        planted = {"summary": texts[0], "priority": priority}
        yield ExampleRecord(key, msgspec.json.encode({**ticket, "planted": planted}), planted)


def slogans(records: int, seed: int = 1) -> Iterator[ExampleRecord]:
    """Products with what is good about them."""
    rng = random.Random(seed)
    for number in range(records):
        product = rng.choice(_PRODUCTS)
        good = rng.choice(("quiet", "light", "cheap to run", "made to last"))
        planted = {"text": f"The {product} that is {good}."}
        product_record = {"id": number, "product": product, "good": good, "planted": planted}
        yield ExampleRecord(
            f"product-{number}".encode(), msgspec.json.encode(product_record), planted
        )


_FAULTS: Final = (
    ("makes a noise", "Tighten the four screws at the bottom."),
    ("does not start", "Take the battery out for ten seconds."),
    ("smells odd", "Air it for a day before the first use."),
    ("shows a red light", "Hold the button until the light is green."),
    ("has lost its colour", "Wipe it with a cloth and a little vinegar."),
)


def manuals(records: int, seed: int = 1) -> Iterator[ExampleRecord]:
    """Sections of manuals: 1 in 50 has no text and is passed over, 1 in 100 lacks its product."""
    rng = random.Random(seed)
    for number in range(records):
        product, (fault, remedy) = rng.choice(_PRODUCTS), rng.choice(_FAULTS)
        key, kind = f"section-{number}".encode(), rng.random()
        section: dict[str, Any] = {"product": product, "section": number}
        section["text"] = f"When the {product} {fault}: {remedy}"
        if kind < 0.01:
            del section["product"]
            yield ExampleRecord(key, msgspec.json.encode(section), broken=True)
        elif kind < 0.03:
            yield ExampleRecord(key, msgspec.json.encode({**section, "text": ""}))
        else:
            planted = {"passages": 1}
            yield ExampleRecord(key, msgspec.json.encode({**section, "planted": planted}), planted)


def questions(records: int, seed: int = 1) -> Iterator[ExampleRecord]:
    """Questions of customers that `manuals` answer."""
    rng = random.Random(seed)
    for number in range(records):
        product, (fault, remedy) = rng.choice(_PRODUCTS), rng.choice(_FAULTS)
        planted = {"text": remedy}
        text = f"My {product} {fault}. What should I do?"
        question = {"id": number, "text": text, "planted": planted}
        yield ExampleRecord(f"question-{number}".encode(), msgspec.json.encode(question), planted)


# By the name of the example, which is that of its file.
GENERATORS: Final[Mapping[str, Callable[[int, int], Iterator[ExampleRecord]]]] = {
    "reviews": reviews,
    "anomalies": anomalies,
    "moderation": moderation,
    "translation": translation,
    "tickets": tickets,
    "slogans": slogans,
    "manuals": manuals,
    "questions": questions,
}
