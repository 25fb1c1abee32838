"""Self-describing tokens."""

from __future__ import annotations

from typing import Any

from tailrace.protocol import fold, records
from worker.engines import scripted

MESSAGES = [{"role": "user", "content": "What is a tailrace?"}]


def test_the_script_holds_what_makes_streams_hard() -> None:
    ids = scripted.expected_ids(MESSAGES, 400)
    kinds = [i >> 28 for i in ids]
    assert {scripted.WORD, scripted.HALF, scripted.REST, scripted.EMPTY} == set(kinds)
    assert all(
        kinds[i + 1] == scripted.REST for i, kind in enumerate(kinds[:-1]) if kind == scripted.HALF
    )
    text = scripted.expected_text(MESSAGES, 400)
    assert "\ufffd" not in text
    assert any(ord(c) > 0xFFFF for c in text)


def test_every_token_commits_to_all_tokens_before_it_and_to_the_prompt() -> None:
    ids = scripted.expected_ids(MESSAGES, 50)
    assert next(scripted.tokens(MESSAGES, ids[:20])) == ids[20]
    changed = [*ids[:19], ids[19] ^ 1]
    assert next(scripted.tokens(MESSAGES, changed)) != ids[20]
    assert scripted.expected_ids([{"role": "user", "content": "other"}], 5) != ids[:5]


def test_sampled_tokens_commit_to_the_claim() -> None:
    a, b = (next(scripted.tokens(MESSAGES, (), nonce)) for nonce in ("a", "b"))
    assert a != b


def test_ids_fit_a_record_and_its_hash() -> None:
    ids = scripted.expected_ids(MESSAGES, 100)
    assert all(0 <= i < 2**32 for i in ids)
    record = records.Tok("r", "o", 0, ids, "", fold.H0)
    assert records.decode_token(records.encode(record)) == record


def test_the_readable_answer_quotes_the_prompt() -> None:
    ids = scripted.readable(
        [
            *MESSAGES,
            {"role": "assistant", "content": "…"},
            {"role": "user", "content": "Wörter und 😀?"},
        ]
    )
    detokenizer = scripted.Detokenizer()
    text = detokenizer.push(ids) + detokenizer.flush()
    assert "Wörter und 😀?" in text
    assert "\ufffd" not in text


def test_an_echo_is_the_question_again_and_again_and_goes_on_where_it_was_cut() -> None:
    """The page's benchmark gets Markdown this way."""
    said = "# Wörter\n"

    def answer(before: int = 0, **cues: str) -> list[int]:
        request = records.Request(
            "r",
            records.Owner("i", "s"),
            "m",
            [{"role": "user", "content": said}],
            records.Sampling(1),
            {"metadata": {"script_echo": "1", **cues}},
        )
        whole = scripted.text_ids(said) * 9
        return list(scripted.answer(request, whole[:before]))

    assert answer() == scripted.text_ids(said)
    seven = answer(script_tokens="7")
    assert scripted.Detokenizer().push(seven) == said + said[:8]
    assert answer(before=5, script_tokens="7") == seven[5:]


def test_an_image_that_is_kept_beside_the_record_gives_the_same_answer() -> None:
    """The judge reads the record, the worker what it stands for."""
    image = {"type": "image", "sha256": "ab", "media": "image/png", "width": 1, "height": 1}

    def said(**more: Any) -> list[int]:
        content = [{"type": "text", "text": "What?"}, {**image, **more}]
        return scripted.expected_ids([{"role": "user", "content": content}], 20)

    assert said(data="AAAA") == said(file={"p": 0, "at": [1], "bytes": 3, "ms": 5})
    assert said(data="AAAA") != said(data="AAAA", sha256="cd")
