"""Admission control: whether a request is accepted, before anything is written (pure).

An accepted request is answered. A refusal says when to retry: 429 when this caller or all callers
together send too much, 503 when a dependency is down or this process drains.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from gateway.parsing import command, conversation
from tailrace.protocol import errors, images, records
from tailrace.settings.shapes import Limits

CHARS_PER_TOKEN_GUESS: Final = 4
RETRY_DRAINING_S: Final = 1.0
RETRY_CROWDED_S: Final = 1.0
BATCH_SHARE: Final = 0.7  # batch is refused earlier: the rest is for interactive requests
# A wait is an estimate. With requests accepted up to the deadline itself, one in four expired in
# the queue, and after the load new requests waited for two deadlines.
SURE: Final = 0.6  # of the deadline


K = TypeVar("K")


def cost(create: command.Create) -> float:
    """Return the tokens that a request may use: its estimated prompt and its longest answer. The
    conversation that it continues is unknown at this point."""
    return _cost(create.characters, create.input, create.sampling, create.generate)


def cost_of(request: records.Request) -> float:
    """Return the same for a request record, with its conversation, or with the tokens that a fork
    copies."""
    characters = conversation.characters(request.messages)
    if request.fork is not None:
        characters += request.fork.at * CHARS_PER_TOKEN_GUESS + len(request.fork.replace)
    return _cost(characters, request.messages, request.sampling, request.generate)


def _cost(
    characters: int,
    messages: Sequence[Mapping[str, Any]],
    sampling: records.Sampling,
    generate: bool,
) -> float:
    prompt = characters / CHARS_PER_TOKEN_GUESS + images.tokens(messages)
    return prompt + (sampling.max_tokens if generate else 0)


@dataclass(slots=True)
class Running:
    """Unfinished responses that this process submitted; by principal and by partition.

    Attributes:
        _at: rid -> (principal key, partition).
        _by_principal, _by_partition: counts of `_at`, stored because every request reads them.
    """

    _at: dict[str, tuple[str, int]] = field(default_factory=dict)
    _by_principal: Counter[str] = field(default_factory=Counter)
    _by_partition: Counter[int] = field(default_factory=Counter)

    def __len__(self) -> int:
        return len(self._at)

    def add(self, rid: str, principal: str, partition: int) -> None:
        if rid not in self._at:
            self._at[rid] = (principal, partition)
            self._by_principal[principal] += 1
            self._by_partition[partition] += 1

    def end(self, rid: str) -> None:
        """Idempotent."""
        if (place := self._at.pop(rid, None)) is not None:
            _less(self._by_principal, place[0])
            _less(self._by_partition, place[1])

    def count(self, principal: str) -> int:
        return self._by_principal[principal]

    def busy(self, least: int) -> dict[str, int]:
        """The counts of principals with at least `least` responses."""
        return {name: count for name, count in self._by_principal.items() if count >= least}

    def count_on(self, partition: int) -> int:
        return self._by_partition[partition]


def _less(counts: Counter[K], key: K) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]


def too_late(wait_s: float, deadline_s: float) -> bool:
    """Whether a request with this estimated wait is refused."""
    return wait_s > SURE * deadline_s


def check(
    create: command.Create,
    principal: str,
    running: Running,
    limits: Limits,
    *,
    refusing: bool,
    writable: bool,
    wait_s: float | None = None,
    elsewhere: int = 0,
    luck: float = 0.0,
) -> errors.ApiError | None:
    """Return the reason to refuse a request, or None.

    Args:
        refusing: this process drains and accepts no requests.
        writable: the log can be appended to.
        wait_s: estimated seconds until it starts; None: unknown, and it may wait in the log.
        elsewhere: responses of the principal at other gateways.
        luck: a random number from 0 to 1, so that refused clients do not all retry at once.
    """
    if refusing:
        return errors.unavailable(
            "This instance is shutting down; connect again.", RETRY_DRAINING_S
        )
    if not writable:
        return errors.unavailable("The log cannot be written right now.")
    others = create.choices - 1  # each choice counts, and all are refused or none
    if running.count(principal) + elsewhere + others >= limits.responses_per_principal:
        return errors.rate_limit_exceeded(RETRY_CROWDED_S)
    bound = limits.responses * (BATCH_SHARE if create.priority == "batch" else 1.0)
    if len(running) + others >= bound:
        return errors.overloaded(RETRY_CROWDED_S)
    if create.generate and wait_s is not None and too_late(wait_s, create.deadline_ms / 1000):
        return errors.deadline_not_met(wait_s, create.deadline_ms / 1000, luck)
    return None


def headers(limits: Limits, remaining: float) -> dict[str, str]:
    """Return the `x-ratelimit-*` headers after a request was charged to the bucket."""
    reset = (limits.requests_burst - remaining) / limits.requests_rate
    return {
        "x-ratelimit-limit-requests": str(int(limits.requests_burst)),
        "x-ratelimit-remaining-requests": str(max(0, int(remaining))),
        "x-ratelimit-reset-requests": duration(max(0.0, reset)),
    }


def duration(seconds: float) -> str:
    """Return a duration as the SDKs read it in headers: `12ms`, `1s`, `6m0s`."""
    if seconds < 1:
        return f"{round(seconds * 1000)}ms"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"
