"""The pools of a deployment and the rules of `auto`, from what `TAILRACE_POOLS` says (pure)."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec

from tailrace import engines
from tailrace.protocol import topics
from tailrace.settings import shapes
from tailrace.settings.shapes import ModelName, Pool, PoolShape

AUTO: Final = "auto"
AskedFeature = Literal["images", "tools", "json", "reasoning"]

T = TypeVar("T")


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One rule of `auto`. It fits a request that meets all of its conditions."""

    model: Annotated[ModelName, msgspec.Meta(description="model or alias that answers")]
    max_prompt_tokens: Annotated[
        Annotated[int, msgspec.Meta(ge=1)] | None,
        msgspec.Meta(
            description="longest prompt, with the dialogue that it continues, in tokens, estimated"
        ),
    ] = None
    features: Annotated[
        tuple[AskedFeature, ...], msgspec.Meta(description="features that the request must use")
    ] = ()

    def fits(self, tokens: float, needs: frozenset[str]) -> bool:
        """Whether the rule applies to a request with this prompt length and these needs."""
        short = self.max_prompt_tokens is None or tokens <= self.max_prompt_tokens
        return short and needs.issuperset(self.features)


PoolName = Annotated[str, msgspec.Meta(pattern="^[a-z0-9][a-z0-9-]{0,62}$")]


class CatalogShape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file that `TAILRACE_POOLS` names, as it is written."""

    pools: Annotated[
        dict[PoolName, PoolShape],
        msgspec.Meta(
            min_length=1, description="by name; the first pool's first model is the default"
        ),
    ]
    auto: Annotated[
        tuple[Rule, ...],
        msgspec.Meta(description="who answers the model `auto`: the first rule that fits"),
    ] = ()


@dataclass(frozen=True, slots=True)
class Catalog:
    """What is offered: pools in their order, and the rules of `auto`.

    Attributes:
        file: where it was read; None: from the variable itself.
        _by_model: pool and model of every model and alias.
    """

    pools: tuple[Pool, ...]
    rules: tuple[Rule, ...] = ()
    file: Path | None = None
    _by_model: Mapping[str, tuple[Pool, str]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_name = {model: (pool, model) for pool in self.pools for model in pool.answers}
        by_name |= {alias: (pool, pool.models[0]) for pool in self.pools for alias in pool.aliases}
        object.__setattr__(self, "_by_model", by_name)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the pools."""
        return tuple(pool.name for pool in self.pools)

    @property
    def default_model(self) -> str:
        """The model of requests that name none."""
        return self.pools[0].models[0]

    @property
    def listed(self) -> tuple[str, ...]:
        """What requests may name: models, adapters and aliases, and `auto` where there are
        rules."""
        names = [name for pool in self.pools for name in (*pool.answers, *pool.aliases)]
        return (*names, AUTO) if self.rules else tuple(names)

    def pool(self, name: str) -> Pool | None:
        """The pool of this name."""
        return next((pool for pool in self.pools if pool.name == name), None)

    def chain(self, name: str) -> tuple[Pool, ...]:
        """A pool, and those that answer its requests when it cannot, in order; nothing for a pool
        that is no longer offered."""
        first = self.pool(name)
        if first is None:
            return ()
        others = (self.pool(pool_name) for pool_name in first.fallback)
        return (first, *(pool for pool in others if pool is not None))

    def stands_in_for(self, name: str) -> tuple[str, ...]:
        """The models of pools whose `fallback` names this pool."""
        return tuple(
            model for pool in self.pools if name in pool.fallback for model in pool.answers
        )

    def find(self, model: str) -> tuple[Pool, str] | None:
        """The pool of a model or alias, and the model that answers."""
        return self._by_model.get(model)


def from_pools(value: Any) -> Catalog:
    """The catalog that a mapping of pools says.

    Raises:
        ValueError: the text names the pool and the member.
    """
    return _catalog(value, ())


def from_file(value: Any, file: Path | None = None) -> Catalog:
    """The catalog that a file says.

    Raises:
        ValueError: the text names the pool, or the rule, and the member.
    """
    _check_names(value, CatalogShape, "the file")
    rules = value.get("auto") or ()
    if not isinstance(rules, list | tuple):
        raise ValueError("auto: not a list of rules")
    rules_ = [_convert(rule, Rule, f"auto[{number}]") for number, rule in enumerate(rules)]
    return _catalog(value.get("pools"), rules_, file)


