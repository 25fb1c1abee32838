"""Log probabilities: from vLLM's tables by id to the log's entries, with the bytes of each token.

vLLM does not detokenize here. Text alone would not suffice: a token may be half a character, so the
tokens' bytes are needed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tailrace.protocol import records

Tables = Sequence[Mapping[int, Any]]
"""For each new id: vLLM's `Logprob` by id, including the id itself."""


class TokenBytes:
    """The bytes of each id of a tokenizer.

    Attributes:
        _markers: ids of special tokens (end of turn, …), which no reader sees.
        _plain: contents of other added tokens, which stand for themselves.
        _letters: of a byte-level tokenizer: the byte that each letter stands for. Else None.
    """

    def __init__(self, tokenizer: Any) -> None:
        """`tokenizer`: of the `tokenizers` library."""
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self._markers = {i: a.content.encode() for i, a in added.items() if a.special}
        self._plain = {i: a.content.encode() for i, a in added.items() if not a.special}
        decoder = json.loads(tokenizer.to_str()).get("decoder")
        self._letters = _byte_letters() if "ByteLevel" in json.dumps(decoder) else None
        self._cache: dict[int, bytes] = {}

    def token_bytes(self, token: int) -> bytes:
        """The token's bytes; for a special token its name."""
        token_bytes = self._cache.get(token)
        if token_bytes is None:
            token_bytes = self._cache[token] = self._look_up(token)
        return token_bytes

    def text_bytes(self, token: int) -> bytes:
        """Like `token_bytes`, but empty for a special token, which is not text of the answer."""
        return b"" if token in self._markers else self.token_bytes(token)

    def _look_up(self, token: int) -> bytes:
        added: bytes | None = self._markers.get(token) or self._plain.get(token)
        if added is not None:
            return added
        piece = self._tokenizer.id_to_token(token)
        if piece is None:  # an id that the model has and the tokenizer has not
            return b""
        if self._letters is not None and all(c in self._letters for c in piece):
            return bytes(self._letters[c] for c in piece)
        if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
            return bytes([int(piece[3:5], 16)])  # SentencePiece: a byte without a token of its own
        return str(piece).replace("\u2581", " ").encode()


def entries(
    ids: Sequence[int], tables: Tables | None, count: int, table: TokenBytes
) -> tuple[records.Lp, ...]:
    """One entry per id, each with its `count` likeliest tokens."""
    if not ids:
        return ()
    assert tables is not None
    assert len(tables) == len(ids), "vLLM says something of every id"
    return tuple(_entry(i, one, count, table) for i, one in zip(ids, tables, strict=True))


def _entry(token: int, by_id: Mapping[int, Any], count: int, table: TokenBytes) -> records.Lp:
    # The id itself is in the table also where it is not among the likeliest.
    ranking = sorted((one.rank, i) for i, one in by_id.items() if one.rank <= count)
    top = [records.likely(table.token_bytes(i), by_id[i].logprob) for _, i in ranking[:count]]
    return records.lp(table.text_bytes(token), by_id[token].logprob, top)


def _byte_letters() -> dict[str, int]:
    """The letters that byte-level tokenizers write bytes with (GPT-2's table): printable Latin-1
    characters stand for themselves, the others follow from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in printable]
    return {
        **{chr(byte): byte for byte in printable},
        **{chr(0x100 + n): byte for n, byte in enumerate(rest)},
    }
