"""Words of texts and of queries, their places in a text, and snippets (pure).

The databases get prepared words, so all of them find the same, and no character of a query is
syntax for them. A word is a run of letters and digits, without case and without the accents of
Latin, Greek and Cyrillic letters. Scripts that are written without spaces have no such words: each
two neighbouring characters of a run are a word, and a query's run is found anywhere in a run.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

MAX_CHARACTERS: Final = 50_000  # of a turn's input, and of its answer
MAX_WORD: Final = 64  # characters of a word that count
# A tsvector of PostgreSQL takes 1 MiB. Real texts of this length have a third.
MAX_WORDS_BYTES: Final = 900_000
SNIPPET: Final = 200
_LEAD: Final = 40  # characters before the first hit
_ELLIPSIS: Final = "…"

_JOINERS: Final = "\u00ad\u200c\u200d"  # soft hyphen and joiners: inside of words
_MARKS: Final = re.sub(  # vowels and accents that belong to the letter before them, as ranges
    "x+",
    lambda run: f"{chr(run.start() + 0x300)}-{chr(run.end() + 0x2FF)}",
    "".join(".x"[unicodedata.category(chr(at))[0] == "M"] for at in range(0x300, 0x10000)),
).replace(".", "")
# An underscore is a letter here; it is removed from texts before.
_WORD: Final = re.compile(f"[\\w{_MARKS}{_JOINERS}]+")
_PLAIN_WORD: Final = re.compile("[a-z0-9]+")
# Accents, points of Hebrew and Arabic, and selectors of emoji: texts have them or not.
_ACCENTS: Final = re.compile(f"[\u0300-\u036f\u0591-\u05c7\u064b-\u065f\ufe00-\ufe0f{_JOINERS}]+")
# Thai, Lao, Burmese, Khmer; Hangul, because of its particles; Japanese; Han.
_DENSE: Final = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u1100-\u11ff\u3130-\u318f\uac00-\ud7af\u3005-\u3007"
    "\u3040-\u30ff\u31f0-\u31ff\uff66-\uffdc\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)
_RUNS: Final = re.compile(f"(?P<dense>[{_DENSE}]+)|[^{_DENSE}]+")


class Run(NamedTuple):
    """A word, or a run of characters without spaces."""

    text: str
    dense: bool


class Hit(NamedTuple):
    """The place of a query's word in a text: characters, and the number of the word."""

    start: int
    stop: int
    word: int


class Snippet(NamedTuple):
    """A part of a text and the ranges of its characters that match a query, in order."""

    text: str
    ranges: list[tuple[int, int]]


def _fold(word: str) -> str:
    if word.isascii():
        return word.lower()
    apart = unicodedata.normalize("NFKD", word).casefold()
    return unicodedata.normalize("NFKC", _ACCENTS.sub("", apart))


def _runs(word: str) -> Iterator[Run]:
    """The runs of a word. After case folding there may be several (`½`, or Latin next to Han)."""
    if word.isascii():
        yield Run(word.lower()[:MAX_WORD], dense=False)
        return
    for each in _words(_fold(word)):
        for run in _RUNS.finditer(each):
            dense = run["dense"] is not None
            if any(map(str.isalnum, run[0])):
                yield Run(run[0] if dense else run[0][:MAX_WORD], dense)


def _words(text: str) -> list[str]:
    return _WORD.findall(text.replace("_", " "))


def _pairs(run: str) -> Iterator[str]:
    """The words of a run without spaces. Its last character is a word too, so that a query of one
    character finds it by the beginning of a word."""
    for at in range(len(run)):
        yield run[at : at + 2]


def words_in(text: str) -> list[str]:
    """The distinct words of a text, in their order."""
    if text.isascii():
        plain = dict.fromkeys(_PLAIN_WORD.findall(text.lower()))
        return list(dict.fromkeys(word[:MAX_WORD] for word in plain))
    words: dict[str, None] = {}
    for word in dict.fromkeys(_words(text)):
        for run in _runs(word):
            words.update(dict.fromkeys(_pairs(run.text) if run.dense else (run.text,)))
    return list(words)


def index_words(text: str, owner: str) -> list[str]:
    """The words of a text for the index: each contains a tag of the owner, so that texts of others
    do not slow a search."""
    tag, words = _tag(owner), words_in(text)
    if 8 * (len(text) + len(words)) > MAX_WORDS_BYTES:  # they might not fit
        sizes = itertools.accumulate(len(tag) + len(w.encode(errors="replace")) for w in words)
        words = [word for word, size in zip(words, sizes, strict=True) if size <= MAX_WORDS_BYTES]
    return [tag + word for word in words]