def _catalog(value: Any, rules: Iterable[Rule], file: Path | None = None) -> Catalog:
    if not isinstance(value, dict):
        raise ValueError("the pools are not a mapping")
    if not value:
        raise ValueError("it has no pool")
    catalog = Catalog(tuple(_pool(name, value[name]) for name in value), tuple(rules), file)
    _check_unique(catalog)
    for pool in catalog.pools:
        _check_fallback(pool, catalog.names)
    for number, rule in enumerate(catalog.rules):
        if catalog.find(rule.model) is None:
            raise ValueError(
                f"auto[{number}]: no pool has the model {rule.model!r}"
                f"{_suggestion(rule.model, catalog.listed[:-1])}"
            )
    return catalog


def _check_unique(catalog: Catalog) -> None:
    owners: dict[str, str] = {AUTO: ""} if catalog.rules else {}
    for pool in catalog.pools:
        for name in (*pool.answers, *pool.aliases):
            if name in owners:
                where = f"pool {owners[name]} too" if owners[name] else "the rules of 'auto'"
                raise ValueError(f"pool {pool.name}: the name {name!r} is that of {where}")
            owners[name] = pool.name


def _check_fallback(pool: Pool, names: Sequence[str]) -> None:
    for name in pool.fallback:
        if name not in names:
            raise ValueError(
                f"pool {pool.name}: fallback: {name!r} is no pool{_suggestion(name, names)}"
            )
        if name == pool.name:
            raise ValueError(f"pool {pool.name}: fallback: it names the pool itself")
    if len(set(pool.fallback)) != len(pool.fallback):
        raise ValueError(f"pool {pool.name}: fallback: it names a pool twice")


def _pool(name: Any, value: Any) -> Pool:
    if not isinstance(name, str):
        raise ValueError(f"the name of a pool is not a text: {name!r}")
    topics.requests(name, topics.CLASSES[0])  # raises ValueError for an invalid name
    where = f"pool {name}"
    shape = _convert(value, PoolShape, where)
    answer = shape.max_output_tokens or min(
        shapes.DEFAULT_OUTPUT_TOKENS,
        shape.max_model_len // 4,
        shape.output_limit or shape.max_model_len,
    )
    for member, tokens in (
        ("max_output_tokens", answer),
        ("output_limit", shape.output_limit),
    ):
        if tokens > shape.max_model_len:
            raise ValueError(f"{where}: {member} is above its max_model_len")
    if shape.output_limit and answer > shape.output_limit:
        raise ValueError(f"{where}: max_output_tokens is above its output_limit")
    if shape.engine:
        try:
            engines.find(shape.engine)
        except engines.UnknownEngine as error:
            raise ValueError(f"{where}: engine: {error}") from error
    if shape.hedge.share and shape.engine and engines.find(shape.engine) is engines.OPENAI:
        raise ValueError(f"{where}: hedge: an engine at a URL runs nothing twice")
    if isinstance(shape.canary, dict) and not any(shape.canary.values()):
        raise ValueError(f"{where}: canary: no revision has a weight above 0")
    if shape.cache == "none" and "enable_prefix_caching" in shape.engine_args:
        raise ValueError(f"{where}: engine_args.enable_prefix_caching: the member cache says it")
    return Pool(
        name,
        tuple(shape.models),
        shape.max_model_len,
        answer,
        shape.temperature,
        shape.top_p,
        shape.if_busy,
        shape.tokenizer,
        aliases=tuple(shape.aliases),
        engine=shape.engine,
        source=shape.source,
        engine_args=shape.engine_args,
        adapters=shape.adapters,
        max_num_seqs=shape.max_num_seqs,
        output_limit=shape.output_limit,
        price=shape.price,
        classes=tuple(dict.fromkeys(shape.classes)),
        cache=shape.cache,
        truncation=shape.truncation,
        fallback=shape.fallback,
        fallback_when_busy=shape.fallback_when_busy,
        shorter_when_busy=shape.shorter_when_busy,
        fallback_mid_answer=shape.fallback_mid_answer,
        late_after_s=shape.late_after_s,
        stalled_after_s=shape.stalled_after_s,
        canary=shape.canary,
        canary_bounds=shape.canary_bounds,
        cached_answers=shape.cached_answers,
        hedge=shape.hedge,
    )


def _convert(value: Any, shape: type[T], where: str) -> T:
    _check_names(value, shape, where)
    try:
        return msgspec.convert(value, shape)
    except msgspec.ValidationError as error:
        raise ValueError(f"{where}: {error}") from error


def _check_names(value: Any, shape: type[Any], where: str) -> None:
    """Check that a mapping has no member that the shape does not know."""
    if not isinstance(value, dict):
        raise ValueError(f"{where}: not a mapping")
    names = shape.__struct_fields__
    for name in value:
        if name not in names:
            raise ValueError(f"{where}: there is no member {name!r}{_suggestion(name, names)}")


def _suggestion(name: Any, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(str(name), list(names), 1)
    return f", perhaps {near[0]!r}" if near else ""
