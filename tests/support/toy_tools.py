"""A toy model whose chat template knows tools and reasoning. Runs in the engine environment.

    .venv-engine/bin/python -m tests.support.toy_tools SOURCE TARGET

It is the toy of `bench.toy_model` with another tokenizer: four special tokens that nothing uses are
called `<think>`, `</think>`, `<tool_call>` and `</tool_call>`, and the template writes tools and
calls as the Hermes models do. Weights are random, so what it says has no meaning: a grammar or a
bias makes it say something in particular.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

from bench import toy_model

RENAMED: Final = {
    "<empty_output>": "<think>",
    "<jupyter_script>": "</think>",
    "<jupyter_output>": "<tool_call>",
    "<jupyter_code>": "</tool_call>",
}
THINK: Final = 16
THINK_END: Final = 15
CALL: Final = 14
CALL_END: Final = 13

TEMPLATE: Final = """\
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
{{- '# Tools\\n<tools>' }}
{%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}
{{- '\\n</tools><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + message.content }}
{{- '\\n</tool_response><|im_end|>\\n' }}
{%- elif message.role != 'system' or not tools %}
{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- (call.function.arguments | tojson) + '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and not enable_thinking %}{{- '<think>\\n\\n</think>\\n\\n' }}
{%- endif %}
{%- endif %}
"""


def build(source: Path, target: Path) -> None:
    """Write the model folder `target`. `source`: the small model."""
    toy_model.build(source, target)
    path = target / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    for token in tokenizer["added_tokens"]:
        token["content"] = RENAMED.get(token["content"], token["content"])
    vocabulary = tokenizer["model"]["vocab"]
    tokenizer["model"]["vocab"] = {RENAMED.get(t, t): i for t, i in vocabulary.items()}
    path.write_text(json.dumps(tokenizer, ensure_ascii=False))
    (target / "chat_template.jinja").write_text(TEMPLATE)


if __name__ == "__main__":
    build(Path(sys.argv[1]), Path(sys.argv[2]))
