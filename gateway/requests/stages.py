"""The records of a request on its way into the log, one for each stage.

    Arrival      an admitted command, and who sent it
    Placement    with its place in a conversation and the messages before it
    Decision     with the model, where `auto` had to choose one
    Draft        the request record and its partition, charged to the principal
    Destination  the pool that gets it, and the topic that decides which request of a key is first
    LogEntry     in the log, with a subscription to its response

Each stage is a function of the one before. `charging.Bill` undoes charges and places if a later
stage fails.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.load import rate_limits
from gateway.parsing import command, conversation
from gateway.requests import turns
from gateway.responses import context
from gateway.responses.memory import ResponseMemory
from tailrace.auth.principal import Principal
from tailrace.delivery import delivery
from tailrace.protocol import records


@dataclass(frozen=True, slots=True)
class Arrival:
    """An admitted command.

    Attributes:
        memory: the connection's memory of the previous response.
        since: its time of arrival, in seconds of the monotonic clock.
    """

    create: command.Create
    principal: Principal
    owner: records.Owner
    memory: ResponseMemory | None
    since: float

    @property
    def looks_up(self) -> bool:
        """Whether building it needs to read the log."""
        create = self.create
        return (
            create.previous is not None
            or create.fork is not None
            or create.conversation is not None
            or create.search is not None
            or bool(conversation.to_resolve(create.turn))
        )


@dataclass(frozen=True, slots=True)
class Placement:
    """An arrival in its conversation.

    Attributes:
        turn: its place in the conversation; None: it has no place.
        before: the messages before it; None: unknown, or none.
    """

    arrival: Arrival
    turn: turns.Place | None = None
    before: context.History | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """A placement with its model. `create`: the command for this model."""

    placement: Placement
    create: command.Create


@dataclass(frozen=True, slots=True)
class Draft:
    """The request record, charged to its principal."""

    decision: Decision
    request: records.Request
    partition: int
    charge: rate_limits.Charge


@dataclass(frozen=True, slots=True)
class Destination:
    """A draft with its pool.

    Attributes:
        pool: the pool that answers.
        home: the pool whose topic gets the record; with an idempotency key, always the requested
            one.
    """

    draft: Draft
    pool: str
    home: str


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A request in the log. `appended_ms`: the broker's time of its record; 0: unknown."""

    destination: Destination
    subscription: delivery.Subscription
    appended_ms: int
