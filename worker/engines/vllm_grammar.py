"""Continues a grammar after the accepted tokens: our plugin in vLLM, and its parameter.

vLLM begins a request's grammar anew. A continued answer would then be two objects in one text,
without any error. The accepted ids are the tail of the engine's prompt, so only their number is
passed: `arguments` puts it into the sampling parameters, and the plugin (`register`, entry-point
group `vllm.general_plugins`: vLLM loads it in each of its processes) lets the new grammar accept
them before the request may run. Ids that do not fit end the request with an error.

The method that the plugin wraps is private. If it changed, or if the plugin was not loaded, nothing
would fail. So a worker runs a `canary` before it reports that formats can be continued: a request
whose accepted part allows one continuation only.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

KEY: Final = "tailrace_under_grammar"  # number of the prompt's last ids that were made under it
CANARY: Final = "canary:0123456789"
_MODULE: Final = "vllm.v1.structured_output"


def arguments(count: int) -> dict[str, Any] | None:
    """For `SamplingParams.extra_args`: the last `count` ids of the prompt were made under the
    grammar of this request."""
    return {KEY: count} if count else None


def register() -> None:
    """Wrap vLLM's creation of a grammar. Called once or more in every process of vLLM."""
    manager = getattr(importlib.import_module(_MODULE), "StructuredOutputManager", None)
    create = getattr(manager, "_create_grammar", None)
    if create is None or getattr(create, "tailrace", False):
        return  # without it the canary fails

    def create_grammar(self: Any, request: Any) -> Any:
        # In vLLM's compile thread, before the request may be scheduled.
        grammar = create(self, request)
        count = (request.sampling_params.extra_args or {}).get(KEY, 0)
        if count:
            accepted = list(request.prompt_token_ids[-count:])
            if not grammar.accept_tokens(request.request_id, accepted):
                raise ValueError("the accepted tokens do not fit the grammar")
        return grammar

    create_grammar.tailrace = True  # type: ignore[attr-defined]
    manager._create_grammar = create_grammar  # type: ignore[union-attr]
