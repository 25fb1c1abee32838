"""What a request requires: readers that know its record version, workers with its features
(pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from gateway.parsing import command, conversation, images
from tailrace.protocol import engine_fields, errors, features, records

VARIABLE: Final = "TAILRACE_RECORDS_VERSION"
_WORDS: Final[Mapping[str, str]] = {
    "tools": "Tools are",
    "custom_tools": "Custom tools are",
    "effort": "An effort of reasoning is",
    "formats": "Formats other than text are",
    "logprobs": "Log probabilities are",
    "images": "Images are",
    "tool_images": "Images in the output of a tool are",
    "forks": "Forks are",
    "continuation": "Continuing the text of an answer is",
    "raw_prompts": "Prompts without a chat template are",
    "embeddings": "Embeddings are",
    "dimensions": "Fewer dimensions than it has are",
}

# Clients learn beforehand that this works, so each worker of the pool must have it.
_OF_ALL: Final = frozenset({"continuation"})


class _Need(NamedTuple):
    """A feature that a request needs.

    Attributes:
        name: a feature, or with `own` a field of `engine_fields.TABLE`.
        member: the member of the request (a dotted path) that needs it.
    """

    name: str
    member: str
    own: bool


def check(
    create: command.Create,
    request: records.Request,
    *,
    newest: int,
    workers: Sequence[Mapping[str, Any]],
) -> Sequence[Mapping[str, Any]]:
    """Refuse a request that needs what this deployment or the pool lacks.

    Args:
        create: the command of `request`.
        newest: the newest record version that may be written.
        workers: heartbeats of the pool, or of those of its workers that may get the request.
            Without any the request waits in the log, and its worker refuses what it cannot do.

    Returns:
        The workers that have all of it, by their heartbeats.

    Raises:
        errors.ApiError: 400 naming the field.
    """
    if request.version > newest:
        param = next(_later(create, request), "input")
        raise errors.unsupported_parameter(
            param,
            f"'{param}' is not supported here yet: it needs records of version "
            f"{request.version} ({VARIABLE}).",
        )
    if request.embed is None and embed_only(workers):
        raise errors.unsupported_value(
            "model",
            f"The model '{create.model}' generates no text. It makes embeddings: POST "
            "/v1/embeddings.",
        )
    needs = _needs(request)
    lacks = [_lacks(worker, needs) for worker in workers if _reports_features(worker)]
    if not any(lacks):
        return workers
    for each in needs:
        lacking = [each in of_worker for of_worker in lacks]
        if all(lacking) or (any(lacking) and each.name in _OF_ALL):
            raise _unsupported(create, each)
    if all(lacks):  # no worker has all of it
        raise _unsupported(create, lacks[0][0])
    return [
        worker for worker in workers if not (_reports_features(worker) and _lacks(worker, needs))
    ]


def continues(workers: Sequence[Mapping[str, Any]]) -> bool:
    """Whether all known workers of a pool continue texts."""
    return all("continuation" in each for each in _features(workers))


def takes_images(workers: Sequence[Mapping[str, Any]]) -> bool | None:
    """Whether a worker of a pool accepts images; None while none reports its features."""
    features_of_workers = list(_features(workers))
    return any("images" in each for each in features_of_workers) if features_of_workers else None


def _needs(request: records.Request) -> list[_Need]:
    """What a request needs from the engine."""
    needs = [_Need(need.feature, need.field, own=False) for need in features.needs_of(request)]
    return needs + [
        _Need(row.name, row.member, own=True) for row in engine_fields.rows_for(request)
    ]


def _lacks(worker: Mapping[str, Any], needs: Sequence[_Need]) -> list[_Need]:
    """The needs that a worker does not meet."""
    not_offered = worker.get("not_offered")  # not by older ones
    refused = not_offered if isinstance(not_offered, list) else []
    return [
        each
        for each in needs
        if (each.name in refused if each.own else each.name not in worker["features"])
    ]


def _reports_features(worker: Mapping[str, Any]) -> bool:
    return worker.get("state") != "loading" and isinstance(worker.get("features"), list)


def _unsupported(create: command.Create, need: _Need) -> errors.ApiError:
    param = _param(create, need.member)
    what = f"'{need.name}' is" if need.own else _WORDS.get(need.name, f"'{need.name}' is")
    return errors.unsupported_parameter(
        param, f"{what} not supported by the model '{create.model}'."
    )


def _features(workers: Sequence[Mapping[str, Any]]) -> Iterator[list[str]]:
    """The features of each worker that reports them."""
    for worker in workers:
        if _reports_features(worker):
            yield worker["features"]


def embed_only(workers: Sequence[Mapping[str, Any]]) -> bool:
    """Whether all workers that report features generate no text; False without any."""
    some = False
    for worker_features in _features(workers):
        if features.generates_text(worker_features):
            return False
        some = True
    return some


def _param(create: command.Create, member: str) -> str:
    """The client's field name for a member of the record."""
    if member == "format" and create.format is not None:
        return create.format.param
    if member == "reasoning.effort" and create.reasoning is not None:
        return create.reasoning.param
    if member == "logprobs":
        return create.logprobs_param or member
    if member == "input":
        return images.first(create.turn) or member  # an earlier turn may have shown it
    if member == "previous_response_id" and create.previous is None:
        return "conversation"
    if member == "output":
        outputs = [i for i in create.turn if isinstance(i, conversation.CallOutput)]
        return images.first(outputs) or "input"
    return member


def _later(create: command.Create, request: records.Request) -> Iterator[str]:
    """The fields that need records of version 2, by the client's names."""
    if request.fork is not None:
        yield "fork"
    if request.raw:
        yield "prompt"
    if request.continue_final:
        yield _param(create, "previous_response_id")
    if request.truncate:
        yield "truncation"
    if request.tools:
        yield "tools"
    if create.format is not None:
        yield create.format.param
    if request.sampling.logprobs is not None:
        yield create.logprobs_param or "logprobs"
    defaults = records.Sampling(1)
    for name in ("top_k", "min_p", "repetition_penalty", "min_tokens", "ignore_eos"):
        if getattr(request.sampling, name) != getattr(defaults, name):
            yield name
    if (where := images.first(create.turn)) is not None:
        yield where
    for item in create.turn:
        if not isinstance(item, conversation.Message):
            yield item.where
