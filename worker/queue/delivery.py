"""One delivery of a request: where it was read, and under which assignment (pure)."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.protocol import log_words, topics
from worker.queue import commit_tracker


@dataclass(frozen=True, slots=True)
class Delivery:
    """A request's delivery at an offset of a request topic.

    Attributes:
        timestamp: broker time of the request record in ms, or a time shortly after it.
        size: bytes of the request record.
        stolen: another worker is assigned the partition and commits (log rule P10). The tracker is
            not valid.
        handed_over: the assigned worker offered a response that had begun, because its own model is
            another one.
        continues: a gateway asked the pool to continue another model's text (log rule §25).
        hedged: another worker owns it, and its first token is late (log rule §26).
        request_ms: broker time of the request record in ms; 0 where a reroute does not say it.
        repeats: the response whose request has the same idempotency key and lies before this one
            (log rule §10); empty if none is known.
        tracker: offsets of the assignment under which the request was read.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    tracker: commit_tracker.Tracker
    headers: log_words.Headers
    size: int = 0
    stolen: bool = False
    handed_over: bool = False
    continues: bool = False
    hedged: bool = False
    request_ms: int = 0
    repeats: str = ""

    @property
    def rank(self) -> int:
        """Rank of the priority class: 0 is served first."""
        return topics.CLASSES.index(self.topic.rsplit(".", 1)[-1])
