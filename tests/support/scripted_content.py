"""What the scripted engine had to write for a response, whatever died on the way: the judge's
content check (L2, L5) for fault runs. Text and items are made here a second time, apart from the
worker's `generation`."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from tailrace.protocol import ids, records, segments, truncation
from tailrace.verify import history, reference_fold
from tailrace.verify.reference_fold import Beginning
from worker.engines import scripted, scripted_answers, scripted_embeddings, scripted_markers
from worker.text import stop_strings
from worker.text.item_parser import Piece


def content(response: history.Response, account: reference_fold.Account) -> Iterator[str]:
    """Problems; a problem of the text begins with "text"."""
    if not response.requests:
        return
    request = response.requests[0].request
    if request.embed is not None:
        yield from _vectors(request.embed, account)
        return
    shown = truncation.prompt(request, account.dropped)
    request = msgspec.structs.replace(request, messages=shown)
    cues = request.echo.get("metadata") or {}
    most = request.sampling.max_tokens + account.copied
    if request.fork is not None:
        yield from _fork(request.fork, account)
    if account.reason == "length" and account.total != most:
        yield f"ended by length after {account.total} of {most} tokens"
    sampled = cues.get("script_sampling") == "1"
    *former, (asked, last) = _parts(request, account)
    for before, part in former:
        yield from _tokens(before, sampled, part)
        if part.text != Made(before, _pieces(before, part.ids, over=False), over=False).text:
            yield "text before that of another model is not the text of its ids"
    yield from _tokens(asked, sampled, last)
    over = account.end is not None
    yield from differences(Made(asked, _pieces(asked, last.ids, over), over=over), last)
    yield from _logprobs(request, account)


def _parts(
    request: records.Request, account: reference_fold.Account
) -> Iterator[tuple[records.Request, reference_fold.Account]]:
    """What each model was asked, and the account of what it alone wrote. Most responses have one;
    another one that continues is asked with all the text before it (log rule §25)."""
    first, text = 0, ""
    for epoch in account.continued:
        frames = [f for f in account.frames if first <= f.at < epoch.start]
        part = dataclasses.replace(account, frames=frames, end=None, ended_at=None)
        yield segments.prompt(request, text), part
        first, text = epoch.start, text + part.text
    frames = [f for f in account.frames if f.at >= first]
    yield segments.prompt(request, text), dataclasses.replace(account, frames=frames)


def _tokens(
    request: records.Request, sampled: bool, account: reference_fold.Account
) -> Iterator[str]:
    whole = _expected_ids(request, sampled, account)
    for i, (a, b) in enumerate(zip(account.ids, whole, strict=False)):
        if a != b:
            yield f"token {i} is not what the engine had to write"
            break
    if len(account.ids) > len(whole):
        yield f"{len(account.ids)} tokens where the answer has {len(whole)}"
    stopped = account.reason == "stop" and not request.sampling.stop
    if stopped and len(account.ids) != len(whole):
        yield f"ended after {len(account.ids)} of {len(whole)} tokens"


def _fork(fork: records.Fork, account: reference_fold.Account) -> Iterator[str]:
    """What it begins with, but for the source's ids, which verify compares."""
    replaced = scripted.text_ids(fork.replace)
    if account.total and account.copied != fork.at + len(replaced):
        yield f"{account.copied} ids are copied, not {fork.at} and {len(replaced)}"
    elif account.ids[fork.at : account.copied] != replaced[: max(0, account.total - fork.at)]:
        yield "what follows the copied ids is not the replaced text"


def vectors(embed: records.Embed) -> list[bytes]:
    """Those of the inputs."""
    ids = scripted_embeddings.encode(embed, 1 << 20)
    return [scripted_embeddings.vector(each, embed.dimensions) for each in ids]


def _vectors(embed: records.Embed, account: reference_fold.Account) -> Iterator[str]:
    if account.reason == "stop" and list(account.vectors) != vectors(embed):
        yield "the vectors are not those of the inputs"


def _expected_ids(
    request: records.Request, sampled: bool, account: reference_fold.Account
) -> list[int]:
    made = account.ids[: account.copied]
    further = itertools.islice(scripted.answer(request, made), request.sampling.max_tokens)
    greedy = [*made, *further]
    if not sampled:
        return greedy
    # Every token commits to the claim that made it and to all tokens before it.
    for frame in account.frames:
        if frame.tok.seq < account.copied:
            continue
        step = scripted.answer(request, made, frame.tok.own)
        made += itertools.islice(step, len(frame.tok.ids))
    return made + [0] * (len(greedy) - len(made))


