"""Known fields of either API that this product cannot honour, and the values that ask for nothing
(pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gateway.parsing.json_body import Body
from tailrace.protocol import errors

# OpenAI's, and those of vLLM's own server that its clients send. Null, and what is listed, ask for
# nothing beyond what happens anyway.
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
    "request_id": (),  # it would be the answer's
    "cache_salt": (),  # the salt is its owner's: no narrower one can be asked for
    "kv_transfer_params": ({},),
    "ec_transfer_params": ({},),
    "vllm_xargs": ({},),
}


def check(body: Body, *, apart_from: frozenset[str] = frozenset()) -> None:
    """Refuse what would be silently left undone. `apart_from`: fields that this API has.

    Raises:
        errors.ApiError: 400 `unsupported_parameter` naming the field.
    """
    check_fields(body, {n: nothing for n, nothing in _FIELDS.items() if n not in apart_from})


def check_fields(body: Body, fields: Mapping[str, tuple[Any, ...]]) -> None:
    """Like `check`, with other fields. Of each the values that ask for nothing, beside null."""
    for name, nothing in fields.items():
        value = body.get(name)
        if value is not None and not _among(value, nothing):
            raise errors.unsupported_parameter(name)


def _among(value: Any, nothing: tuple[Any, ...]) -> bool:
    """Whether the value is one of these; a number is no boolean."""
    return any(
        value == each and isinstance(value, bool) == isinstance(each, bool) for each in nothing
    )
