"""What a worker does about a response, for every state of its fold."""

from __future__ import annotations

from tailrace.protocol import fold, ids, records
from tests.support import cases
from worker.serving import takeover

OWNER = records.Owner("i", "s")
RID = ids.mint(ids.Address(b"abcd", 0, 0), b"r" * 11)
ME = takeover.Self("w-me", "m1", "t1")
FAR = 10**9


class Story:
    """A fold and the records that made it."""

    def __init__(self) -> None:
        self.fold = fold.Fold(retain_ids=True)
        self._offset = 0
        self.now = 1_000

    def apply(self, record: records.TokenRecord) -> Story:
        self.fold.apply(record, self._offset, self.now)
        self._offset += 1
        return self

    def claim(
        self,
        own: str,
        worker: str,
        model_rev: str = "m1",
        parser: str = "",
        hedged: bool = False,
    ) -> Story:
        prev = self.fold.owner
        claim = records.Claim(
            *(RID, own, prev, OWNER, worker, "t", 0, model_rev, "t1"), parser=parser, hedged=hedged
        )
        return self.apply(claim)

    def token(self, token: int = 1) -> Story:
        assert self.fold.owner
        return self.apply(
            records.Tok(RID, self.fold.owner, self.fold.next, [token], "x", self.fold.h)
        )

    def tokens(self, n: int) -> Story:
        for _ in range(n):
            self.token()
        return self

    def yields(self) -> Story:
        assert self.fold.owner
        return self.apply(records.Yield(RID, self.fold.owner, self.fold.next))

    def decide(
        self, after_ms: int = 0, me: takeover.Self = ME, expires_ms: float = FAR
    ) -> takeover.Decision:
        return takeover.decide(self.fold, me, now_ms=self.now + after_ms, expires_ms=expires_ms)


def test_a_new_response_is_claimed_at_once() -> None:
    assert Story().decide() == takeover.Claim(None)


def test_an_expired_new_response_is_claimed_only_to_be_ended() -> None:
    assert Story().decide(expires_ms=500) == takeover.Claim(None, expired=True)


def test_a_started_response_never_expires() -> None:
    assert Story().claim("a", "w-a").decide(after_ms=5_000, expires_ms=500) == takeover.Claim("a")


def test_a_response_that_is_done_is_finished() -> None:
    story = Story().apply(records.Cancel(RID, OWNER))
    assert story.decide() == takeover.Finished()


def test_a_fresh_owner_is_waited_for_until_its_last_record_is_older_than_the_grace() -> None:
    story = Story().claim("a", "w-a").token()
    assert story.decide(after_ms=500) == takeover.Wait(1_500)
    assert story.decide(after_ms=2_000) == takeover.Claim("a")


def test_an_owner_that_drains_may_take_longer_for_its_first_token_and_not_for_the_next() -> None:
    me = takeover.Self("w-me", "m1", "t1", living={"w-a"})
    story = Story().claim("a", "w-a")
    assert story.decide(after_ms=5_000, me=me) == takeover.Wait(25_000)
    assert story.decide(after_ms=5_000) == takeover.Claim("a")
    assert story.decide(after_ms=30_000, me=me) == takeover.Claim("a")
    assert story.token().decide(after_ms=5_000, me=me) == takeover.Claim("a")


def test_a_heartbeat_of_this_process_gives_its_own_claims_no_longer_grace() -> None:
    me = takeover.Self("w-me", "m1", "t1", living={"w-me"})
    assert Story().claim("a", "w-me").decide(after_ms=2_000, me=me) == takeover.Claim("a")


def test_a_worker_that_stole_a_request_begins_it_or_goes_on_behind_itself() -> None:
    def goes_on(story: Story, *own: str, after_ms: int = 0, expires_ms: float = FAR) -> bool:
        decision = story.decide(after_ms=after_ms, expires_ms=expires_ms)
        return takeover.may_steal(story.fold, decision, own)

    assert goes_on(Story())
    assert not goes_on(Story(), expires_ms=500)
    assert not takeover.may_steal(Story().fold, takeover.Wait(100.0), ())
    assert not goes_on(Story().claim("a", "w-a"))
    assert not goes_on(Story().claim("a", "w-a"), after_ms=60_000)
    assert not goes_on(Story().claim("a", "w-a").yields())
    assert not goes_on(Story().apply(records.Cancel(RID, OWNER)))
    assert not goes_on(Story().claim("a", "w-me").claim("b", "w-b"), "a", after_ms=60_000)
    mine = Story().claim("a", "w-me").token()
    assert not goes_on(mine, "a")
    assert goes_on(mine, "a", after_ms=3_000)
    assert goes_on(mine.apply(records.Cancel(RID, OWNER)), "a")


def test_an_owner_that_yielded_is_replaced_without_grace() -> None:
    assert Story().claim("a", "w-a").token().yields().decide() == takeover.Claim("a")


