"""vLLM's parsers of a model's answers, and their adjustments of a request.

The names come from the settings, or from a small table on the model's type and its chat template.
A parser from the settings must exist and fit the tokenizer, or the worker does not start; one from
the table that does not fit is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from tailrace import telemetry
from tailrace.prompts import chat_template
from tailrace.protocol import records
from worker.engines import (
    base,
    detokenizer,
    vllm_custom,
    vllm_formats,
    vllm_internals,
    vllm_items,
)

AUTO: Final = "auto"
NONE: Final = "none"

# (beginning of the model's type, text in its chat template, vLLM's parser); the first that fits.
TOOLS: Final = (
    ("deepseek_v3", "<｜tool▁calls▁begin｜>", "deepseek_v3"),
    ("glm4_moe", "<arg_key>", "glm45"),
    ("minimax_m2", "<minimax:tool_call>", "minimax_m2"),
    ("kimi_k2", "<|tool_calls_section_begin|>", "kimi_k2"),
    ("mistral", "[TOOL_CALLS]", "mistral"),
    ("llama", "<|python_tag|>", "llama3_json"),
    ("qwen3", "<function=", "qwen3_xml"),
    ("", "<tool_call>", "hermes"),
)
REASONING: Final = (
    ("qwen3", "</think>", "qwen3"),
    ("glm4_moe", "</think>", "glm45"),
    ("minimax_m2", "</think>", "minimax_m2"),
)


@dataclass(frozen=True, slots=True)
class Names:
    """Names of parsers, empty for none. `always`: the one for reasoning was named by the operator,
    so it reads every answer; one from the table reads those that need version 2 of the log anyway,
    which keeps plain answers readable for gateways of version 1."""

    tools: str
    reasoning: str
    always: bool = False


def names(
    tools: str, reasoning: str, model_type: str, template: str, *, opens_thinking: bool = False
) -> Names:
    """The names for a model. `tools`, `reasoning`: the settings. `opens_thinking`: the prompts end
    within the model's reasoning."""
    tool_parser = _find(TOOLS, model_type, template) if tools == AUTO else tools
    thinking = _find(REASONING, model_type, template) if reasoning == AUTO else reasoning
    if reasoning == AUTO and not thinking and opens_thinking:
        thinking = "deepseek_r1"
    always = reasoning not in (AUTO, NONE)
    return Names(_name_or_none(tool_parser), _name_or_none(thinking), always)


def usable(parsers: Names, tools: str, reasoning: str, changes: Sequence[str]) -> Names:
    """`parsers`, or none of them where the private state of vLLM's parsers is not as expected.
    `changes`: the differences.

    Raises:
        EngineDead: one of them is named by the settings, and cannot be used.
    """
    if not changes or not (parsers.tools or parsers.reasoning):
        return parsers
    what = f"vLLM's parsers are not as in {vllm_internals.WRITTEN_FOR}"
    if (parsers.tools and tools != AUTO) or (parsers.reasoning and reasoning != AUTO):
        raise base.EngineDead(f"{what}: {'; '.join(changes)}")
    because = f"{what}: no tools and no reasoning"
    telemetry.log(telemetry.Action.ENGINE_FALLBACK, because=because, changed=list(changes))
    return Names("", "")


def fitting(parsers: Names, tools: str, reasoning: str, tokenizer: Any) -> Names:
    """`parsers` without those of the table that do not fit the tokenizer.

    Raises:
        EngineDead: one that the settings name does not exist, or does not fit.
    """
    from vllm.parser.parser_manager import ParserManager

    def fits(setting: str, names: dict[str, Any]) -> bool:
        try:
            ParserManager.get_parser(**names, enable_auto_tools=True, tokenizer=tokenizer)
        except TypeError as error:
            if setting == AUTO:
                return False
            raise base.EngineDead(str(error)) from error
        return True

    return Names(
        parsers.tools if fits(tools, {"tool_parser_name": parsers.tools or None}) else "",
        parsers.reasoning
        if fits(reasoning, {"reasoning_parser_name": parsers.reasoning or None})
        else "",
        parsers.always,
    )


@dataclass(frozen=True, slots=True)
class Outline:
    """The request to vLLM apart from the prompt and the sampling.

    Attributes:
        constraint: vLLM's `StructuredOutputsParams`, or None.
        under_it: number of accepted ids that were made under the constraint.
        further: arguments of vLLM's `generate` about reasoning.
    """

    constraint: Any
    under_it: int
    further: dict[str, Any]


