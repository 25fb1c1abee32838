"""Good histories for tests of the judge: a log with takeovers, zombies, cancels and failures, and
watchers that reconnected."""

from __future__ import annotations

import copy
import functools
import io
import itertools
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tailrace import log
from tailrace.protocol import (
    activity,
    conversations,
    events,
    fold,
    ids,
    records,
    topics,
    truncation,
)
from tailrace.protocol import history as kept
from tailrace.verify import checks, clients, history, outcome, reference_fold, report, transcript
from tests.support import toy_parser
from worker.engines import scripted
from worker.serving import metering

INCARNATION = "planted"
TAG = ids.incarnation_tag(INCARNATION)
PARTITION = 3
REQUESTS = topics.requests("default", "interactive")
SMALL = topics.requests("small", "interactive")
T0 = 1_700_000_000_000


def owner(user: str) -> records.Owner:
    return records.Owner("https://tests", user)


@dataclass
class World:
    """A log and what clients saw of it. Records lie in `log` in the order of their appends; offsets
    are theirs by topic and partition.

    Attributes:
        log: every record.
        lines: transcripts by file.
        now: broker time of the next append, ms.
    """

    log: list[log.Record] = field(default_factory=list)
    lines: dict[str, list[transcript.Line]] = field(default_factory=dict)
    committed: dict[tuple[str, int], history.Commit] = field(default_factory=dict)
    now: int = T0
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def append(self, topic: str, partition: int, key: str, record: records.Record) -> int:
        return self.put(topic, partition, key, records.encode(record))

    def put(self, topic: str, partition: int, key: str, value: bytes | None) -> int:
        offset = sum(1 for r in self.log if (r.topic, r.partition) == (topic, partition))
        self.now += 10
        self.log.append(log.Record(topic, partition, offset, self.now, key.encode(), value, ()))
        return offset

    def token(self, record: records.TokenRecord) -> int:
        return self.append(topics.TOKENS, PARTITION, record.rid, record)

    def line(self, file: str, **fields: Any) -> None:
        self.lines.setdefault(file, []).append(
            transcript.Line(wall=self.now / 1000, mono=self.now / 1000, **fields)
        )

    # ---- what honest parts do

    def ask(
        self,
        text: str,
        user: str = "alice",
        n: int = 20,
        key: str | None = None,
        ttl_ms: int = 600_000,
        append_by: int = 0,
        answer: str = "ok",
        mark: str = "",
        wants: dict[str, Any] | None = None,
        **cues: str,
    ) -> records.Request:
        mark = mark or f"mark-{next(self.numbers)}"
        operation = next(self.numbers)
        self.line("client", op="submit", f="invoke", n=operation, user=user, mark=mark, key=key)
        end = sum(1 for r in self.log if r.topic == topics.TOKENS)
        rid = ids.mint(ids.Address(TAG, PARTITION, end), next(self.numbers).to_bytes(11, "big"))
        metadata = {"mark": mark, "script_tokens": str(n), **cues}
        request = records.Request(
            rid=rid,
            owner=owner(user),
            model="m",
            messages=[{"role": "user", "content": text}],
            sampling=records.Sampling(4096),
            echo=events.echo(rid, T0 // 1000, "m", background=True, metadata=metadata),
            idempotency_key=key,
            ttl_ms=ttl_ms,
            append_by=append_by,
        )
        request = msgspec.structs.replace(request, **(wants or {}))
        self.append(REQUESTS, PARTITION, rid, request)
        told: dict[str, Any] = {"code": 503}
        if answer == "ok":
            told = {"rid": rid}
        self.line("client", op="submit", f=answer, n=operation, **told)
        return request

    def writer(
        self,
        request: records.Request,
        worker: str,
        prev: Writer | None = None,
        accepted: Sequence[int] = (),
        held: int = 0,
        copied: int = 0,
        dropped: int = 0,
        served: str = "",
        answer_of: str = "",
        begun: tuple[int, str] = (0, ""),
        hedged: bool = False,
        **claim: Any,
    ) -> Writer:
        own = self.claim(
            request,
            worker,
            prev.own if prev else None,
            copied=copied,
            dropped=0 if prev else dropped,
            served=served,
            answer_of=answer_of,
            hedged=hedged,
            **claim,
        )
        return Writer(
            *(self, request, own, worker, list(accepted), held, copied, dropped, served),
            answer_of=answer_of,
            begun=begun,
        )

    def claim(
        self,
        request: records.Request,
        worker: str,
        prev: str | None,
        parser: str = "",
        copied: int = 0,
        dropped: int = 0,
        served: str = "",
        answer_of: str = "",
        model: str = "scripted-1",
        topic: str = REQUESTS,
        *,
        continues: bool = False,
        hedged: bool = False,
    ) -> str:
        own = f"{next(self.numbers):032x}"
        claim = records.Claim(
            request.rid,
            own,
            prev,
            request.owner,
            worker,
            topic,
            0,
            model,
            "scripted-1",
            2 + copied,
            {} if prev else request.echo,
            parser,
            copied,
            dropped,
            served,
            answer_of,
            continues,
            hedged,
        )
        self.token(claim)
        return own

    def bill(
        self,
        request: records.Request,
        status: str,
        usage: records.Usage,
        digest: str,
        claims: int = 1,
        model: str = "m",
        answer_of: str = "",
    ) -> None:
        name = request.rid.encode()
        asked = [r.timestamp for r in self.log if r.topic == REQUESTS and r.key == name]
        state = self.folded(request.rid)
        first_token_ms, inter_token_ms = metering.latencies(state, min(asked, default=0))
        metered = records.UsageRecord(
            request.rid,
            request.owner,
            model,
            "scripted-1",
            status,
            usage,
            claims,
            "w",
            self.now,
            "",
            digest,
            answer_of,
            first_token_ms=first_token_ms,
            inter_token_ms=inter_token_ms,
        )
        self.append(topics.USAGE, 0, request.owner.key, metered)

    def watch(
        self, request: records.Request, user: str, watcher: str, cuts: Sequence[int] = ()
    ) -> None:
        """A watcher that loses its connection after so many events, and comes back by its
        position."""
        series = outcome.events(reference_fold.account(self.entries(request.rid)), background=True)
        account = reference_fold.account(self.entries(request.rid))
        start = 0
        for stop in [*cuts, len(series)]:
            n = next(self.numbers)
            self.line(
                "client",
                op="watch",
                f="invoke",
                n=n,
                user=user,
                watcher=watcher,
                rid=request.rid,
                after=start - 1,
            )
            self.line("client", op="watch", f="ok", n=n)
            for a in range(start, stop, 4):
                batch = [
                    [i, kind, delta, transcript.digest(f"{kind} {delta}".encode())]
                    for i, (kind, delta, _) in enumerate(series)
                ][a : min(a + 4, stop)]
                self.line("client", op="events", n=n, rid=request.rid, events=batch)
            if stop == len(series) and account.status:
                self.line(
                    "client",
                    op="end",
                    n=n,
                    rid=request.rid,
                    status=account.status,
                    text=account.text,
                    items=[list(item) for item in self.outcome(request.rid).items],
                    tokens=account.total,
                )
            self.line("client", op="close", n=n, code=1000 if stop == len(series) else 4002)
            start = stop

    def outcome(self, rid: str) -> outcome.Outcome:
        response = self.history().responses[rid]
        return outcome.outcome_of(response, reference_fold.account(response.entries))

    def entries(self, rid: str) -> list[history.Entry]:
        return self.history().responses[rid].entries

    def folded(self, rid: str) -> fold.Fold:
        """The response as a worker has it now."""
        state = fold.Fold()
        for entry in self.entries(rid):
            state.apply(entry.record, entry.offset, entry.timestamp)
        return state

    # ---- judging

    def history(self) -> history.History:
        found = history.gather([], incarnation=INCARNATION, partitions=8)
        found.digests, found.beginnings = (
            {},
            {
                (topics.TOKENS, PARTITION): 0,
                (REQUESTS, PARTITION): 0,
                (topics.USAGE, 0): 0,
                (topics.DLQ, 0): 0,
            },
        )
        found.keyed = True
        for r in self.log:
            found.add(r)
        found.committed = dict(self.committed)
        return found

    def judge(self, *, by_content: bool = True, **options: Any) -> report.Report:
        found = self.history()
        options["content"] = content if by_content else None
        out, outcomes = checks.judge(found, checks.Options(settle_s=0.0, **options))
        clients.judge(
            out,
            found,
            outcomes,
            [
                (name, transcript.read(b"".join(map(transcript.encode, lines)), name))
                for name, lines in self.lines.items()
            ],
            settle_s=0.0,
        )
        return out

    def copy(self) -> World:
        return World(
            list(self.log), copy.deepcopy(self.lines), dict(self.committed), self.now, self.numbers
        )

    def keep(self, request: records.Request, /, **changes: Any) -> None:
        """What a worker writes to `llm.history` about a response that has ended."""
        account = reference_fold.account(self.entries(request.rid), request.owner)
        assert account.ended_at is not None
        accepted = [account.entries[at].record for at in account.accepted()]
        made = kept.from_records(request, accepted, account.entries[account.ended_at].timestamp)
        for key, value in kept.parts(msgspec.structs.replace(made, **changes)):
            self.put(topics.HISTORY, PARTITION, key, value)
        if not changes:
            self.tell(request, str(account.status))

    def tell(self, request: records.Request, status: str) -> None:
        """What a worker writes to `llm.activity` about a response that has ended."""
        created = int(request.echo["created_at"])
        of = (created, request.conversation, request.previous)
        notices = (
            activity.Started(request.rid, request.owner, request.model, *of),
            activity.Ended(request.rid, request.owner, request.model, status, *of),
        )
        for notice in notices:
            self.put(topics.ACTIVITY, PARTITION, request.rid, activity.encode(notice))

    # ---- breaking: everything behind a record that goes or comes is renumbered, as if it had been
    # appended so

    def find(self, rid: str, kind: type[records.TokenRecord], nth: int = 0) -> int:
        """Index in `log` of a response's nth record of a kind."""
        found = [
            i
            for i, r in enumerate(self.log)
            if r.topic == topics.TOKENS
            and (d := records.decode_token(r.value))
            and d.rid == rid
            and isinstance(d, kind)
        ]
        return found[nth]

    def frames(self, rid: str) -> list[int]:
        """Indices in `log` of the frames of a response that count, in order."""
        at = {
            r.offset: i
            for i, r in enumerate(self.log)
            if (r.topic, r.partition) == (topics.TOKENS, PARTITION)
        }
        account = reference_fold.account(self.entries(rid))
        return [at[account.entries[f.at].offset] for f in account.frames]

    def decoded(self, index: int) -> records.TokenRecord:
        found = records.decode_token(self.log[index].value)
        assert found is not None
        return found

    def replace(self, index: int, record: records.Record) -> None:
        self.log[index] = self.log[index]._replace(value=records.encode(record))

    def renumber(self) -> None:
        counts: dict[tuple[str, int], int] = {}
        for i, r in enumerate(self.log):
            place = (r.topic, r.partition)
            self.log[i] = r._replace(offset=counts.get(place, 0))
            counts[place] = counts.get(place, 0) + 1


@dataclass
class Writer:
    """An honest owner of a response. `held`: characters of text that former owners emitted.
    `begun`: how many ids and what text another model had, of which this one has none."""

    world: World
    request: records.Request
    own: str
    worker: str
    ids: list[int]
    held: int = 0
    copied: int = 0
    dropped: int = 0
    served: str = ""
    answer_of: str = ""
    begun: tuple[int, str] = (0, "")

    def frames(self, n: int, size: int = 2) -> Writer:
        """The next `n` tokens of the greedy answer."""
        before, said = self.begun
        for _ in range(0, n, size):
            shown = begun_by(truncation.prompt(self.request, self.dropped), said)
            step = list(itertools.islice(scripted.tokens(shown, self.ids[before:]), size))
            text = scripted.Detokenizer().push([*self.ids[before:], *step])
            self.world.token(
                records.Tok(
                    self.request.rid,
                    self.own,
                    len(self.ids),
                    step,
                    text[self.held :],
                    reference_fold.link(reference_fold.START, self.ids).hex(),
                )
            )
            self.ids += step
            self.held = len(text)
        return self

    def end(
        self, reason: str = "stop", error: tuple[str, str] | None = None, bill: bool = True
    ) -> None:
        chain, usage = (
            reference_fold.link(reference_fold.START, self.ids).hex(),
            records.Usage(2 + self.copied, len(self.ids) - self.copied),
        )
        whole = scripted.Detokenizer()
        tail = (whole.push(self.ids[self.begun[0] :]) + whole.flush())[self.held :]
        self.world.token(
            records.End(
                self.request.rid, self.own, len(self.ids), reason, chain, tail, usage, error
            )
        )
        if bill:
            status = reference_fold.STATUS.get(reason, "failed")
            model = self.served or "m"
            self.world.bill(
                self.request, status, usage, chain, model=model, answer_of=self.answer_of
            )


def begun_by(messages: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    """The messages with an answer that is to be continued."""
    return [*messages, {"role": "assistant", "content": text}] if text else messages


def content(response: history.Response, account: reference_fold.Account) -> Iterator[str]:
    """What the scripted engine had to write, greedy."""
    if not response.requests:
        return
    if response.requests[0].request.tools:
        yield from items_content(response, account)
        return
    messages = truncation.prompt(response.requests[0].request, account.dropped)
    before, said, _ = account.former[-1] if account.former else (0, 0, "")
    if before:
        messages = begun_by(messages, account.text[:said])
    own = scripted.expected_ids(messages, account.total - before)
    whole = [*account.ids[:before], *own]
    if account.ids != whole:
        at = next(i for i, (a, b) in enumerate(itertools.zip_longest(account.ids, whole)) if a != b)
        yield f"token {at} is not what the engine had to write"
    text = scripted.Detokenizer()
    expected = account.text[:said] + text.push(own) + (text.flush() if account.end else "")
    if (account.end is not None and account.text != expected) or not expected.startswith(
        account.text
    ):
        yield "text is not the text of the ids"


def items_content(response: history.Response, account: reference_fold.Account) -> Iterator[str]:
    """The same for a response with tools: what the toy parser has to find in its ids."""
    whole = toy_parser.ids_of(toy_parser.ANSWER)[: account.total]
    if account.ids != whole:
        yield "ids are not those of the answer"
    worker = toy_parser.Worker(response.rid, "judge")
    written = worker.frame(whole) if whole else worker.end()
    marks = [(m.at, m.ids, m.kind, m.name, m.call_id) for m in written.marks]
    text = written.text if isinstance(written, records.Tok) else written.text_tail
    if account.text != text or account.marks != marks:
        yield "text or marks are not those of the ids"


TOOLS = [{"type": "function", "function": {"name": "weather", "strict": True}}]


def with_items(w: World) -> records.Request:
    """A response with reasoning, messages and calls, taken over in the middle of the second
    call."""
    wants = {"tools": TOOLS, "sampling": records.Sampling(4096, logprobs=0)}
    request = w.ask("call the tools", "bob", wants=wants)
    rest = toy_parser.ids_of(toy_parser.ANSWER)
    own = w.claim(request, "worker-1/a", None, toy_parser.PARSER)
    first = toy_parser.Worker(request.rid, own, logprobs=True)
    while len(rest) > 16:
        w.token(first.frame(rest[:4]))
        rest = rest[4:]
    own = w.claim(request, "worker-2/b", own, toy_parser.PARSER)
    second = toy_parser.Worker(
        request.rid, own, tuple(first.ids), first.text_length, first.mark_count, True
    )
    w.token(first.frame(rest[:4]))  # the zombie's
    for at in range(0, len(rest), 4):
        w.token(second.frame(rest[at : at + 4]))
    end = second.end()
    w.token(end)
    w.bill(request, "completed", end.usage, end.digest, 2)
    return request


TALK = ids.mint(ids.Address(bytes(4), 2, 0), bytes(11), conversations.PREFIX)


def with_turns(w: World) -> records.Request:
    """A conversation: a turn, added items, the chosen path, a turn that lost; and its last turn."""
    alice = owner("alice")
    until = w.now + 60_000

    def tell(*acts: conversations.Act) -> None:
        for act in acts:
            key = conversations.key(act, str(len(w.log)))
            w.put(topics.CONVERSATIONS, 2, key, conversations.encode(act))

    wants = {"conversation": TALK}
    tell(conversations.Created(TALK, alice, 1))
    first = w.ask("first", append_by=until, wants=wants)
    tell(conversations.Turn(TALK, alice, first.rid, None, until=until))
    w.writer(first, "worker-1/a").frames(20).end()
    w.keep(first)
    tell(
        conversations.Item(TALK, alice, "i", {"type": "message"}),
        conversations.Added(TALK, alice, "n", ["i"], first.rid),
        conversations.Turn(TALK, alice, "lost", first.rid),
        conversations.Changed(TALK, alice, title="talk"),
        conversations.Chosen(TALK, alice, None),
        conversations.Chosen(TALK, alice, "n"),
    )
    second = w.ask("second", append_by=until, wants=wants)
    tell(conversations.Turn(TALK, alice, second.rid, "n", until=until))
    w.writer(second, "worker-1/a").frames(20).end()
    return second


@dataclass
class Good:
    """A world in which everything held, and the responses in it."""

    world: World
    plain: records.Request
    taken: records.Request  # taken over once, with a zombie's late records
    cancelled: records.Request
    failed: records.Request  # three attempts, a closing claim, one dead letter
    expired: records.Request
    keyed: records.Request
    late: records.Request  # refused; the broker took it when its gateway had given it up
    unknown: records.Request  # of unknown outcome, with a key; withdrawn before any claim
    again: records.Request  # the same request with the same key once more
    items: records.Request  # reasoning, messages and calls; taken over in the middle of a call
    fork: records.Request  # begins with 7 tokens of `plain`; taken over in the middle of these
    turn: records.Request  # the second of a conversation
    shortened: records.Request  # its prompt lacks two turns; taken over
    elsewhere: records.Request  # its pool's worker died before a token; another pool answered
    two_models: records.Request  # a worker of another pool continued its text
    cut: records.Request  # ended at its bound, in the middle of a character
    continued: records.Request  # continues the text of `cut`; taken over
    greedy: records.Request  # generated, with temperature 0
    given: records.Request  # the answer of `greedy` again
    hedged: records.Request  # its first token was late, and a second worker was faster


def with_messages_left_out(w: World) -> records.Request:
    """A response that is taken over and whose prompt lacks two of three turns."""
    said = [
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "one"},
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "second"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "third"},
    ]
    request = w.ask("third", "bob", wants={"messages": said, "truncate": True})
    first = w.writer(request, "worker-1/a", dropped=4).frames(8)
    w.writer(request, "worker-2/b", first, first.ids, first.held, dropped=4).frames(12).end()
    return request


