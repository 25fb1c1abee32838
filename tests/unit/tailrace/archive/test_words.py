from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from tailrace.archive import words
from tests.support import cases

parsed = words.Question.parse


@cases.each(
    ("text", "expected"),
    [
        ("Hello, hello WORLD", ["hello", "world"]),
        ("Größe STRASSE straße", ["grosse", "strasse"]),
        ("caf\u00e9 cafe\u0301 ＣＡＦＥ", ["cafe"]),
        ("snake_case don't x86-64", ["snake", "case", "don", "t", "x86", "64"]),
        ("½ ﬁne", ["1", "2", "fine"]),
        ("Fuß\u00adball", ["fussball"]),
        ("北京大学 iPhone手机", ["北京", "京大", "大学", "学", "iphone", "手机", "机"]),
        ("ｶﾞｷﾞ ガギ", ["ガギ", "ギ"]),
        ("हिन्दी", ["हिन्दी"]),
        ("שָׁלוֹם", ["שלום"]),
        ("한국어", ["한국", "국어", "어"]),
        ("❤️ … _ \ufe0f \u0301", []),
    ],
)
def test_words_of_a_text(text: str, expected: list[str]) -> None:
    assert words.words_in(text) == expected


def test_an_index_has_the_words_of_each_owner_apart() -> None:
    mine, others = (words.index_words("a b", owner) for owner in ("alice", "bob"))
    assert not {*mine} & {*others}
    assert [word[8:] for word in mine] == ["a", "b"]
    terms = parsed("b a").terms("alice")
    assert [term.word for term in terms] == mine[::-1]
    assert [term.prefix for term in terms] == [False, True]


def test_an_index_takes_only_so_much_of_a_text() -> None:
    text = "".join(map(chr, range(0x20000, 0x2A000))) * 3
    assert sum(len(word.encode()) for word in words.index_words(text, "o")) <= words.MAX_WORDS_BYTES
    [word] = words.index_words("x" * 5_000, "o")
    assert len(word) == 8 + words.MAX_WORD


@cases.each(
    ("question", "text", "shown"),
    [
        ("sky", "The Sky's blue", ["Sky"]),
        ("sk", "The Sky", ["Sky"]),
        ("sk blue", "The Sky is blue", None),  # only the last one may go on
        ("the sk", "Sky the", ["Sky", "the"]),
        ("grosse", "von GRÖSSE", ["GRÖSSE"]),
        ("京大", "在北京大学", ["京大"]),
        ("京学", "在北京大学", None),
        ("京大 学", "在北京大学学习", ["京大", "学", "学"]),
        ("ガ", "ｶﾞｷﾞ", ["ｶﾞｷﾞ"]),  # another length than what it means
        ("1", "½", ["½"]),
        ("foo foobar", "foobar foo", ["foobar", "foo"]),
        ("", "x", None),
    ],
)
def test_hits(question: str, text: str, shown: list[str] | None) -> None:
    found = parsed(question).snippet(text)
    assert (found and [found.text[a:b] for a, b in found.ranges]) == shown


def test_a_snippet_is_around_the_words_that_are_together() -> None:
    filler = "word " * 100
    text = f"the first. {filler}\n\n in  the \tRain again {filler}"
    found = parsed("the rain").snippet(text)
    assert found is not None
    assert len(found.text) <= words.SNIPPET
    assert found.text.startswith("…word word")
    assert found.text.endswith(" word…")
    assert "in the Rain again" in found.text
    assert [found.text[a:b] for a, b in found.ranges] == ["the", "Rain"]
    [first] = [parsed("firs").snippet(text)]
    assert first is not None
    assert first.text.startswith("the first. word")


@given(st.text(max_size=600), st.data())
@example("ab " * 300, None)
def test_each_word_of_a_text_is_found_and_shown(text: str, data: st.DataObject | None) -> None:
    texts = text.split()
    asked = data.draw(st.sampled_from(texts or [""])) if data is not None else "ab"
    question = parsed(asked)
    found = question.snippet(text)
    assert (found is not None) == bool(question.runs)
    indexed = words.index_words(text, "o")
    for term in question.terms("o"):
        assert any(w.startswith(term.word) if term.prefix else w == term.word for w in indexed)
    if found is not None:
        assert len(found.text) <= words.SNIPPET
        assert found.ranges
        ends = [end for range_ in found.ranges for end in range_]
        assert ends == sorted(ends)
        assert ends[0] >= 0
        assert ends[-1] <= len(found.text)
        assert all(a < b for a, b in found.ranges)


@given(st.text(max_size=256))
def test_a_question_has_only_letters_and_digits(text: str) -> None:
    for term in parsed(text).terms("o"):
        assert not {*term.word} & {*"\"'*\\:&|!<>()- _%\0\n"}
        assert not any(map(str.isspace, term.word))