def test_an_abandoned_fencing_token_of_this_worker_is_replaced_without_grace() -> None:
    me = takeover.Self("w-me", "m1", "t1", "", {"a"})
    assert Story().claim("a", "w-me").token().decide(me=me) == takeover.Claim("a")


def test_a_live_fencing_token_of_this_worker_is_waited_for_like_any_other() -> None:
    assert isinstance(Story().claim("a", "w-me").decide(), takeover.Wait)


def test_the_third_attempt_is_the_last_and_the_fourth_closes() -> None:
    story = Story().claim("a", "w-a").claim("b", "w-b")
    assert story.decide(after_ms=3_000) == takeover.Claim("b", last=True)
    story.claim("c", "w-c").tokens(takeover.PROGRESS - 1)
    assert story.decide(after_ms=3_000) == takeover.Close("c", "attempts_exhausted", 3)


def test_claims_after_a_yield_and_by_the_same_incarnation_do_not_count() -> None:
    story = (
        Story()
        .claim("a", "w-a")
        .yields()
        .claim("b", "w-b")
        .claim("c", "w-b")
        .yields()
        .claim("d", "w-d")
    )
    assert takeover.attempts(story.fold) == (1, 1)
    assert story.decide(after_ms=3_000) == takeover.Claim("d")


def test_used_up_attempts_do_not_stop_a_successor_of_one_that_yielded() -> None:
    story = Story().claim("a", "w-a").claim("b", "w-b").claim("c", "w-c").yields()
    assert story.decide() == takeover.Claim("c", last=True)


def test_the_first_lost_worker_counts_whatever_it_made() -> None:
    """A request that kills its workers at token 1,000 has three attempts like any other."""
    story = Story().claim("a", "w-a").tokens(100).claim("b", "w-b")
    assert story.decide(after_ms=3_000) == takeover.Claim("b", last=True)
    assert takeover.attempts(story.fold) == (2, 2)


def test_a_worker_that_was_lost_after_progress_does_not_count() -> None:
    """Symptom: answers that had lost two workers went on one at a time, each to its end."""
    story = Story().claim("a", "w-a").tokens(5).claim("b", "w-b").tokens(takeover.PROGRESS)
    assert story.decide(after_ms=3_000) == takeover.Claim("b")
    story.claim("c", "w-c")
    assert takeover.attempts(story.fold) == (2, 3)
    assert story.decide(after_ms=3_000) == takeover.Claim("c", last=True)


def test_whatever_the_progress_the_sixth_attempt_is_alone_and_the_last() -> None:
    story = Story().claim("a", "w-a")
    for worker in "bcdef":
        assert story.tokens(takeover.PROGRESS).decide(after_ms=3_000) == takeover.Claim(
            story.fold.owner, full_trial=worker == "f"
        )
        story.claim(worker, f"w-{worker}")
    story.tokens(100)
    assert story.decide(after_ms=3_000) == takeover.Close("f", "attempts_exhausted", 2)


def test_no_response_is_claimed_more_than_sixteen_times_whatever_counts() -> None:
    story = Story()
    for i in range(takeover.MAX_CLAIMS):
        story.claim(str(i), "w-me")
    me = takeover.Self("w-me", "m1", "t1", "", {str(takeover.MAX_CLAIMS - 1)})
    assert isinstance(story.decide(me=me), takeover.Close)


@cases.each(
    ("tokens", "after_ms", "expected"),
    [
        (0, 3_000, takeover.Claim("a")),
        (1, 1_000, takeover.Wait(1_000)),
        (1, 3_000, takeover.HandOver(57_000)),
        (1, 60_000, takeover.Close("a", "model_changed", 1)),
    ],
    ids=[
        "no tokens yet: any model may start",
        "its owner may live",
        "tokens of another model: left to a worker that has it",
        "no worker has that model any more",
    ],
)
def test_another_models_answer_is_not_continued(
    tokens: int, after_ms: int, expected: takeover.Decision
) -> None:
    story = Story().claim("a", "w-a", model_rev="m0")
    for _ in range(tokens):
        story.token()
    assert story.decide(after_ms=after_ms) == expected


@cases.each(
    ("model_rev", "parser", "expected"),
    [
        ("m1", "p1", takeover.Claim("b", last=True)),
        ("m1", "p0", takeover.HandOver(57_000)),
        ("m0", "p1", takeover.HandOver(57_000)),
        ("m0", "p0", takeover.HandOver(57_000)),
    ],
)
def test_the_model_and_parser_are_those_of_who_made_the_first_token(
    model_rev: str, parser: str, expected: takeover.Decision
) -> None:
    """Symptom: after a first claim without tokens, a worker of its model went on behind the tokens
    of another model, and one of the right model did not."""
    story = Story().claim("a", "w-a", "m0", "p0").claim("b", "w-b", "m1", "p1").token()
    me = takeover.Self("w-me", model_rev, "t1", parser)
    assert story.decide(after_ms=3_000, me=me) == expected