def by_another_pool(w: World) -> records.Request:
    """A response that a worker of its pool claimed, and that one of another pool answers."""
    request = w.ask("elsewhere", "bob")
    asked_ms = w.now
    first = w.writer(request, "worker-1/a")
    w.append(SMALL, PARTITION, request.rid, records.Reroute(request.rid, request, asked_ms))
    w.writer(request, "small-1/b", first, served="small-model").frames(20).end()
    return request


def of_two_models(w: World) -> records.Request:
    """A response whose text a worker of another pool continues, and behind it another one there."""
    request = w.ask("continued", "bob", 40)
    asked_ms = w.now
    first = w.writer(request, "worker-1/a").frames(8)
    said = scripted.Detokenizer().push(first.ids)
    reroute = records.Reroute(request.rid, request, asked_ms, continues=True)
    w.append(SMALL, PARTITION, request.rid, reroute)
    of: dict[str, Any] = {
        "served": "small-model",
        "begun": (8, said),
        "model": "small-1",
        "topic": SMALL,
    }
    second = w.writer(request, "small-1/b", first, first.ids, continues=True, **of).frames(4)
    w.writer(request, "small-2/c", second, second.ids, second.held, **of).frames(8).end()
    return request


def with_text_continued(w: World) -> tuple[records.Request, records.Request]:
    """A response that ended at its bound, and the one that continues its text."""
    cut = w.ask("cut short", "bob")
    first = w.writer(cut, "worker-1/a")
    while not first.ids or first.ids[-1] >> 28 != scripted.HALF:
        first.frames(1, 1)
    first.end("length")
    said = scripted.expected_text(cut.messages, len(first.ids)).removesuffix("\ufffd")
    begun = [*cut.messages, {"role": "assistant", "content": said}]
    wants = {"messages": begun, "continue_final": True, "previous": cut.rid}
    continued = w.ask("", "bob", wants=wants)
    half = w.writer(continued, "worker-1/a").frames(8)
    w.writer(continued, "worker-2/b", half, half.ids, half.held).frames(12).end()
    return cut, continued


