"""The log clients of one delivering process, as one argument."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tailrace import log
from tailrace.log import interfaces
from tailrace.protocol import feed, topics

LONG_POLL_WAIT_MS: Final = 500
ON_DEMAND_WAIT_MS: Final = 50
# Topics that are read whole and seldom get a record: no client waits for the end of a fetch.
WHOLE_TOPIC_WAIT_MS: Final = 2_500
# A feed that begins may wait for the end of a fetch.
FEED_WAIT_MS: Final = 250


@dataclass(frozen=True, slots=True)
class LogClients:
    """The log clients of a `Delivery`. It stops them when its `run` ends, with the exceptions
    below.

    Attributes:
        long_polled: tails the preferred partitions of `llm.tokens`.
        on_demand: tails its other partitions. A connection of its own: a broker answers the fetches
            of one connection one after another, and a long poll would hold up an added partition.
        deletions: tails `llm.deletions`.
        revocations: tails `llm.revocations`; `Revocations` stops it.
        feeds: tail the topics of feeds, by topic; `Feeds` stops them.
        replays: reads ranges of `llm.tokens` and of the request topics.
        offsets: queries offsets.
        read_layout: reads which log this is.
    """

    long_polled: interfaces.TailReader
    on_demand: interfaces.TailReader
    deletions: interfaces.TailReader
    revocations: interfaces.TailReader
    feeds: Mapping[str, interfaces.TailReader]
    replays: interfaces.RangeReader
    offsets: interfaces.OffsetQueries
    read_layout: interfaces.LayoutQuery

    @property
    def tails(self) -> tuple[interfaces.TailReader, ...]:
        """All tail readers."""
        token_tails = (self.long_polled, self.on_demand, self.deletions, self.revocations)
        return (*token_tails, *self.feeds.values())


def over_kafka(bootstrap: str, client_id: str = "tailrace") -> LogClients:
    """Clients of the broker at `bootstrap`. They connect at their first use."""

    def reader(topic: str, wait_ms: int, name: str) -> log.Reader:
        return log.Reader(bootstrap, topic, wait_ms=wait_ms, client_id=f"{client_id}-{name}")

    return LogClients(
        reader(topics.TOKENS, LONG_POLL_WAIT_MS, "tail"),
        reader(topics.TOKENS, ON_DEMAND_WAIT_MS, "on-demand"),
        reader(topics.DELETIONS, WHOLE_TOPIC_WAIT_MS, "deletions"),
        reader(topics.REVOCATIONS, WHOLE_TOPIC_WAIT_MS, "revocations"),
        {topic: reader(topic, FEED_WAIT_MS, topic) for topic in feed.TOPICS},
        log.Replays(bootstrap, client_id=f"{client_id}-replay"),
        log.Offsets(bootstrap, client_id=f"{client_id}-offsets"),
        lambda: log.layout(bootstrap),
    )