class Parsers:
    """The parsers of one model.

    Attributes:
        names: of those that are used.
    """

    def __init__(
        self, parser_names: Names, tokenizer: Any, fast: Any, config: Any, stop_ids: frozenset[int]
    ) -> None:
        """`parser_names`: names that fit. `tokenizer`, `fast`: of transformers, and the Rust one
        inside of it. `config`: vLLM's `ModelConfig`."""
        from vllm import __version__

        self.names = parser_names
        self._tokenizer = tokenizer
        self._fast = fast
        self._config = config
        self._stop_ids = stop_ids
        self._version = __version__
        self._classes: dict[tuple[str, str], Any] = {}

    def parsers_for(self, request: records.Request) -> tuple[str, str]:
        """The parsers for tools and for reasoning that this request needs."""
        if request.raw:
            return "", ""
        tools = self.names.tools if request.tools and request.tool_choice.mode != "none" else ""
        reasons = self.names.always or request.version == records.VERSION_2
        return tools, self.names.reasoning if reasons else ""

    def name(self, request: records.Request) -> str:
        """The value of `CLAIM.parser`."""
        used = "+".join(filter(None, self.parsers_for(request)))
        return f"{used}@vllm-{self._version}" if used else ""

    def item_parser(
        self, request: records.Request, prompt_ids: Sequence[int], variables: dict[str, Any]
    ) -> vllm_items.Items:
        """A new parser of this response. `variables`: of the chat template."""
        first_parser, vllm_request = self._adjust(request, variables)
        spare = [first_parser]

        def new_parser(count_after_reasoning: bool) -> Any:
            parser = spare.pop() if spare else self._new(request, vllm_request, variables)
            if count_after_reasoning:
                vllm_internals.skip_reasoning(parser)
            return parser

        skips = bool(vllm_request.skip_special_tokens)
        return vllm_items.Items(
            vllm_items.Kit(
                new_parser,
                vllm_request,
                prompt_ids,
                detokenizer.Detokenizer(
                    self._fast,
                    skip_special_tokens=skips,
                    prefix_ids=prompt_ids if request.continue_final else (),
                ),
                self._stop_ids,
                frozenset(t["custom"]["name"] for t in request.tools if t.get("type") == "custom"),
                _marks(first_parser.tool_parser, vllm_request),
                first_parser.tool_parser is not None
                and first_parser.tool_parser.engine_based_streaming,
                in_message=request.continue_final,
            )
        )

    def outline(self, job: base.GenerationInput, variables: dict[str, Any]) -> Outline:
        """The request to vLLM in this attempt."""
        request = job.request
        if not self.name(request):
            constraint = None if request.format is None else vllm_formats.constraint(request.format)
            return Outline(constraint, len(job.output_so_far) if constraint else 0, {})
        parser, vllm_request = self._adjust(request, variables)
        tools = [] if parser.tool_parser is None else _callable_tools(request)
        constraint = vllm_formats.limit_whitespace(
            vllm_request.extract_structured_outputs(), vllm_custom.grammars(tools)
        )
        if constraint is None:
            return Outline(None, 0, {})
        reasoner = parser.reasoning_parser
        if reasoner is None:
            # The engine has one parser for all requests. This one's reasoning is plain text.
            plain = {"reasoning_ended": True} if self.names.reasoning else {}
            return Outline(constraint, len(job.output_so_far), plain)
        reasoning_over = request.continue_final or bool(
            vllm_request.resolve_reasoning_ended(parser, list(job.prompt_ids))
        )
        count = len(job.output_so_far)
        if not reasoning_over:
            count = count_after_reasoning(reasoner, job.prompt_ids, job.output_so_far)
        kwargs = {"chat_template_kwargs": variables}
        further: dict[str, Any] = {
            "reasoning_ended": reasoning_over or count > 0 or _ends_reasoning(reasoner, job),
            "reasoning_parser_kwargs": kwargs,
        }
        return Outline(constraint, count, further)

    def _class(self, tools: str, reasoning: str) -> Any:
        from vllm.parser.parser_manager import ParserManager

        if not tools and not reasoning:
            return None
        key = (tools, reasoning)
        if key not in self._classes:
            self._classes[key] = ParserManager.get_parser(
                tools or None,
                reasoning or None,
                enable_auto_tools=True,
                model_name=str(self._config.model),
                # The frame of a call is enforced also where its arguments are not.
                tool_strict_level="function",
                tokenizer=self._tokenizer,
            )
        return self._classes[key]

    def _new(self, request: records.Request, vllm_request: Any, variables: dict[str, Any]) -> Any:
        return self._class(*self.parsers_for(request))(
            self._tokenizer,
            vllm_request.tools,
            chat_template_kwargs=variables,
            model_config=self._config,
        )

    def _adjust(self, request: records.Request, variables: dict[str, Any]) -> tuple[Any, Any]:
        vllm_request = vllm_request_of(request)
        parser = self._new(request, vllm_request, variables)
        return parser, parser.adjust_request(vllm_request)