def _tag(owner: str) -> str:
    return hashlib.blake2b(owner.encode(errors="replace"), digest_size=4).hexdigest()


class Term(NamedTuple):
    """A word of an index query. `prefix`: it may be the beginning of a word."""

    word: str
    prefix: bool


@dataclass(frozen=True, slots=True)
class Question:
    """Words that must all be in a text; the last one may be the beginning of a word."""

    runs: tuple[Run, ...]

    @classmethod
    def parse(cls, text: str) -> Question:
        """The query of a text. A text without letters and digits has no words."""
        return cls(tuple(run for word in _words(text) for run in _runs(word)))

    def terms(self, owner: str) -> list[Term]:
        """The terms of the index query (`index_words`). A text that has all of them may still have
        the characters of a run in different places."""
        tag, terms = _tag(owner), dict[Term, None]()
        for number, run in enumerate(self.runs):
            if not run.dense:
                terms[Term(tag + run.text, number == len(self.runs) - 1)] = None
            elif len(run.text) == 1:
                terms[Term(tag + run.text, prefix=True)] = None
            else:
                pairs = map("".join, itertools.pairwise(run.text))
                terms |= dict.fromkeys(Term(tag + pair, prefix=False) for pair in pairs)
        return list(terms)

    def hits(self, text: str) -> list[Hit]:
        """All places of its words."""
        return [
            hit for word in _WORD.finditer(text.replace("_", " ")) for hit in self._in_word(word)
        ]

    def _in_word(self, word: re.Match[str]) -> Iterator[Hit]:
        if word[0].isascii():
            yield from self._in_run(Run(word[0].lower()[:MAX_WORD], dense=False), *word.span())
            return
        for part in _RUNS.finditer(word[0]):
            start = word.start() + part.start()
            for run in _runs(part[0]):
                yield from self._in_run(run, start, start + len(part[0]))

    def _in_run(self, run: Run, start: int, stop: int) -> Iterator[Hit]:
        for number, query_run in enumerate(self.runs):
            if query_run.dense and run.dense:
                at = run.text.find(query_run.text)
                exact = len(run.text) == stop - start
                while at >= 0:
                    first, last = start + at, start + at + len(query_run.text)
                    yield Hit(first, last, number) if exact else Hit(start, stop, number)
                    at = run.text.find(query_run.text, at + 1)
            elif query_run == run or (
                number == len(self.runs) - 1
                and not query_run.dense
                and not run.dense
                and run.text.startswith(query_run.text)
            ):
                yield Hit(start, stop, number)

    def snippet(self, text: str) -> Snippet | None:
        """A snippet of a text, around the first place where most of the words are together. None if
        the text does not have all words."""
        flat = " ".join(text.split())
        hits = self.hits(flat)
        if len({hit.word for hit in hits}) < len(self.runs) or not hits:
            return None
        return _around(flat, _fullest(hits, len(self.runs)), hits)


def _fullest(hits: list[Hit], words: int) -> Hit:
    """The first hit at which a snippet with the most of the `words` words begins."""
    width = SNIPPET - _LEAD - 2 * len(_ELLIPSIS)
    best, most, stop = hits[0], 0, 0
    inside: Counter[int] = Counter()  # of the hits from the present one up to `stop`
    for number, hit in enumerate(hits):
        while stop < len(hits) and hits[stop].stop <= hit.start + width:
            inside[hits[stop].word] += 1
            stop += 1
        if len(inside) > most:
            best, most = hit, len(inside)
        if most == words:
            break
        if stop == number:  # it is longer than a snippet
            stop += 1
            continue
        inside[hit.word] -= 1
        if not inside[hit.word]:
            del inside[hit.word]
    return best


def _around(text: str, first: Hit, hits: list[Hit]) -> Snippet:
    width = SNIPPET - 2 * len(_ELLIPSIS)
    start = max(0, first.start - _LEAD)
    stop = min(len(text), start + width)
    start = max(0, min(start, stop - width))
    if start:  # not in the middle of a word, if there is a space
        start = text.find(" ", start - 1, first.start) + 1 or start
    if stop < len(text):
        space = text.rfind(" ", first.stop, stop + 1)
        stop = space if space > 0 else stop
    before = _ELLIPSIS if start else ""
    shift = len(before) - start
    ranges: list[tuple[int, int]] = []
    for begin, end, _ in sorted(hits):
        begin, end = max(begin, start) + shift, min(end, stop) + shift
        if begin >= end:
            continue
        if ranges and begin < ranges[-1][1]:
            ranges[-1] = ranges[-1][0], max(end, ranges[-1][1])
        else:
            ranges.append((begin, end))
    return Snippet(before + text[start:stop] + (_ELLIPSIS if stop < len(text) else ""), ranges)