def differences(made: Made, account: reference_fold.Account) -> Iterator[str]:
    """How text and marks of the log differ from those of its ids."""
    yield from _text(made, account)
    yield from _marks(made, account)


class Made:
    """Text and marks that ids stand for.

    Attributes:
        text: of all items.
        marks: counted from the beginning of the response.
        stopped: a stop string was found in a message, or a call too many.
        _open: the kind of the item that text belongs to.
        _stops: of the open message.
    """

    def __init__(
        self,
        request: records.Request,
        pieces: Iterable[tuple[int, Sequence[Piece]]],
        *,
        over: bool,
        max_calls: int | None = None,
    ) -> None:
        """`pieces`: what each id adds, and how many ids are before it. `over`: it has ended.
        `max_calls`: nothing is visible from the mark of a call more on."""
        self.text = ""
        self.marks: list[Beginning] = []
        self.stopped = False
        self._request = request
        self._max_calls = max_calls
        self._open = "m"
        self._stops = stop_strings.StopStrings(request.sampling.stop)
        for count, added in pieces:
            for piece in added:
                if not self.stopped:
                    self._add(piece, count)
        if over and not self.stopped:
            self.text += self._stops.flush()

    def _add(self, piece: Piece, count: int) -> None:
        """`count`: ids before the one that made it."""
        if piece.name or (piece.text and piece.kind != self._open):
            self.text += self._stops.flush()
            self._open = piece.kind
            call_id = ""
            if piece.name:
                before = sum(mark.name != "" for mark in self.marks)
                if before == self._max_calls:
                    self.stopped = True
                    return
                call_id = ids.call_id(self._request.rid, before)
            self.marks.append(Beginning(len(self.text), count, piece.kind, piece.name, call_id))
        if piece.kind == "m":
            self.text += self._stops.push(piece.text)
            self.stopped = self._stops.complete
        else:
            self.text += piece.text


def _pieces(
    request: records.Request, token_ids: Sequence[int], over: bool
) -> Iterator[tuple[int, Sequence[Piece]]]:
    """What each id adds, and how many ids are before it. An id that is fed alone decides nothing
    that several would decide otherwise."""
    detokenizer = scripted.Detokenizer()
    if not scripted_answers.has_items(request):
        for count, each in enumerate(token_ids):
            yield count, (Piece("m", detokenizer.push((each,))),)
        if over:  # at any end, an incomplete character becomes U+FFFD and is not held back
            yield len(token_ids), (Piece("m", detokenizer.flush()),)
        return
    parser = scripted_markers.Parser(detokenizer)
    for count, each in enumerate(token_ids):
        yield count, parser.push(each)
    if over:
        yield len(token_ids), parser.finish()


def _text(made: Made, account: reference_fold.Account) -> Iterator[str]:
    if made.stopped and account.end is not None and account.reason != "stop":
        yield f"text holds a stop string, but it ended by {account.reason}"
    if account.reason in ("stop", "length"):
        if account.text != made.text:
            pairs = itertools.zip_longest(account.text, made.text)
            at = next((i for i, (a, b) in enumerate(pairs) if a != b), 0)
            yield f"text differs from the text of the ids at character {at}"
    elif not made.text.startswith(account.text):
        yield "text is not the beginning of the text of the ids"


def _marks(made: Made, account: reference_fold.Account) -> Iterator[str]:
    """A problem of the text too: both are what the parser makes of the ids."""
    expected = made.marks
    if account.reason not in ("stop", "length"):
        expected = expected[: len(account.marks)]
    if account.marks != expected:
        pairs = itertools.zip_longest(account.marks, expected)
        at = next(i for i, (a, b) in enumerate(pairs) if a != b)
        yield f"text is cut into items otherwise than the ids say, from mark {at} on"


def _logprobs(request: records.Request, account: reference_fold.Account) -> Iterator[str]:
    top = request.sampling.logprobs
    if top is None:
        return
    for frame in account.frames:
        if frame.tok.seq >= account.copied and list(frame.tok.lp) != scripted.logprobs(
            frame.tok.ids, top
        ):
            yield f"log probabilities of tokens {frame.tok.seq} and on are those of others"
            return