def test_another_models_answer_waits_longer_while_a_worker_with_that_model_lives() -> None:
    story = Story().claim("a", "w-a", model_rev="m0").token().yields()
    lives = takeover.Self("w-me", "m1", "t1", models={("m0", "t1")})
    other = takeover.Self("w-me", "m1", "t1", models={("m0", "t0"), ("m2", "t1")})
    assert story.decide(after_ms=61_000, me=lives) == takeover.HandOver(239_000)
    assert story.decide(after_ms=300_000, me=lives) == takeover.Close("a", "model_changed", 1)
    assert story.decide(after_ms=61_000, me=other) == takeover.Close("a", "model_changed", 1)


def test_a_paused_answer_is_not_closed_while_its_worker_of_another_pool_lives() -> None:
    """It waits there for its principal's turn. A worker that got a copy of its request ended it."""
    story = Story().claim("a", "w-a", model_rev="m0").token().yields()
    for strangers, expected in (
        ({"w-a"}, takeover.HandOver(239_000)),
        ({"w-b"}, takeover.Close("a", "model_changed", 1)),
        (None, takeover.Close("a", "model_changed", 1)),
    ):
        me = takeover.Self("w-me", "m1", "t1", strangers=strangers)
        assert story.decide(after_ms=61_000, me=me) == expected


def test_for_another_parser_alone_nobody_is_known_to_live() -> None:
    story = Story().claim("a", "w-a", parser="p0").token().yields()
    me = takeover.Self("w-me", "m1", "t1", "p1", models={("m1", "t1")})
    assert story.decide(after_ms=61_000, me=me) == takeover.Close("a", "model_changed", 1)


def test_what_was_handed_over_is_continued_behind_an_owner_that_may_be_replaced() -> None:
    def goes_on(story: Story, *own: str, after_ms: int = 0) -> bool:
        decision = story.decide(after_ms=after_ms)
        return takeover.may_steal(story.fold, decision, own, handed_over=True)

    assert goes_on(Story().claim("a", "w-a").token().yields())
    assert goes_on(Story().claim("a", "w-a").token(), after_ms=3_000)
    assert not goes_on(Story().claim("a", "w-a").token())
    assert not goes_on(Story().claim("a", "w-a", model_rev="m0").token().yields())
    mine = Story().claim("a", "w-me", model_rev="m0").token()  # under another model
    assert not goes_on(mine.yields(), "a")


def test_a_first_claim_waits_for_a_cancel_that_may_be_on_its_way() -> None:
    cancelled = Story().apply(records.Cancel(RID, OWNER)).fold
    decided = [
        takeover.decide(state, ME, now_ms=1_000, expires_ms=2_000, withheld_ms=500)
        for state in (fold.Fold(), cancelled)
    ]
    assert decided == [takeover.Wait(500), takeover.Finished()]


RACER = takeover.Self("w-me", "m1", "t1", topic="t")


def test_a_worker_may_race_for_the_first_token_of_an_owner_that_lives() -> None:
    assert takeover.may_hedge(Story().claim("a", "w-a").fold, RACER)


@cases.each(
    "story",
    [
        Story(),
        Story().claim("a", "w-a").token(),
        Story().claim("a", "w-a").claim("b", "w-b"),
        Story().claim("a", "w-a").claim("b", "w-b", hedged=True),
        Story().claim("a", "w-a").yields(),
        Story().claim("a", "w-me"),
        Story().claim("a", "w-a", model_rev="m2"),
        Story().claim("a", "w-a", parser="p"),
        Story().claim("a", "w-a").apply(records.Cancel(RID, OWNER)),
    ],
    ids=[
        *("no owner", "a token", "a takeover", "a hedge", "a yield", "itself"),
        *("another model", "another parser", "done"),
    ],
)
def test_and_of_no_other(story: Story) -> None:
    assert not takeover.may_hedge(story.fold, RACER)


def test_nor_of_an_owner_of_another_pool() -> None:
    me = takeover.Self("w-me", "m1", "t1", topic="other")
    assert not takeover.may_hedge(Story().claim("a", "w-a").fold, me)


def test_a_hedged_claim_is_no_attempt() -> None:
    story = Story().claim("a", "w-a").claim("b", "w-b", hedged=True)
    assert takeover.attempts(story.fold) == (1, 1)
    story.claim("c", "w-c")
    assert takeover.attempts(story.fold) == (2, 2)


def test_the_first_owner_leaves_the_response_to_the_faster_one_while_that_one_lives() -> None:
    first = takeover.Self("w-a", "m1", "t1", living={"w-b"}, abandoned={"a"})
    story = Story().claim("a", "w-a").claim("b", "w-b", hedged=True)
    assert story.decide(after_ms=5_000, me=first) == takeover.Wait(25_000)
    assert story.token().decide(after_ms=500, me=first) == takeover.Wait(1_500)
    assert story.decide(after_ms=2_000, me=first) == takeover.Claim("b")
