"""Words of texts and of questions, where a text has them, and snippets (pure).

The databases are given words that are ready, so all of them find the same, and no character of a
question means anything to them. A word is a run of letters and digits, without case and without
the accents of Latin, Greek and Cyrillic letters. Scripts that are written without spaces have no
such words: each two neighbouring characters of a run are one, and a question's run is found
anywhere in a run.
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

MAX_CHARACTERS: Final = 50_000  # of what was asked in a turn, and of what was answered
MAX_WORD: Final = 64  # characters of a word that count
# A tsvector of PostgreSQL takes 1 MiB. Real texts of this length have a third.
MAX_WORDS_BYTES: Final = 900_000
SNIPPET: Final = 200
_LEAD: Final = 40  # characters before the first hit
_CUT: Final = "…"

_JOINERS: Final = "\u00ad\u200c\u200d"  # soft hyphen and joiners: inside of words
_MARKS: Final = re.sub(  # vowels and accents that belong to the letter before them, as ranges
    "x+",
    lambda found: f"{chr(found.start() + 0x300)}-{chr(found.end() + 0x2FF)}",
    "".join(".x"[unicodedata.category(chr(at))[0] == "M"] for at in range(0x300, 0x10000)),
).replace(".", "")
# An underscore is one here; it is taken out of texts before.
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
    """Where in a text a word of a question is: characters, and the number of the word."""

    start: int
    stop: int
    word: int


class Snippet(NamedTuple):
    """A part of a text and the ranges of characters in it that a question hits, in order."""

    text: str
    ranges: list[tuple[int, int]]


def _folded(word: str) -> str:
    if word.isascii():
        return word.lower()
    apart = unicodedata.normalize("NFKD", word).casefold()
    return unicodedata.normalize("NFKC", _ACCENTS.sub("", apart))


def _runs(word: str) -> Iterator[Run]:
    """What a word of a text is made of. Folded, it may be several (`½`, or Latin beside Han)."""
    if word.isascii():
        yield Run(word.lower()[:MAX_WORD], dense=False)
        return
    for each in _words(_folded(word)):
        for run in _RUNS.finditer(each):
            dense = run["dense"] is not None
            if any(map(str.isalnum, run[0])):
                yield Run(run[0] if dense else run[0][:MAX_WORD], dense)


def _words(text: str) -> list[str]:
    return _WORD.findall(text.replace("_", " "))


def _pairs(run: str) -> Iterator[str]:
    """The words of a run without spaces. Its last character is one, too, so that a question of one
    character finds it by the beginning of a word."""
    for at in range(len(run)):
        yield run[at : at + 2]


def of(text: str) -> list[str]:
    """The different words of a text, in the order in which they come."""
    if text.isascii():
        plain = dict.fromkeys(_PLAIN_WORD.findall(text.lower()))
        return list(dict.fromkeys(word[:MAX_WORD] for word in plain))
    found: dict[str, None] = {}
    for word in dict.fromkeys(_words(text)):
        for run in _runs(word):
            found.update(dict.fromkeys(_pairs(run.text) if run.dense else (run.text,)))
    return list(found)


def indexed(text: str, owner: str) -> list[str]:
    """The words of a text under which an index has it: they name its owner, so that what others
    wrote costs a search nothing."""
    tag, found = _tag(owner), of(text)
    if 8 * (len(text) + len(found)) > MAX_WORDS_BYTES:  # they might not fit
        sizes = itertools.accumulate(len(tag) + len(w.encode(errors="replace")) for w in found)
        found = [word for word, size in zip(found, sizes, strict=True) if size <= MAX_WORDS_BYTES]
    return [tag + word for word in found]


def _tag(owner: str) -> str:
    return hashlib.blake2b(owner.encode(errors="replace"), digest_size=4).hexdigest()


class Term(NamedTuple):
    """A word that an index is asked for. `prefix`: it may go on."""

    word: str
    prefix: bool


@dataclass(frozen=True, slots=True)
class Question:
    """Words that must all be in a text; the last one may be the beginning of a word."""

    runs: tuple[Run, ...]

    @classmethod
    def parsed(cls, text: str) -> Question:
        """The question that a text is. One without letters and digits has no words."""
        return cls(tuple(run for word in _words(text) for run in _runs(word)))

    def terms(self, owner: str) -> list[Term]:
        """What an index is asked for (`indexed`). A text that has all of them may have the
        characters of a run apart."""
        tag, found = _tag(owner), dict[Term, None]()
        for number, run in enumerate(self.runs):
            if not run.dense:
                found[Term(tag + run.text, number == len(self.runs) - 1)] = None
            elif len(run.text) == 1:
                found[Term(tag + run.text, prefix=True)] = None
            else:
                pairs = map("".join, itertools.pairwise(run.text))
                found |= dict.fromkeys(Term(tag + pair, prefix=False) for pair in pairs)
        return list(found)

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
        for number, wanted in enumerate(self.runs):
            if wanted.dense and run.dense:
                at = run.text.find(wanted.text)
                exact = len(run.text) == stop - start
                while at >= 0:
                    first, last = start + at, start + at + len(wanted.text)
                    yield Hit(first, last, number) if exact else Hit(start, stop, number)
                    at = run.text.find(wanted.text, at + 1)
            elif wanted == run or (
                number == len(self.runs) - 1
                and not wanted.dense
                and not run.dense
                and run.text.startswith(wanted.text)
            ):
                yield Hit(start, stop, number)

    def snippet(self, text: str) -> Snippet | None:
        """What to show of a text: around the first place where most of the words are together. None
        if it does not have all of them."""
        flat = " ".join(text.split())
        hits = self.hits(flat)
        if len({hit.word for hit in hits}) < len(self.runs) or not hits:
            return None
        return _around(flat, _fullest(hits, len(self.runs)), hits)


def _fullest(hits: list[Hit], words: int) -> Hit:
    """The first hit with which a snippet begins that has most of so many words."""
    room = SNIPPET - _LEAD - 2 * len(_CUT)
    best, most, stop = hits[0], 0, 0
    inside: Counter[int] = Counter()  # of the hits from the present one up to `stop`
    for number, hit in enumerate(hits):
        while stop < len(hits) and hits[stop].stop <= hit.start + room:
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
    room = SNIPPET - 2 * len(_CUT)
    start = max(0, first.start - _LEAD)
    stop = min(len(text), start + room)
    start = max(0, min(start, stop - room))
    if start:  # not in the middle of a word, if there is a space
        start = text.find(" ", start - 1, first.start) + 1 or start
    if stop < len(text):
        space = text.rfind(" ", first.stop, stop + 1)
        stop = space if space > 0 else stop
    before = _CUT if start else ""
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
    return Snippet(before + text[start:stop] + (_CUT if stop < len(text) else ""), ranges)
