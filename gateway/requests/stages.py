"""What a request is on its way into the log, one record for each stage.

    Asked     a checked command that was admitted, and who sent it
    Placed    with its place in a conversation and the messages before it
    Decided   with the model, where `auto` had to choose one
    Built     the request record and its partition, charged to the principal
    Routed    the pool that gets it, and the topic that decides which request of a key is first
    Appended  in the log, with a subscription to its response

Each stage is a function of the one before. Charges and places that do not stand are given back by
`charging.Bill`.
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
        remembered: the connection's memory of the previous response.
        since: when it came, in seconds of the monotonic clock.
    """

    create: command.Create
    principal: Principal
    owner: records.Owner
    memory: ResponseMemory | None
    since: float

    @property
    def looks_up(self) -> bool:
        """Whether the log has to be read before it can be built."""
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
    """Attributes:
    turn: the place it takes in its conversation; None: it takes none.
    before: the messages before it; None: not known yet, or none.
    """

    arrival: Arrival
    turn: turns.Place | None = None
    before: context.History | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """Attributes:
    create: the command for one model.
    """

    placement: Placement
    create: command.Create


@dataclass(frozen=True, slots=True)
class Draft:
    """The request record, which its principal was charged for."""

    decision: Decision
    request: records.Request
    partition: int
    charge: rate_limits.Charge


@dataclass(frozen=True, slots=True)
class Destination:
    """Attributes:
    pool: it is to answer.
    home: the pool whose topic gets the record: with an idempotency key, always the one asked for.
    """

    draft: Draft
    pool: str
    home: str


@dataclass(frozen=True, slots=True)
class LogEntry:
    """Attributes:
    asked_ms: the broker's time of the record; 0: not known.
    """

    destination: Destination
    subscription: delivery.Subscription
    appended_ms: int
