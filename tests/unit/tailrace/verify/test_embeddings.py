"""The judge on requests for embeddings: a good history passes, and each planted bug is caught."""

from __future__ import annotations

from typing import Any

import msgspec

from tailrace.protocol import events, fold, records
from tailrace.verify import report
from tests.support import cases
from tests.unit.tailrace.verify import histories as worlds

VECTOR = b"\0\0\x80?" * 2
INPUTS: list[str | list[int]] = ["a", [1, 2]]


def asked(w: worlds.World, **more: Any) -> records.Request:
    embed = records.Embed(INPUTS, **more)
    request = w.ask("", wants={"messages": [], "sampling": records.Sampling(0), "embed": embed})
    echo = events.embeddings_echo(request.rid, 0, "m", request.echo["metadata"])
    w.log[-1] = w.log[-1]._replace(
        value=records.encode(msgspec.structs.replace(request, echo=echo))
    )
    return msgspec.structs.replace(request, echo=echo)


def end(w: worlds.World, request: records.Request, own: str, **more: Any) -> None:
    usage = records.Usage(2, 0)
    record = records.End(
        request.rid, own, 0, "stop", fold.H0, usage=usage, vectors=(VECTOR, VECTOR)
    )
    w.token(msgspec.structs.replace(record, **more))


def history(**more: Any) -> worlds.World:
    """One whose first worker was lost, and then ended it too late. `more`: of the END."""
    w = worlds.World()
    request = asked(w)
    lost = w.claim(request, "worker-1/a", None)
    own = w.claim(request, "worker-2/b", lost)
    end(w, request, lost, vectors=(b"\1\1\1\1", b"\1\1\1\1"))
    end(w, request, own, **more)
    w.bill(request, "completed", records.Usage(2, 0), fold.H0, 2)
    return w


def problems(w: worlds.World, check: str = "L5") -> list[str]:
    return [c.what for c in w.judge(by_content=False).results[check].counterexamples]


def test_the_good_history_passes() -> None:
    out = history().judge(by_content=False)
    assert out.verdict is report.Verdict.PASS, "\n".join(out.lines())


@cases.each(
    ("vectors", "what"),
    [
        ((), "0 vectors for 2 inputs"),
        ((VECTOR,), "1 vectors for 2 inputs"),
        ((VECTOR, VECTOR + VECTOR), "vectors of different lengths, or no vectors of floats"),
        ((VECTOR[:7], VECTOR[:7]), "vectors of different lengths, or no vectors of floats"),
        ((b"", b""), "vectors of different lengths, or no vectors of floats"),
    ],
)
def test_vectors_that_are_not_those_of_the_inputs(vectors: tuple[bytes, ...], what: str) -> None:
    assert problems(history(vectors=vectors)) == [what]


def test_vectors_of_a_request_that_failed() -> None:
    assert problems(history(reason="failed")) == ["vectors of a request that ended as failed"]


def test_other_dimensions_than_were_asked_for() -> None:
    w = worlds.World()
    request = asked(w, dimensions=4)
    end(w, request, w.claim(request, "worker-1/a", None))
    assert problems(w) == ["vectors of 2 dimensions"]


def test_tokens_where_embeddings_were_asked_for() -> None:
    w = worlds.World()
    request = asked(w)
    w.writer(request, "worker-1/a").frames(2)
    assert problems(w) == ["tokens where embeddings were asked for"]


def test_vectors_that_nobody_asked_for() -> None:
    w = worlds.World()
    request = w.ask("plain")
    end(w, request, w.claim(request, "worker-1/a", None))
    assert problems(w) == ["vectors that nobody asked for"]


class Loses(fold.Fold):
    """A fold that loses a vector."""

    def _end(self, record: records.End, timestamp: int) -> fold.Outcome:
        fewer = msgspec.structs.replace(record, vectors=record.vectors[1:])
        return super()._end(fewer, timestamp)


def test_a_fold_that_loses_a_vector_is_caught() -> None:
    out = history().judge(by_content=False, fold_class=Loses)
    assert out.results["L1"].counterexamples[0].what == "the folds differ in vectors"


def test_embeddings_of_which_the_feed_tells() -> None:
    w = worlds.World()
    request = asked(w)
    end(w, request, w.claim(request, "worker-1/a", None))
    w.tell(request, "completed")
    assert problems(w, "L12") == ["the feed tells of a response that nobody can read later"]
