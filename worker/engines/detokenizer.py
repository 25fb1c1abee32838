"""Token ids to text with the `tokenizers` library, incrementally."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

_CONTEXT_IDS: Final = 8  # the decoding of a withheld character may depend on this many ids before


class Detokenizer:
    """The library's `DecodeStream`, and the ids that it withholds at the end.

    Attributes:
        _stream: the library's decoder; a new one after ids that are not text.
        _context: the last ids whose text was returned.
        _withheld_ids: ids whose text was not returned yet; empty at the end of a character.
    """

    def __init__(
        self, tokenizer: Any, *, skip_special_tokens: bool = True, prefix_ids: Sequence[int] = ()
    ) -> None:
        """`prefix_ids`: ids whose text is continued. Some tokenizers omit the space at the
        beginning of a text."""
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._stream = _new_stream(self._skip)
        self._context: list[int] = []
        self._withheld_ids: list[int] = []
        self.push(prefix_ids[-_CONTEXT_IDS:])
        self._withheld_ids.clear()

    def push(self, ids: Sequence[int]) -> str:
        return "".join(map(self._one, ids))

    def flush(self) -> str:
        if not self._withheld_ids:
            return ""
        before = self._decode(self._context)
        rest, self._withheld_ids = (
            self._decode(self._context + self._withheld_ids)[len(before) :],
            [],
        )
        return rest

    def _one(self, token: int) -> str:
        try:
            text = self._stream.step(self._tokenizer, token)
        except Exception as error:  # the library raises plain Exception
            if "Invalid prefix" not in str(error):
                raise
            # vLLM does the same: a new decoder starts after the sequence that is not text.
            self._stream = _new_stream(self._skip)
            text = self._stream.step(self._tokenizer, token)
        self._withheld_ids.append(token)
        if not text:
            return ""
        self._context, self._withheld_ids = (self._context + self._withheld_ids)[-_CONTEXT_IDS:], []
        return str(text)

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=self._skip))


def _new_stream(skip_special_tokens: bool) -> Any:
    from tokenizers import decoders

    return decoders.DecodeStream(skip_special_tokens=skip_special_tokens)
