"""What a request needs of others: readers that know its record, workers that can do it (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from gateway.parsing import command, conversation, images
from tailrace.protocol import errors, features, records

VARIABLE: Final = "TAILRACE_RECORDS_VERSION"
_WORDS: Final[Mapping[features.Feature, str]] = {
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

# Clients are told beforehand that it can be had, so whichever worker owns the partition has to.
_OF_ALL: Final[frozenset[features.Feature]] = frozenset({"continuation"})


def check(
    create: command.Create,
    request: records.Request,
    *,
    newest: int,
    workers: Sequence[Mapping[str, Any]],
) -> None:
    """Refuse what this deployment or the pool does not have.

    Args:
        create: what `request` was made from.
        newest: the newest record version that may be written.
        workers: heartbeats of the pool. While none is known the request waits in the log, and the
            worker that takes it refuses what it cannot do.

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
    needs = features.needed(request)
    known = list(_told(workers)) if needs else []
    if not known:
        return
    for need in needs:
        enough = all if need.feature in _OF_ALL else any
        if not enough(need.feature in each for each in known):
            what = _WORDS.get(need.feature, f"'{need.feature}' is")
            raise errors.unsupported_parameter(
                _param(create, need.field), f"{what} not supported by the model '{create.model}'."
            )


def continues(workers: Sequence[Mapping[str, Any]]) -> bool:
    """Whether all workers of a pool continue texts, as far as they are known."""
    return all("continuation" in each for each in _told(workers))


def takes_images(workers: Sequence[Mapping[str, Any]]) -> bool | None:
    """Whether a worker of a pool takes images; None while none tells."""
    known = list(_told(workers))
    return any("images" in each for each in known) if known else None


def _told(workers: Sequence[Mapping[str, Any]]) -> Iterator[list[str]]:
    """The features of each worker that tells them."""
    for worker in workers:
        told = worker.get("features")
        if worker.get("state") != "loading" and isinstance(told, list):
            yield told


def embed_only(workers: Sequence[Mapping[str, Any]]) -> bool:
    """Whether it is known that none of the workers of a pool generates text."""
    some = False
    for told in _told(workers):
        if features.generates_text(told):
            return False
        some = True
    return some


def _param(create: command.Create, member: str) -> str:
    """The client's name of a member of the record."""
    if member == "format" and create.format is not None:
        return create.format.param
    if member == "reasoning.effort" and create.reasoning is not None:
        return create.reasoning.param
    if member == "logprobs":
        return create.logprobs_param or member
    if member == "input":
        return images.first(create.turn) or member  # the conversation may have shown it before
    if member == "previous_response_id" and create.previous is None:
        return "conversation"
    if member == "output":
        outputs = [i for i in create.turn if isinstance(i, conversation.CallOutput)]
        return images.first(outputs) or "input"
    return member


def _later(create: command.Create, request: records.Request) -> Iterator[str]:
    """The fields that need records of version 2, in the client's names."""
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
    usual = records.Sampling(1)
    for name in ("top_k", "min_p", "repetition_penalty", "min_tokens", "ignore_eos"):
        if getattr(request.sampling, name) != getattr(usual, name):
            yield name
    if (where := images.first(create.turn)) is not None:
        yield where
    for item in create.turn:
        if not isinstance(item, conversation.Message):
            yield item.where
