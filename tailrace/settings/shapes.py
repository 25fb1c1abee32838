"""What an operator offers and allows: the members of a pool, `TAILRACE_LIMITS` and
`TAILRACE_WEIGHTS` (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

import msgspec

from tailrace.protocol import topics

DEFAULT_OUTPUT_TOKENS: Final = 1024
CONTEXT_TOKENS: Final = 8192
DEFAULT_MODEL: Final = "smollm2-135m-instruct"

Rate = Annotated[float, msgspec.Meta(ge=0)]
Burst = Annotated[float, msgspec.Meta(gt=0)]
Cap = Annotated[int, msgspec.Meta(ge=0)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]
Weight = Annotated[float, msgspec.Meta(gt=0)]


IfBusy = Literal["reject", "queue", "interrupt"]
CachePolicy = Literal["prefix", "none"]
Truncation = Literal["auto", "disabled"]


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a million tokens cost, in the currency of the operator, which is one for all pools."""

    input: Annotated[
        float, msgspec.Meta(ge=0, description="a million tokens of prompts, cached ones too")
    ] = 0.0
    output: Annotated[float, msgspec.Meta(ge=0, description="a million tokens of answers")] = 0.0

    def input_nano(self, tokens: int) -> int:
        """The cost of these tokens, in billionths of the currency. In millionths a
        short response of a small model would cost a few units, and half a unit is rounded."""
        return round(self.input * tokens * 1000)

    def output_nano(self, tokens: int) -> int:
        """The same of answers."""
        return round(self.output * tokens * 1000)


class CanaryBounds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """By how much the newest revision may be worse than the others."""

    errors: Annotated[
        float,
        msgspec.Meta(
            ge=0, le=1, description="how much larger the failed share of its responses may be"
        ),
    ] = 0.1
    first_token: Annotated[
        float,
        msgspec.Meta(ge=1, description="factor by which its median first token may be later"),
    ] = 2.0
    least: Annotated[
        int,
        msgspec.Meta(
            ge=1,
            le=500,
            description="responses of it and of the others, at one gateway, before it is judged",
        ),
    ] = 20
    retry_s: Annotated[
        Seconds,
        msgspec.Meta(
            description="a worse revision is tried again after this time; 0: when `canary` or "
            "`canary_bounds` is changed"
        ),
    ] = 600.0


class ShorterWhenBusy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When answers are shorter than requested, and their length then."""

    backlog_s: Annotated[
        float,
        msgspec.Meta(gt=0, description="a request that would wait for longer gets a short answer"),
    ]
    max_output_tokens: Annotated[
        int, msgspec.Meta(ge=16, description="its longest answer then, in tokens")
    ] = 256


class CachedAnswers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Answers that are given again."""

    ttl_s: Annotated[
        float,
        msgspec.Meta(gt=0, le=604_800, description="how long an answer is cached"),
    ] = 3600.0


