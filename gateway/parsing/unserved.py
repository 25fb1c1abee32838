"""Known fields that this product does not support, with their neutral values (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gateway.parsing.json_body import Body
from tailrace.protocol import errors

# Fields of OpenAI, and of vLLM's own server. Null and the listed values are neutral: they change
# nothing.
_FIELDS: Final[Mapping[str, tuple[Any, ...]]] = {
    "access_programs": ({},),
    "context_management": ([],),
    "moderation": (),
    "best_of": (1,),
    "use_beam_search": (False,),
    "length_penalty": (1,),
    "stop_token_ids": ([],),
    "include_stop_str_in_output": (False,),
    "bad_words": ([],),
    "allowed_token_ids": (),
    "prompt_logprobs": (),
    "truncate_prompt_tokens": (),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "logits_processors": ([],),
    "thinking_token_budget": (),
    "chat_template": (),
    "documents": ([],),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "add_special_tokens": (False,),
    "mm_processor_kwargs": ({},),
    "media_io_kwargs": ({},),
    "echo": (False,),
    "include_reasoning": (True,),
    "enable_response_messages": (False,),
    "previous_input_messages": ([],),
    "prompt_embeds": ([],),
    "return_prompt_text": (False,),
    "logprob_token_ids": (),
    "repetition_detection": (),
    "watermarking": (False,),
    "priority": (0,),
    "request_id": (),  # it would become the id of the answer
    "cache_salt": (),  # the salt depends on the owner; a client cannot narrow it
    "kv_transfer_params": ({},),
    "ec_transfer_params": ({},),
    "vllm_xargs": ({},),
}


def check(body: Body, *, apart_from: frozenset[str] = frozenset()) -> None:
    """Refuse fields that would be ignored silently. `apart_from`: fields that this API supports.

    Raises:
        errors.ApiError: 400 `unsupported_parameter` naming the field.
    """
    check_fields(body, {n: nothing for n, nothing in _FIELDS.items() if n not in apart_from})


def check_fields(body: Body, fields: Mapping[str, tuple[Any, ...]]) -> None:
    """Like `check`, with other fields. `fields` maps each to its neutral values other than null."""
    for name, nothing in fields.items():
        value = body.get(name)
        if value is not None and not _among(value, nothing):
            raise errors.unsupported_parameter(name)


def _among(value: Any, nothing: tuple[Any, ...]) -> bool:
    """Whether the value is one of these; a number does not equal a boolean."""
    return any(
        value == each and isinstance(value, bool) == isinstance(each, bool) for each in nothing
    )
