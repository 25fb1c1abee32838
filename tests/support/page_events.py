"""Events of responses with items, for the tests of the page and of `tailrace chat`.

`python -m tests.support.page_events` writes them where the page's tests read them, and messages of
watch sockets that send some of them in the compact form. A test holds the files against what the
services would send now.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from tailrace.local import paths
from tailrace.protocol import compact_events, events, fold, ids, records
from tests.support import toy_parser

FILE: Final = paths.ROOT / "frontend" / "tests" / "recorded.json"
COMPACT_FILE: Final = FILE.with_name("recordedCompact.json")
COMPACT: Final = ("items", "continued", "likely")
RID: Final = ids.mint(ids.Address(b"page", 5, 6), bytes(range(11)))
_TOOLS: Final = [
    {"type": "namespace", "name": "geo", "tools": [{"type": "function", "name": "weather"}]}
]
# Of a request whose answer is shorter, because its pool is busy.
SHORTENED: Final = {events.SHORTENED: {"from": 1024, "to": 16}, events.CONTINUE: True}
_OWNER: Final = records.Owner("i", "s")


def _claim(own: str, prev: str | None) -> records.Claim:
    parser = toy_parser.PARSER
    return records.Claim(RID, own, prev, _OWNER, "w", "t", 0, "rev", "tok", 9, {}, parser)


def _shown(
    log: Iterable[records.TokenRecord], asked: Mapping[str, Any] | None = None
) -> list[events.Event]:
    """The events of a background response, as they are read from its log. `asked`: further members
    of its echo."""
    state = fold.Fold()
    echo = events.echo(RID, 1_700_000_000, "test-model", background=True, tools=_TOOLS)
    series = events.Series({**echo, **(asked or {})})
    shown = series.open()
    for offset, record in enumerate(log):
        effect = state.apply(record, offset, 1_700_000_003_000)
        assert not isinstance(effect, fold.Ignored), effect
        shown += series.apply(effect)
    return shown


def _read(shown: Iterable[events.Event]) -> list[dict[str, Any]]:
    return [json.loads(event.body) for event in shown]


def answered(*args: Any, **named: Any) -> list[dict[str, Any]]:
    """What `_answered` gives, read."""
    return _read(_answered(*args, **named))


def spoken(*args: Any, **named: Any) -> list[dict[str, Any]]:
    """What `_spoken` gives, read."""
    return _read(_spoken(*args, **named))


def _answered(
    answer: str,
    size: int = 4,
    takeover: int | None = None,
    reason: str = "stop",
    *,
    logprobs: bool = False,
) -> list[events.Event]:
    """The answer in frames of `size` ids; another worker continues behind `takeover` frames."""
    log: list[records.TokenRecord] = [_claim("n0", None)]
    state = fold.Fold(retain_ids=True)
    state.apply(log[0], 0)
    worker = toy_parser.Worker(RID, "n0", logprobs=logprobs)
    for number, at in enumerate(range(0, len(answer), size)):
        if number == takeover:
            log.append(_claim("n1", "n0"))
            state.apply(log[-1], len(log))
            worker = toy_parser.Worker(RID, "n1", state.ids, state.text_length, state.mark_count)
        log.append(worker.frame(toy_parser.ids_of(answer[at : at + size])))
        state.apply(log[-1], len(log))
    return _shown([*log, worker.end(reason)])


def _custom(text: str) -> list[events.Event]:
    """A call of a custom tool."""
    mark = records.Mark(0, 0, "x", "shell", ids.call_id(RID, 0))
    frame = records.Tok(RID, "n0", 0, [1], text, fold.H0, marks=(mark,))
    usage = records.Usage(2, 1)
    end = records.End(RID, "n0", 1, "stop", fold.roll(fold.H0, [1]), "", usage)
    return _shown([_claim("n0", None), frame, end])


def _spoken(
    *texts: tuple[str, str],
    reason: str = "stop",
    size: int = 5,
    answer_of: str = "",
    asked: Mapping[str, Any] | None = None,
) -> list[events.Event]:
    """A plain answer in frames of `size` characters.

    Args:
        texts: each with the model that writes it, empty for the one that was asked for. Each but
            the first continues the one before it.
        asked: further members of the request's echo.
    """
    log: list[records.TokenRecord] = []
    state = fold.Fold()

    def write(record: records.TokenRecord) -> None:
        state.apply(record, len(log))
        log.append(record)

    for number, (served, text) in enumerate(texts):
        own, rev = f"n{number}", served or "rev"
        of, more = answer_of if number == 0 else "", number > 0
        write(
            records.Claim(
                *(RID, own, state.owner, _OWNER, "w", "t", 0, rev, "tok", 9),
                served=served,
                answer_of=of,
                continues=more,
            )
        )
        for at in range(0, len(text), size):
            piece = text[at : at + size]
            write(records.Tok(RID, own, state.next, [ord(c) for c in piece], piece, state.h))
    usage = records.Usage(9, state.next)
    write(records.End(RID, f"n{len(texts) - 1}", state.next, reason, state.h, "", usage))
    return _shown(log, asked)


def _made() -> dict[str, list[events.Event]]:
    return {
        "items": _answered(toy_parser.ANSWER, takeover=8),
        "cut": _answered('<rShort.<cgeo__weather|{"city": "Zür', reason="length"),
        "thoughts": _answered("<rI never came to an end", reason="length"),
        "plain": _answered("One two three.", size=5),
        "custom": _custom("ls -la\necho <b>done</b>"),
        "continued": _spoken(("", "One **two th"), ("small", "ree** four."), ("tiny", " Five.")),
        "shortened": _spoken(("", "Once upon "), reason="length", asked=SHORTENED),
        "more": _spoken(("", "a time.")),
        "likely": _answered("<rHm.<mSo <cgeo__weather|{}<e<mand so", size=2, logprobs=True),
    }


def made() -> dict[str, Sequence[dict[str, Any]]]:
    return {name: _read(shown) for name, shown in _made().items()}


def compact() -> dict[str, list[Any]]:
    """Messages of one socket each, with events of `made` by their name: up to the middle in
    messages of one to three, then those from a quarter on in others, as after a gap."""
    found = {}
    for name, shown in _made().items():
        if name not in COMPACT:
            continue
        watches, messages = compact_events.Watches(), []
        middle, quarter = len(shown) // 2, len(shown) // 4
        for rest, sizes in ((shown[:middle], (1, 2, 3)), (shown[quarter:], (5, 1))):
            for size in itertools.cycle(sizes):
                messages.append(json.loads(watches.message(RID, rest[:size])))
                if not (rest := rest[size:]):
                    break
            watches.forget(RID)
        found[name] = messages
    return found


def text(found: Mapping[str, Sequence[Any]]) -> str:
    """The content of a file, one event or message to a line."""
    lists = (
        f'"{name}": [\n' + ",\n".join(json.dumps(e, ensure_ascii=False) for e in entries) + "\n]"
        for name, entries in found.items()
    )
    return "{\n" + ",\n".join(lists) + "\n}\n"


if __name__ == "__main__":
    FILE.write_text(text(made()))
    COMPACT_FILE.write_text(text(compact()))