def with_an_answer_given_again(
    w: World, user: str = "alice", other: str = "alice", **wants: Any
) -> tuple[records.Request, records.Request]:
    """A response to `user`, and the same answer once more, to `other`. `wants`: of the second."""
    greedy = {"sampling": records.Sampling(4096, temperature=0.0)}
    first = w.ask("greedy", user, wants=greedy)
    w.writer(first, "worker-1/a").frames(20).end()
    second = w.ask("greedy", other, wants={**greedy, **wants})
    w.writer(second, "worker-2/b", answer_of=first.rid).frames(20, 20).end()
    return first, second


def by_a_faster_worker(w: World) -> records.Request:
    """A response of a worker that is late. Two others make a token; the claim of one is first. Then
    that one dies, and two more after it, so that one attempt more would be too many."""
    request = w.ask("hedged", "bob")
    first = w.writer(request, "worker-1/a")
    second = w.writer(request, "worker-2/b", first, hedged=True)
    w.writer(request, "worker-3/c", first, hedged=True)
    third = w.writer(request, "worker-3/c", second)
    w.writer(request, "worker-4/d", third).frames(20).end()
    return request


def good() -> Good:
    """Responses that were taken, with two watchers each, one of which reconnects twice; and some
    that were not. Each call returns its own copy: to make one again takes thirty times as long."""
    copied: Good = _Unpickler(io.BytesIO(_pickled())).load()
    return copied


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, pid: int) -> Any:
        return _defaults()[pid]


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self._numbers = {id(default): number for number, default in enumerate(_defaults())}

    def persistent_id(self, obj: Any) -> int | None:
        return self._numbers.get(id(obj))


