"""The ids of prompts without an engine: by the model's own template and tokenizer, from its folder.

What transformers does with them is done here with `jinja2` and `tokenizers` alone, which take a
hundredth of its memory and start. Whether both agree for a model is found out (`agreement`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

import jinja2
import jinja2.sandbox
import tokenizers

from tailrace.prompts import agreement, chat_template
from tailrace.protocol import images, records

_SPECIAL: Final = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token")


class NotCountable(Exception):
    """The prompts of this model can only be counted by its engine. The message says why."""


class Counter:
    """Counts the tokens of prompts. Not for several threads at once.

    Attributes:
        digest: equal to an engine's where both make the same ids (`agreement.digest`).
    """

    def __init__(self, folder: Path) -> None:
        """Read the model's files; takes up to a second.

        Raises:
            NotCountable
        """
        self._tokenizer = _FolderTokenizer(folder)
        self._template = chat_template.Template(self._tokenizer)
        self.digest = agreement.digest(
            self._template.render,
            self._tokenizer.raw_ids,
            self._template.text,
            self._tokenizer.fast.to_str(),
        )
        if not self.digest:
            raise NotCountable("its template makes other prompts at other times")

    def count(self, request: records.Request) -> int | None:
        """The number of tokens of a request's prompt, without those that a fork copies; None if
        only the engine can count: with images, for embeddings, and if the template refuses the
        request.
        """
        ids = self.ids(request)
        return None if ids is None else len(ids)

    def ids(self, request: records.Request) -> list[int] | None:
        """The tokens of the prompt, or None (see `count`)."""
        if request.embed is not None or images.any_in(request.messages):
            return None
        if request.raw:
            return self._tokenizer.raw_ids(chat_template.raw_text(request))
        try:
            return self._template.render(request)
        except chat_template.Unrenderable:
            return None


class _FolderTokenizer:
    """The tokenizer interface that `chat_template.Template` needs."""

    def __init__(self, folder: Path) -> None:
        try:
            self.fast = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
            config = json.loads((folder / "tokenizer_config.json").read_text())
            self.chat_template = _source(folder, config)
        except Exception as error:  # the library has no type of its own
            raise NotCountable(f"its files cannot be read: {error}") from error
        # Its file may contain a truncation, which is not wanted here.
        self.fast.no_truncation()
        self.fast.no_padding()
        self._special = _special_tokens(config)
        try:
            self._compiled = {
                name: _ENVIRONMENT.from_string(text) for name, text in self._templates().items()
            }
        except jinja2.TemplateError as error:
            raise NotCountable(f"its template is not plain Jinja: {error}") from error

    def apply_chat_template(
        self,
        messages: Any,
        *,
        tools: Any = None,
        tokenize: bool = True,
        add_generation_prompt: bool = False,
        return_dict: bool = False,
        **variables: Any,
    ) -> Any:
        """Like that of transformers, which gives a template an empty list if there are no tools."""
        several = self._compiled.keys()
        name = "tool_use" if tools is not None and "tool_use" in several else "default"
        text = self._compiled[name].render(
            messages=messages,
            tools=tools or [],
            documents=None,
            add_generation_prompt=add_generation_prompt,
            **{**self._special, **variables},
        )
        return list(self.fast.encode(text, add_special_tokens=False).ids) if tokenize else text

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Like that of transformers."""
        return list(self.fast.encode(text, add_special_tokens=add_special_tokens).ids)

    def raw_ids(self, text: str) -> list[int]:
        """The ids of a text, with the tokenizer's prefix."""
        return list(self.fast.encode(text).ids)

    def _templates(self) -> Mapping[str, str]:
        templates = self.chat_template
        return templates if isinstance(templates, dict) else {"default": templates}


def _source(folder: Path, config: dict[str, Any]) -> str | dict[str, str]:
    """The template's source, or several by name."""
    if (folder / "additional_chat_templates").exists():
        raise ValueError("several templates in files of their own are not supported")
    file = folder / "chat_template.jinja"
    source = file.read_text() if file.exists() else config.get("chat_template")
    if isinstance(source, list):
        source = {each["name"]: each["template"] for each in source}
    if not source or (isinstance(source, dict) and "default" not in source):
        raise ValueError("it has no template")
    return source


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    tokens = {}
    for name in _SPECIAL:
        value = config.get(name)
        value = value.get("content") if isinstance(value, dict) else value
        if isinstance(value, str):
            tokens[name] = value
    return tokens


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter would escape `<`, `>`, `&` and quotes."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _environment() -> jinja2.Environment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    return environment


_ENVIRONMENT: Final = _environment()