class Hedge(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many first tokens of interactive requests a second worker may race for."""

    share: Annotated[
        float,
        msgspec.Meta(
            ge=0,
            le=1,
            description="part of the interactive requests, at each gateway; 0: none",
        ),
    ] = 0.0


Percent = Annotated[float, msgspec.Meta(ge=0, le=100)]
RevisionName = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
Canary = Percent | dict[RevisionName, Annotated[float, msgspec.Meta(ge=0)]]


@dataclass(frozen=True, slots=True)
class Pool:
    """One model deployment. `max_model_len` bounds prompt and answer together, in tokens;
    `output_limit` bounds the answer. `fallback`: names of the pools that answer its requests when
    it cannot, in order. `price`: None: none is known. `canary`: percentage of new requests for the
    newest model revision, or the weight of each; None: requests go to workers of any.
    `cached_answers`: None: every request is generated."""

    name: str
    models: tuple[str, ...]
    max_model_len: int
    default_output_tokens: int
    default_temperature: float = 1.0
    default_top_p: float = 1.0
    if_busy: IfBusy = "reject"
    tokenizer: str = ""
    aliases: tuple[str, ...] = ()
    engine: str = ""
    source: str = ""
    engine_args: Mapping[str, Any] = field(default_factory=dict)
    adapters: Mapping[str, str] = field(default_factory=dict)
    max_num_seqs: int = 0
    output_limit: int = 0
    price: Price | None = None
    classes: tuple[topics.PriorityClass, ...] = topics.CLASSES
    cache: CachePolicy = "prefix"
    truncation: Truncation = "disabled"
    fallback: tuple[str, ...] = ()
    fallback_when_busy: bool = False
    shorter_when_busy: ShorterWhenBusy | None = None
    fallback_mid_answer: bool = True
    late_after_s: float = 0.0
    stalled_after_s: float = 30.0
    canary: Canary | None = None
    canary_bounds: CanaryBounds = CanaryBounds()  # noqa: RUF009 - frozen
    cached_answers: CachedAnswers | None = None
    hedge: Hedge = Hedge()  # noqa: RUF009 - frozen

    @property
    def answers(self) -> tuple[str, ...]:
        """The models that answer by their own names: `models`, and those with an adapter."""
        return (*self.models, *self.adapters)

    @property
    def longest_answer(self) -> int:
        """The longest answer that a request may have, in tokens."""
        return self.output_limit or self.max_model_len


ModelName = Annotated[str, msgspec.Meta(min_length=1)]


class PoolShape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One pool of `TAILRACE_POOLS`, as it is written."""

    models: Annotated[
        list[ModelName],
        msgspec.Meta(min_length=1, description="public model ids that the pool serves"),
    ]
    max_model_len: Annotated[
        int,
        msgspec.Meta(ge=16, le=2**24, description="context: prompt and answer together, in tokens"),
    ] = CONTEXT_TOKENS
    max_output_tokens: Annotated[
        int,
        msgspec.Meta(
            ge=0,
            description=(
                "longest answer of a request that sets none, in tokens; 0: a quarter of the "
                "context, "
                f"at most {DEFAULT_OUTPUT_TOKENS}"
            ),
        ),
    ] = 0
    # Small models need less than the API's usual 1.
    temperature: Annotated[
        float, msgspec.Meta(ge=0, le=2, description="for requests that name none")
    ] = 1.0
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1, description="for requests that name none")] = (
        1.0
    )
    if_busy: Annotated[
        IfBusy,
        msgspec.Meta(
            description="what to do with a turn whose predecessor still runs, if it does not say"
        ),
    ] = "reject"
    tokenizer: Annotated[
        str,
        msgspec.Meta(
            description="folder with the model's `tokenizer.json`, `tokenizer_config.json` and "
            "template, by which gateways count prompts; without one, workers do"
        ),
    ] = ""
    aliases: Annotated[
        list[ModelName],
        msgspec.Meta(description="further names of the pool's first model"),
    ] = []
    engine: Annotated[
        str, msgspec.Meta(description="engine of the pool's workers, as `TAILRACE_ENGINE`")
    ] = ""
    source: Annotated[
        str,
        msgspec.Meta(description="model folder or hub name that they load, as `TAILRACE_MODEL`"),
    ] = ""
    engine_args: Annotated[
        dict[str, Any],
        msgspec.Meta(
            description="arguments of vLLM's engine (`AsyncEngineArgs`); a worker whose vLLM "
            "rejects one ends with exit code 2 and names it"
        ),
    ] = {}
    adapters: Annotated[
        dict[ModelName, Annotated[str, msgspec.Meta(min_length=1)]],
        msgspec.Meta(
            description="LoRA adapters of the model: the name that requests ask for, and the "
            "adapter's folder or hub name; for vLLM"
        ),
    ] = {}
    max_num_seqs: Annotated[
        int,
        msgspec.Meta(
            ge=0,
            le=65_536,
            description="responses that a worker runs at once, as `TAILRACE_MAX_NUM_SEQS`; 0: the "
            "engine's default",
        ),
    ] = 0
    output_limit: Annotated[
        int,
        msgspec.Meta(
            ge=0,
            description="longest answer that a request may ask for, in tokens; 0: the context",
        ),
    ] = 0
    price: Annotated[
        Price | None,
        msgspec.Meta(
            description="`input` and `output`: price of a million tokens, in one currency for all "
            "pools; null: usage records have no cost"
        ),
    ] = None
    classes: Annotated[
        tuple[topics.PriorityClass, ...],
        msgspec.Meta(
            min_length=1,
            description="classes that the pool accepts; the first one is that of requests without "
            "`service_tier`",
        ),
    ] = topics.CLASSES
    cache: Annotated[
        CachePolicy,
        msgspec.Meta(
            description="`prefix`: the engine caches the beginnings of prompts, and gateways "
            "place by them; `none`: neither"
        ),
    ] = "prefix"
    truncation: Annotated[
        Truncation,
        msgspec.Meta(description="`truncation` of Responses requests that name none"),
    ] = "disabled"
    fallback: Annotated[
        tuple[str, ...],
        msgspec.Meta(
            description="pools that answer its requests when it cannot, the first choice first; "
            "their own `fallback` is not followed"
        ),
    ] = ()
    fallback_when_busy: Annotated[
        bool,
        msgspec.Meta(
            description="`fallback` also where this pool would start a request after its deadline"
        ),
    ] = False
    shorter_when_busy: Annotated[
        ShorterWhenBusy | None,
        msgspec.Meta(
            description="`backlog_s` and `max_output_tokens`: a request that would wait longer "
            "gets a shorter answer, which can be continued; null: none does"
        ),
    ] = None
    fallback_mid_answer: Annotated[
        bool,
        msgspec.Meta(
            description="`fallback` also after the first token: another model continues the text "
            "in a new item, which names it"
        ),
    ] = True
    late_after_s: Annotated[
        Seconds,
        msgspec.Meta(
            description="a first token that comes later counts as a failure of the pool; 0: none"
        ),
    ] = 0.0
    stalled_after_s: Annotated[
        Seconds,
        msgspec.Meta(
            description="a running response without progress for this time counts as a failure of "
            "the pool; 0: none"
        ),
    ] = 30.0
    canary: Annotated[
        Canary | None,
        msgspec.Meta(
            description="percentage of new requests for the newest model revision, or a weight for "
            "each revision by name; null: any revision"
        ),
    ] = None
    canary_bounds: Annotated[
        CanaryBounds,
        msgspec.Meta(description="when the newest revision is worse and gets no requests"),
    ] = CanaryBounds()
    cached_answers: Annotated[
        CachedAnswers | None,
        msgspec.Meta(
            description="for `ttl_s` seconds after an answer with `temperature: 0`, equal requests "
            "of its tenant get it again, marked; without this member, each is generated"
        ),
    ] = None
    hedge: Annotated[
        Hedge,
        msgspec.Meta(
            description="share of interactive requests that a second worker may start too, when "
            "the first token is later than that of 95 %"
        ),
    ] = Hedge()


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The limits of one principal, and of all of them together: `TAILRACE_LIMITS`.

    Rates and bursts of requests and tokens are counted in Redis for all gateways together (while it
    is away each gateway allows a quarter of them); the others count in one process.
    """

    requests_rate: Annotated[
        Rate, msgspec.Meta(description="requests a second and principal; 0: no limit")
    ] = 50.0
    requests_burst: Annotated[
        Burst, msgspec.Meta(description="requests of a principal at once")
    ] = 500.0
    tokens_rate: Annotated[
        Rate,
        msgspec.Meta(
            description="tokens a second and principal, of prompts and answers; 0: no limit"
        ),
    ] = 200_000.0
    tokens_burst: Annotated[Burst, msgspec.Meta(description="tokens of a principal at once")] = (
        4_000_000.0
    )
    responses_per_principal: Annotated[
        Cap, msgspec.Meta(description="running responses of a principal, at all gateways together")
    ] = 512
    responses: Annotated[Cap, msgspec.Meta(description="running responses, per gateway")] = 4096
    kept_bytes_per_principal: Annotated[
        Cap,
        msgspec.Meta(
            description="bytes of a principal's requests and sockets in a process, and as many of "
            "its replays; 0: no limit"
        ),
    ] = 64 << 20
    sockets_per_principal: Annotated[
        Cap, msgspec.Meta(description="WebSockets and event streams of a principal, per process")
    ] = 1024
    sockets: Annotated[
        Cap, msgspec.Meta(description="WebSockets and event streams, per process")
    ] = 8192
    reads_rate: Annotated[
        Rate,
        msgspec.Meta(
            description="requests a second and principal that generate nothing, and handshakes, "
            "per process; 0: no limit"
        ),
    ] = 100.0
    reads_burst: Annotated[Burst, msgspec.Meta(description="of these at once")] = 2000.0
    tickets_rate: Annotated[
        Rate, msgspec.Meta(description="tickets a second and principal, per process; 0: no limit")
    ] = 5.0
    tickets_burst: Annotated[Burst, msgspec.Meta(description="tickets of a principal at once")] = (
        100.0
    )
    refusals_rate: Annotated[
        Rate,
        msgspec.Meta(
            description="refused credentials a second and client address, per process; above it "
            "only known credentials from there are accepted; 0: no limit"
        ),
    ] = 20.0
    refusals_burst: Annotated[
        Burst, msgspec.Meta(description="refused credentials of a client address at once")
    ] = 500.0
    messages_rate: Annotated[
        Rate,
        msgspec.Meta(
            description="messages a second, and at once, from all sockets of a principal, per "
            "process; 0: no limit"
        ),
    ] = 500.0
    frames_rate: Annotated[
        Rate,
        msgspec.Meta(
            description="frames a second, and at once, from all sockets of a client address, per "
            "process; 0: no limit"
        ),
    ] = 1000.0
    connections_per_address: Annotated[
        Cap,
        msgspec.Meta(description="connections of a client address (IPv6: of a /64), per process"),
    ] = 2048
    connections: Annotated[
        Cap,
        msgspec.Meta(
            description="connections, per process; never more than its file descriptors allow"
        ),
    ] = 16_384


def limits(text: str) -> Limits:
    """From JSON with those limits that differ from their defaults. Raises ValueError."""
    value: Limits = _decode(text, Limits)
    return value


def weights(text: str) -> Mapping[str, float]:
    """From JSON with names of tenants and their weights. Raises ValueError."""
    table: Mapping[str, float] = _decode(text, dict[str, Weight])
    return table


def _decode(text: str, shape: Any) -> Any:
    try:
        return msgspec.json.decode(text, type=shape)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