def vllm_request_of(request: records.Request) -> Any:
    """vLLM's request with the members that its parsers read."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    choice = request.tool_choice
    tools = [_tool(t) for t in _callable_tools(request)]
    mode: Any = choice.mode
    if mode == "required" and len(choice.names) == 1:
        mode = {"type": "function", "function": {"name": choice.names[0]}}
    vllm_request = ChatCompletionRequest(
        messages=[{"role": "user", "content": ""}],
        **({"tools": tools, "tool_choice": mode} if tools and mode != "none" else {}),
        parallel_tool_calls=request.parallel_tool_calls and request.max_tool_calls != 1,
    )
    if request.format is not None:
        vllm_request.structured_outputs = vllm_formats.constraint(request.format)
    return vllm_request


def count_after_reasoning(reasoner: Any, prompt_ids: Sequence[int], ids: Sequence[int]) -> int:
    """How many of the accepted ids are after the reasoning, if the prompt is not. The engine
    decides it for each id in the same way."""
    at = _end_of_reasoning(reasoner, prompt_ids, ids)
    return 0 if at is None else len(ids) - at


def _end_of_reasoning(reasoner: Any, prompt_ids: Sequence[int], ids: Sequence[int]) -> int | None:
    """The place of the first id under the grammar."""
    from vllm.parser.engine.adapters import ParserEngineReasoningAdapter

    by_engine = isinstance(reasoner, ParserEngineReasoningAdapter)
    if by_engine and reasoner.reasoning_end_token_ids:
        for at, token in enumerate(ids):
            end = reasoner.find_reasoning_end([token])
            if end is not None:
                return at if end.implicit else at + 1
        return None
    ids_so_far = list(prompt_ids)
    for at, token in enumerate(ids):
        ids_so_far.append(token)
        if reasoner.is_reasoning_end_streaming(ids_so_far, [token]):
            return at + 1
    return None


def _ends_reasoning(reasoner: Any, job: base.GenerationInput) -> bool:
    """Whether the last accepted id ended the reasoning."""
    return _end_of_reasoning(reasoner, job.prompt_ids, job.output_so_far) is not None


def _callable_tools(request: records.Request) -> list[dict[str, Any]]:
    """The tools that may be called."""
    names = request.tool_choice.names
    return [t for t in request.tools if not names or _name(t) in names]


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    """In vLLM's form; strict unless the client disabled that."""
    template_tool = chat_template.tool_for_template(tool)
    strict = tool.get("type") == "custom" or tool["function"].get("strict") is not False
    function = {**template_tool["function"], "strict": strict}
    if ((tool.get("custom") or {}).get("format") or {}).get("type") == "grammar":
        title = vllm_custom.TITLE + function["name"]
        function["parameters"] = {**function["parameters"], "title": title}
    return {"type": "function", "function": function}


def _name(tool: dict[str, Any]) -> str:
    return str(tool[tool.get("type", "function")]["name"])


def _marks(parser: Any, vllm_request: Any) -> tuple[str, str] | None:
    """The marks around a call, for a parser that reads the text between them."""
    if parser is None or parser.engine_based_streaming:
        return None
    if parser.supports_required_and_named and vllm_request.tool_choice != "auto":
        return None  # the answer is a JSON array, without marks
    begin = getattr(parser, "tool_call_start_token", None)
    end = getattr(parser, "tool_call_end_token", None)
    return (begin, end) if isinstance(begin, str) and isinstance(end, str) else None


def _find(table: Sequence[tuple[str, str, str]], model_type: str, template: str) -> str:
    return next(
        (n for kind, mark, n in table if model_type.startswith(kind) and mark in template), ""
    )


def _name_or_none(name: str) -> str:
    return "" if name == NONE else name