@functools.cache
def _defaults() -> list[Any]:
    """Default values, as copying has to leave them: msgspec leaves a member out of a record only
    where it is that very object."""
    return [
        default
        for shape in vars(records).values()
        if isinstance(shape, type) and issubclass(shape, msgspec.Struct)
        for default in shape.__struct_defaults__
        if isinstance(default, msgspec.Struct | str | bytes | float | tuple)
    ]


@functools.cache
def _pickled() -> bytes:
    """The good history. To read it takes a tenth of what a deep copy takes."""
    made = io.BytesIO()
    _Pickler(made).dump(_good())
    return made.getvalue()


def _good() -> Good:
    w = World()
    plain = w.ask("plain")
    w.writer(plain, "worker-1/a").frames(20).end()
    taken = w.ask("taken over", "bob", 40)
    first = w.writer(taken, "worker-1/a").frames(14)
    second = w.writer(taken, "worker-2/b", first, first.ids, first.held).frames(6)
    first.frames(4)  # the zombie's records are ignored
    second.frames(20).end()
    cancelled = w.ask("cancel me", n=40)
    half = w.writer(cancelled, "worker-1/a").frames(10)
    n = next(w.numbers)
    w.line("client", op="cancel", f="invoke", n=n, user="alice", rid=cancelled.rid)
    w.token(records.Cancel(cancelled.rid, cancelled.owner, cancelled.echo))
    w.line("client", op="cancel", f="ok", n=n, status="cancelled")
    half.frames(2)
    w.bill(
        cancelled,
        "cancelled",
        records.Usage(2, 10),
        reference_fold.link(reference_fold.START, half.ids[:10]).hex(),
    )
    failed = w.ask("kills its worker", "bob")
    owners: list[Writer] = []
    for name in ("worker-1/a", "worker-2/b", "worker-3/c"):
        prev = owners[-1] if owners else None
        owners.append(
            w.writer(failed, name, prev, prev.ids if prev else (), prev.held if prev else 0).frames(
                2
            )
        )
    w.writer(failed, "worker-4/d", owners[-1], owners[-1].ids, owners[-1].held).end(
        "failed", ("server_error", "…")
    )
    w.append(
        topics.DLQ,
        0,
        failed.rid,
        records.DeadLetter(failed.rid, failed.owner, "m", "attempts_exhausted", 3, REQUESTS, 0, ""),
    )
    expired = w.ask("too late", ttl_ms=1000)
    w.now += 2000
    w.writer(expired, "worker-1/a").end("expired")
    keyed = w.ask("once", key="k-1")
    w.writer(keyed, "worker-1/a").frames(20).end()
    late = w.ask("too late to count", append_by=w.now, answer="fail")
    unknown = w.ask("perhaps", key="k-2", answer="info", mark="mark-perhaps")
    w.token(records.Cancel(unknown.rid, unknown.owner, unknown.echo, withdrawn=True))
    again = w.ask("perhaps", key="k-2", mark="mark-perhaps")
    racing = w.ask("perhaps", key="k-2", answer="info", mark="mark-perhaps")
    loser = w.writer(racing, "worker-2/b").frames(2)  # claimed before it stood down
    w.token(records.Cancel(racing.rid, racing.owner, racing.echo, withdrawn=True))
    w.bill(
        racing,
        "cancelled",
        records.Usage(2, 2),
        reference_fold.link(reference_fold.START, loser.ids[:2]).hex(),
    )
    w.writer(again, "worker-1/a").frames(20).end()
    items = with_items(w)
    fork = w.ask("plain", wants={"fork": records.Fork(plain.rid, 7)})
    copying = w.writer(fork, "worker-1/a", copied=7).frames(4)
    w.writer(fork, "worker-2/b", copying, copying.ids, copying.held, 7).frames(3, 3).frames(
        13
    ).end()
    turn = with_turns(w)
    shortened = with_messages_left_out(w)
    elsewhere = by_another_pool(w)
    hedged = by_a_faster_worker(w)
    two_models = of_two_models(w)
    cut, continued = with_text_continued(w)
    greedy, given = with_an_answer_given_again(w)
    for request in (
        *(plain, taken, cancelled, failed, expired, keyed, again, items, fork, turn),
        *(shortened, elsewhere, two_models, cut, continued, greedy, given, hedged),
    ):
        w.keep(request)
        w.watch(request, request.owner.subject, f"steady-{request.rid}")
        w.watch(
            request,
            request.owner.subject,
            f"shaky-{request.rid}",
            cuts=(2, 3) if request is expired else (3, 7),
        )
    for r in w.log:
        w.line(
            "worker",
            op="acked",
            topic=r.topic,
            partition=r.partition,
            offset=r.offset,
            digest=transcript.digest(r.value or b""),
        )
    w.committed[(REQUESTS, PARTITION)] = history.Commit(6, str(len(w.entries(plain.rid))))
    w.line(
        "worker",
        op="commit",
        f="invoke",
        topic=REQUESTS,
        partition=PARTITION,
        offset=6,
        metadata="0",
    )
    return Good(
        *(w, plain, taken, cancelled, failed, expired, keyed, late, unknown, again, items, fork),
        turn,
        shortened,
        elsewhere,
        two_models,
        cut,
        continued,
        greedy,
        given,
        hedged,
    )
