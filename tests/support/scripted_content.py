"""What the scripted engine had to write for a response, whatever died on the way: the judge's
content check (L2, L5) for fault runs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from tailrace.protocol import records
from tailrace.verify import history, reference_fold
from worker import generation
from worker.engines import scripted


def content(response: history.Response, account: reference_fold.Account) -> Iterator[str]:
    """Problems; a problem of the text begins with "text"."""
    if not response.asked:
        return
    request = response.asked[0].request
    cues = request.echo.get("metadata") or {}
    whole = _expected_ids(request, cues, account)
    for i, (a, b) in enumerate(zip(account.ids, whole, strict=False)):
        if a != b:
            yield f"token {i} is not what the engine had to write"
            break
    if len(account.ids) > len(whole):
        yield f"{len(account.ids)} tokens where the answer has {len(whole)}"
    if account.reason == "stop" and not request.sampling.stop and account.total != len(whole):
        yield f"ended after {account.total} of {len(whole)} tokens"
    if account.reason == "length" and account.total != request.sampling.max_tokens:
        yield f"ended by length after {account.total} of {request.sampling.max_tokens} tokens"
    yield from _text(request, account)


def _expected_ids(
    request: records.Request, cues: dict[str, str], account: reference_fold.Account
) -> list[int]:
    if "script_tokens" not in cues:
        return scripted.readable(request.messages)
    n = min(int(cues["script_tokens"]), request.sampling.max_tokens)
    if cues.get("script_sampling") != "1":
        return scripted.expected_ids(request.messages, n)
    made: list[int] = []
    for frame in (
        account.frames
    ):  # every token commits to the claim that made it and to all tokens before it
        step = scripted.tokens(request.messages, made, frame.tok.own)
        made += itertools.islice(step, len(frame.tok.ids))
    return made + [0] * (n - len(made))


def _text(request: records.Request, account: reference_fold.Account) -> Iterator[str]:
    detokenizer = scripted.Detokenizer()
    whole = detokenizer.push(account.ids)
    if account.end is not None:
        whole += (
            detokenizer.flush()
        )  # at any end, an incomplete character becomes U+FFFD and is not held back
    stops = generation.StopStrings(request.sampling.stop)
    expected = stops.push(whole)
    if stops.found:
        if account.reason != "stop":
            yield f"text holds a stop string, but it ended by {account.reason}"
    else:
        expected += stops.flush()
    if account.reason in ("stop", "length"):
        if account.text != expected:
            at = next(
                (
                    i
                    for i, (a, b) in enumerate(itertools.zip_longest(account.text, expected))
                    if a != b
                ),
                0,
            )
            yield f"text differs from the text of the ids at character {at}"
    elif not expected.startswith(account.text):
        yield "text is not the beginning of the text of the ids"
