"""Events of responses with items, for the tests of the page and of `tailrace chat`.

`python -m tests.support.page_events` writes them where the page's tests read them. A test holds the
file against what the services would send now.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from tailrace.local import paths
from tailrace.protocol import events, fold, ids, records
from tests.support import toy_parser

FILE: Final = paths.ROOT / "frontend" / "tests" / "recorded.json"
RID: Final = ids.mint(ids.Address(b"page", 5, 6), bytes(range(11)))
_TOOLS: Final = [
    {"type": "namespace", "name": "geo", "tools": [{"type": "function", "name": "weather"}]}
]
_OWNER: Final = records.Owner("i", "s")


def _claim(own: str, prev: str | None) -> records.Claim:
    parser = toy_parser.PARSER
    return records.Claim(RID, own, prev, _OWNER, "w", "t", 0, "rev", "tok", 9, {}, parser)


def _shown(log: Iterable[records.TokenRecord]) -> list[dict[str, Any]]:
    """The events of a background response, as they are read from its log."""
    state = fold.Fold()
    series = events.Series(
        events.echo(RID, 1_700_000_000, "test-model", background=True, tools=_TOOLS)
    )
    shown = series.open()
    for offset, record in enumerate(log):
        effect = state.apply(record, offset, 1_700_000_003_000)
        assert not isinstance(effect, fold.Ignored), effect
        shown += series.apply(effect)
    return [json.loads(event.body) for event in shown]


def answered(
    answer: str, size: int = 4, takeover: int | None = None, reason: str = "stop"
) -> list[dict[str, Any]]:
    """The answer in frames of `size` ids; another worker continues behind `takeover` frames."""
    log: list[records.TokenRecord] = [_claim("n0", None)]
    state = fold.Fold(keep_ids=True)
    state.apply(log[0], 0)
    worker = toy_parser.Worker(RID, "n0")
    for number, at in enumerate(range(0, len(answer), size)):
        if number == takeover:
            log.append(_claim("n1", "n0"))
            state.apply(log[-1], len(log))
            worker = toy_parser.Worker(RID, "n1", state.ids, state.text_length, state.mark_count)
        log.append(worker.frame(toy_parser.ids_of(answer[at : at + size])))
        state.apply(log[-1], len(log))
    return _shown([*log, worker.end(reason)])


def custom(text: str) -> list[dict[str, Any]]:
    """A call of a custom tool."""
    mark = records.Mark(0, 0, "x", "shell", ids.call_id(RID, 0))
    frame = records.Tok(RID, "n0", 0, [1], text, fold.H0, marks=(mark,))
    usage = records.Usage(2, 1)
    end = records.End(RID, "n0", 1, "stop", fold.roll(fold.H0, [1]), "", usage)
    return _shown([_claim("n0", None), frame, end])


def made() -> dict[str, Sequence[dict[str, Any]]]:
    return {
        "items": answered(toy_parser.ANSWER, takeover=8),
        "cut": answered('<rShort.<cgeo__weather|{"city": "Zür', reason="length"),
        "thoughts": answered("<rI never came to an end", reason="length"),
        "plain": answered("One two three.", size=5),
        "custom": custom("ls -la\necho <b>done</b>"),
    }


def text() -> str:
    """The file's content, one event to a line."""
    lists = (
        f'"{name}": [\n' + ",\n".join(json.dumps(e, ensure_ascii=False) for e in found) + "\n]"
        for name, found in made().items()
    )
    return "{\n" + ",\n".join(lists) + "\n}\n"


if __name__ == "__main__":
    FILE.write_text(text())
