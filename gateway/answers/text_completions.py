"""Completions of text: responses in that API's form (pure). See
`gateway.answers.chat_completions`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from gateway.answers import chat_completions, failures
from tailrace.protocol import errors, events, ids

INPUT: Final = "prompt"
_PREFIX: Final = "cmpl-"
_encode = msgspec.json.Encoder().encode


class _Likely(msgspec.Struct):
    token: str
    logprob: float


class _Token(_Likely):
    top_logprobs: list[_Likely] = []


class _Delta(msgspec.Struct):
    logprobs: list[_Token] = []


_delta = msgspec.json.Decoder(_Delta).decode
_tokens = msgspec.json.Decoder(list[_Token]).decode


def _head(responses: Sequence[dict[str, Any]]) -> dict[str, Any]:
    rests = [each["id"][len(ids.PREFIX) :] for each in responses]
    return {
        "id": _PREFIX + ".".join(rests),
        "object": "text_completion",
        "created": responses[0]["created_at"],
        "model": responses[0]["model"],
    }


def usage(responses: Sequence[dict[str, Any]], per_prompt: int) -> dict[str, Any]:
    """Usage of all choices. Each prompt has `per_prompt` successive choices."""
    firsts = range(0, len(responses), per_prompt)
    parts = [chat_completions.usage(responses[at : at + per_prompt]) for at in firsts]
    totals: dict[str, Any] = {
        name: sum(part[name] for part in parts)
        for name in ("prompt_tokens", "completion_tokens", "total_tokens")
    }
    cached = sum(part["prompt_tokens_details"]["cached_tokens"] for part in parts)
    return {**totals, "prompt_tokens_details": {"cached_tokens": cached}}


def completion(
    responses: Sequence[dict[str, Any]], prompts: Sequence[str], *, echo: bool = False
) -> dict[str, Any]:
    """The whole answer as one object. `responses`: one for each choice, those of the first prompt
    first.

    Raises:
        errors.ApiError: one of them failed.
    """
    for response in responses:
        if response["status"] == "failed":
            raise failures.error_of(response, INPUT)
    per_prompt = len(responses) // len(prompts)
    choices = []
    for index, response in enumerate(responses):
        parts = [p for i in response["output"] if i["type"] == "message" for p in i["content"]]
        text = "".join(part["text"] for part in parts)
        tokens = [t for p in parts if p["logprobs"] for t in _tokens(p["logprobs"])]
        choices.append(
            {
                "index": index,
                "text": prompts[index // per_prompt] + text if echo else text,
                "logprobs": _logprobs(tokens, 0) if tokens else None,
                "finish_reason": chat_completions.FINISH[response["status"]],
            }
        )
    return {
        **_head(responses),
        "choices": choices,
        "usage": usage(responses, per_prompt),
        **chat_completions.marks(responses),
    }


def _logprobs(tokens: Sequence[_Token], offset: int) -> dict[str, Any]:
    """`offset`: characters of the choice's text before the first token."""
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token.token)
    return {
        "tokens": [token.token for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [{t.token: t.logprob for t in token.top_logprobs} for token in tokens],
        "text_offset": offsets,
    }


class Stream:
    """The body of a stream, from the events of all its choices.

    Attributes:
        _lengths: characters of each choice so far.
        _finals: the final Response objects, by choice.
        _failed: a choice failed. No chunk follows the error.
    """

    def __init__(
        self,
        echoes: Sequence[dict[str, Any]],
        prompts: Sequence[str],
        *,
        include_usage: bool,
        logprobs: bool = False,
        echo: bool = False,
    ) -> None:
        """`echoes`: those of the responses, one for each choice."""
        self._head = _head(echoes)
        self._per_prompt = len(echoes) // len(prompts)
        self._before = [prompts[i // self._per_prompt] if echo else "" for i in range(len(echoes))]
        self._lengths = [0] * len(echoes)
        self._include_usage = include_usage
        self._logprobs = logprobs
        self._finals: dict[int, dict[str, Any]] = {}
        self._failed = False

    def encode_choice(self, choice_event: tuple[int, events.Event]) -> bytes:
        """Return the bytes that this event of a choice adds to the body."""
        index, event = choice_event
        if self._failed:
            return b""
        if event.response is not None and not index:  # it may differ from the requested one
            self._head["model"] = event.response["model"]
            if len(self._lengths) == 1:
                self._head.update(chat_completions.marks([event.response]))
        if event.type == "response.output_text.delta" and event.delta is not None:
            tokens = _delta(event.body).logprobs if self._logprobs else []
            out = self._chunk(index, self._prefix(index) + event.delta, tokens)
            self._lengths[index] += len(event.delta)
            return out
        if not event.terminal or event.response is None:
            return b""
        if event.response["status"] == "failed":
            self._failed = True
            return _data(errors.http_body(failures.error_of(event.response, INPUT)))
        self._finals[index] = event.response
        out = self._chunk(
            index, self._prefix(index), (), chat_completions.FINISH[event.response["status"]]
        )
        if self._include_usage and len(self._finals) == len(self._lengths):
            finals = [self._finals[i] for i in range(len(self._lengths))]
            out += _data({**self._head, "choices": [], "usage": usage(finals, self._per_prompt)})
        return out

    def _prefix(self, index: int) -> str:
        """The text before a choice's first characters; empty after the first call."""
        before, self._before[index] = self._before[index], ""
        return before

    def _chunk(
        self, index: int, text: str, tokens: Sequence[_Token], finish: str | None = None
    ) -> bytes:
        choice = {
            "index": index,
            "text": text,
            "logprobs": _logprobs(tokens, self._lengths[index]) if tokens else None,
            "finish_reason": finish,
        }
        body = {**self._head, "choices": [choice]}
        return _data({**body, "usage": None} if self._include_usage else body)


def _data(body: dict[str, Any]) -> bytes:
    return b"data: " + _encode(body) + b"\n\n"
