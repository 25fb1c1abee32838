"""Text that arrives in pieces, broken between words at a terminal's width (pure)."""

from __future__ import annotations

import unicodedata

TAB = "    "


def columns(character: str) -> int:
    """Columns of one character on a terminal: 0 for a combining one, 2 for a wide one."""
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


class WordWrap:
    """Breaks lines of at most `width` columns. Asked piece by piece.

    A word is held back until it is complete, because it may need a new line. Control characters
    are left out: a terminal would obey them.
    """

    def __init__(self, width: int) -> None:
        self._width = max(width, 1)
        self._column = 0  # where the next word would begin, without the spaces before it
        self._spaces = ""  # between the last word and the next one
        self._word = ""  # held back; empty between words
        self._word_columns = 0

    def feed(self, text: str) -> str:
        """Returns what can be printed now."""
        return "".join(self._one(character) for character in text)

    def flush(self) -> str:
        """Returns the held text; the text has ended."""
        return self._end_word()

    def restart(self) -> None:
        """Something else was printed: the cursor is at the beginning of a line."""
        self._column, self._spaces = 0, ""

    def _one(self, character: str) -> str:
        if character == "\n":
            out = self._end_word() + "\n"
            self._column, self._spaces = 0, ""
            return out
        if character in " \t":
            out = self._end_word()
            self._spaces += TAB if character == "\t" else " "
            return out
        if unicodedata.category(character) == "Cc":
            return ""
        wide = columns(character)
        out = self._end_word() if wide == 2 else ""  # a line may break next to a wide character
        if self._word_columns + wide > self._width:
            out += self._end_word()  # longer than a line: broken anywhere
        self._word += character
        self._word_columns += wide
        return out + (self._end_word() if wide == 2 else "")

    def _end_word(self) -> str:
        if not self._word:
            return ""
        begins = self._column + len(self._spaces)
        if begins and begins + self._word_columns > self._width:
            out, self._column = f"\n{self._word}", self._word_columns
        else:
            out, self._column = f"{self._spaces}{self._word}", begins + self._word_columns
        self._spaces = self._word = ""
        self._word_columns = 0
        return out
