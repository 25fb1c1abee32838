"""The scripted engine: no model, for tests and load.

Each token depends on everything before it, so a reader can prove that no two generations were
mixed. Token i is a hash of the prompt, of all ids before it and of i (greedy). With
`script_sampling` it is a hash of the claim's fencing token too.

A text to continue gets the rest of the greedy answer that begins with it; `script_tokens` counts
the whole answer. If no answer begins with it, it is a part of the prompt like any other.

Lines of the last user message make it call tools, reason, and answer in a format, where the request
has them (`worker.engines.scripted_answers`). `TAILRACE_SCRIPT_…` make a worker another revision,
slower or failing. The metadata controls the rest (values are strings, as in the API):

    script_tokens    number of tokens; without it, a short readable text that quotes the prompt
    script_pace_ms   pause before each token (default 15)
    script_echo      "1": the answer is the last user message, again and again up to script_tokens
    script_sampling  "1": tokens depend on the claim that made them
    script_fault     hang, engine_hang, crash, error, slow or engine_death
    script_fault_at  tokens that exist before the fault (default 0)

An id says which bytes it stands for. Its upper four bits are the kind, the other 28 the content:

    WORD    a space and letters; a stop string can span two tokens
    HALF    the first half of a four-byte character
    REST    the second half
    EMPTY   no text
    BYTES   up to three bytes of UTF-8 (the readable text)
    TEXT    one or two bytes of UTF-8, and bits that depend on all before it (JSON, quotes)
    MARKER  the same, in what says where an item begins
"""

from __future__ import annotations

import asyncio
import base64
import codecs
import hashlib
import itertools
import os
import re
import signal
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from tailrace import settings
from tailrace.protocol import engine_fields, features, files, fold, images, records
from worker.engines import (
    base,
    scripted_answers,
    scripted_cache,
    scripted_embeddings,
    scripted_markers,
    scripted_steps,
)
from worker.prefixes import cached_blocks
from worker.text import generation
from worker.text.messages import plain

WORD: Final = 1
HALF: Final = 2
REST: Final = 3
EMPTY: Final = 4
BYTES: Final = 5
TEXT: Final = 6
MARKER: Final = 7
_PAYLOAD: Final = (1 << 28) - 1
PACE_MS: Final = 15.0
SLOW_MS: Final = 2_000.0
MAX_TOKENS: Final = 100_000
_PAIR: Final = re.compile(r"[\x00-\x7f]{1,2}|[^\x00-\x7f]")
_SYLLABLES: Final = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]


def token(prompt: str, h: str, index: int, previous: int | None, nonce: str = "") -> int:
    """Id number `index` after ids whose rolling hash is `h`; `prompt` is the prompt's digest."""
    digest = hashlib.blake2b(f"{prompt}|{h}|{index}|{nonce}".encode(), digest_size=8).digest()
    payload = int.from_bytes(digest[:4], "big") & _PAYLOAD
    if previous is not None and previous >> 28 == HALF:
        return REST << 28 | payload
    kind = {0: HALF, 1: EMPTY}.get(digest[4] % 12, WORD)
    return kind << 28 | payload


def token_bytes(token_id: int) -> bytes:
    """The bytes that an id stands for."""
    kind, payload = token_id >> 28, token_id & _PAYLOAD
    if kind == WORD:
        n = len(_SYLLABLES)
        return f" {_SYLLABLES[payload % n]}{_SYLLABLES[payload // n % n]}".encode()
    if kind == HALF:
        return b"\xf0\x9f"
    if kind == REST:
        return bytes((0x98, 0x80 + payload % 64))  # U+1F600 to U+1F63F
    if kind == BYTES:
        return payload.to_bytes(4, "big")[1 : 1 + (payload >> 24)]
    if kind in (TEXT, MARKER):
        raw = (payload >> 11 & 0xFFFF).to_bytes(2, "big")
        return raw if payload >> 27 else raw[:1]
    return b""


def text_token(kind: int, raw: bytes, prompt: str, h: str, index: int, nonce: str = "") -> int:
    """Id number `index`, which stands for one or two given bytes. Arguments as of `token`."""
    digest = hashlib.blake2b(f"{prompt}|{h}|{index}|{nonce}".encode(), digest_size=2).digest()
    two = len(raw) - 1
    content = int.from_bytes(raw.ljust(2, b"\0"), "big")
    return kind << 28 | two << 27 | content << 11 | int.from_bytes(digest, "big") & 0x7FF


class Detokenizer:
    """Bytes to text, by whole characters."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids: Sequence[int]) -> str:
        return self._decoder.decode(b"".join(map(token_bytes, ids)))

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


def _prompt_digest(messages: list[dict[str, Any]]) -> str:
    """Digest of a prompt. An image counts by its name: its bytes are in the record or in a file."""
    if images.any_in(messages):
        messages = [{**m, "content": _name_images(m.get("content"))} for m in messages]
    return records.prompt_digest(messages)


def _name_images(content: Any) -> Any:
    if not isinstance(content, list):
        return content
    bytes_of = ("data", "file")
    return [{k: v for k, v in part.items() if k not in bytes_of} for part in content]


def tokens(
    messages: list[dict[str, Any]], before: Sequence[int] = (), nonce: str = ""
) -> Iterator[int]:
    """The endless continuation of `before`: greedy, or with `nonce` sampled."""
    prompt = _prompt_digest(messages)
    h, previous = fold.roll(fold.H0, before), before[-1] if before else None
    for index in itertools.count(len(before)):
        previous = token(prompt, h, index, previous, nonce)
        h = fold.roll(h, (previous,))
        yield previous


def expected_ids(messages: list[dict[str, Any]], n: int) -> list[int]:
    """The greedy answer's ids."""
    return list(itertools.islice(tokens(messages), n))


def expected_text(messages: list[dict[str, Any]], n: int) -> str:
    """The greedy answer's text. Every reader must have it, whichever workers died."""
    detokenizer = Detokenizer()
    return detokenizer.push(expected_ids(messages, n)) + detokenizer.flush()


def readable_text(messages: list[dict[str, Any]]) -> str:
    """The default answer. It contains the digests of the prompt's images."""
    question = _question(messages).strip()
    quote = question if len(question) <= 40 else f"{question[:39]}…"
    digests = ", ".join(part["sha256"][:8] for part in images.parts(messages))
    image_note = f" with images {digests}" if digests else ""
    return (
        f"You asked: “{quote}”{image_note} — this is the scripted engine: it answers in order, but "
        f"it does not think."
    )


def _question(messages: list[dict[str, Any]]) -> str:
    questions = (str(m["content"]) for m in reversed(plain(messages)) if m["role"] == "user")
    return next(questions, "")


def _with_digests(request: records.Request) -> records.Request:
    """The request with the digests of the files that it has, and without the files."""
    if not images.any_in(request.messages):
        return request
    _check_images(request)

    def with_digest(part: dict[str, Any]) -> dict[str, Any]:
        members = {name: value for name, value in part.items() if name != "data"}
        return {**members, "sha256": files.digest(base64.b64decode(part["data"]))}

    return msgspec.structs.replace(
        request, messages=images.map_images(request.messages, with_digest)
    )


def _check_images(request: records.Request) -> None:
    if images.has_files(request.messages):
        raise base.Refused("invalid_image", "An image is not in the request.")


def readable(messages: list[dict[str, Any]]) -> list[int]:
    """The default answer, three bytes to a token."""
    return text_ids(readable_text(messages))


def echo(messages: list[dict[str, Any]], total: int | None) -> Iterator[int]:
    """The last user message, three bytes to a token; with `total`, repeated up to this number of
    tokens."""
    ids = text_ids(_question(messages))
    return iter(ids) if total is None else itertools.islice(itertools.cycle(ids), total)


def text_ids(text: str) -> list[int]:
    """A text, three bytes to a token."""
    raw = text.encode(errors="replace")
    pieces = [raw[at : at + 3] for at in range(0, len(raw), 3)]
    return [BYTES << 28 | len(p) << 24 | int.from_bytes(p.ljust(3, b"\0"), "big") for p in pieces]


def answer(request: records.Request, before: Sequence[int] = (), nonce: str = "") -> Iterator[int]:
    """The ids of the answer that follow `before`: greedy, or with `nonce` sampled.

    Raises:
        base.Refused: this engine cannot write the requested answer.
    """
    cues = base.metadata(request)
    total = None
    if "script_tokens" in cues:
        total = min(MAX_TOKENS, int(_number(cues, "script_tokens", 0)))
    if not scripted_answers.has_items(request) and request.format is None:
        if _is_on(cues, "script_echo"):
            return itertools.islice(echo(request.messages, total), len(before), None)
        if request.continue_final and total is not None:
            prefix = _greedy_prefix(request, total)
            if prefix is not None:
                remaining = max(0, total - len(prefix) - len(before))
                rest = tokens(request.messages[:-1], [*prefix, *before], nonce)
                return itertools.islice(rest, remaining)
        if request.continue_final and total is None:
            whole, text = readable_text(request.messages[:-1]), _last_text(request)
            if whole.startswith(text):
                return iter(text_ids(whole[len(text) :])[len(before) :])
        if total is None:
            return iter(readable(request.messages)[len(before) :])
        remaining = max(0, total - len(before))
        return itertools.islice(tokens(request.messages, before, nonce), remaining)
    quote = scripted_markers.harmless(readable_text(request.messages))
    try:
        runs = scripted_answers.runs(request, quote if total is None else total)
    except scripted_answers.Impossible as error:
        raise base.Refused("unsupported_parameter", str(error)) from error
    return _fill(_slots(runs), _prompt_digest(request.messages), before, nonce)


def _last_text(request: records.Request) -> str:
    return plain(request.messages[-1:])[0]["content"]


def _greedy_prefix(request: records.Request, total: int) -> list[int] | None:
    """The ids of the text to continue, if the greedy answer to the messages before it begins with
    them; None if it does not."""
    text, text_so_far = _last_text(request), ""
    detokenizer, prefix = Detokenizer(), list[int]()
    for each in itertools.islice(tokens(request.messages[:-1]), total):
        if len(text_so_far) >= len(text):
            break
        prefix.append(each)
        text_so_far += detokenizer.push((each,))
    return prefix if text_so_far == text else None


def _fill(
    slots: Iterable[tuple[int, bytes]], prompt: str, before: Sequence[int], nonce: str
) -> Iterator[int]:
    """Ids for the slots after `before`."""
    h, previous = fold.roll(fold.H0, before), before[-1] if before else None
    rest = itertools.islice(slots, len(before), None)
    for index, (kind, raw) in enumerate(rest, len(before)):
        if raw:
            previous = text_token(kind, raw, prompt, h, index, nonce)
        else:
            previous = token(prompt, h, index, previous, nonce)
            if kind == WORD and previous >> 28 == HALF:
                previous = WORD << 28 | previous & _PAYLOAD
        h = fold.roll(h, (previous,))
        yield previous


def _slots(runs: Iterable[scripted_answers.Run]) -> Iterator[tuple[int, bytes]]:
    """One for each id: its kind and bytes. HALF: any token; WORD: any but half a character."""
    for run in runs:
        if isinstance(run, str):
            kind = MARKER if scripted_markers.is_marker(run) else TEXT
            yield from ((kind, raw) for raw in _pairs(run))
        elif run:
            yield from itertools.repeat((HALF, b""), run - 1)
            yield WORD, b""


def _pairs(text: str) -> Iterator[bytes]:
    """Its bytes by one or two; a character outside ASCII shares no id with another one."""
    for characters in _PAIR.findall(text):
        raw = characters.encode(errors="replace")
        yield raw[:2]
        if raw[2:]:
            yield raw[2:]


def logprobs(ids: Sequence[int], top: int) -> list[records.Lp]:
    """Log probabilities of ids: invented, a function of each id alone. `top`: number of likely
    tokens, of which the id is the first. A marker's token is empty."""
    entries = []
    for each in ids:
        kind, payload = each >> 28, each & _PAYLOAD
        raw, own = b"" if kind == MARKER else token_bytes(each), -(payload % 1000 + 1) / 1000
        words = (token_bytes(WORD << 28 | payload + n & _PAYLOAD) for n in range(1, top))
        likely = [records.likely(word, own - n) for n, word in enumerate(words, 1)]
        entries.append(records.lp(raw, own, [records.likely(raw, own), *likely] if top else ()))
    return entries


def _number(cues: dict[str, Any], name: str, default: float) -> float:
    try:
        return float(cues[name]) if name in cues else default
    except (TypeError, ValueError) as error:
        raise base.Refused("invalid_prompt", f"metadata {name} is not a number") from error


def _samples(cues: dict[str, Any]) -> bool:
    return _is_on(cues, "script_sampling")


def _is_on(cues: dict[str, Any], name: str) -> bool:
    return str(cues.get(name, "")) in ("1", "true")


def create(s: settings.WorkerSettings) -> Scripted:
    """The engine for these settings."""
    engine = Scripted(capacity=s.max_num_seqs, max_model_len=s.max_model_len)
    engine.model_rev = s.script_revision
    engine.first_token_s = s.script_first_token_s
    engine.fail_every = s.script_fail_every
    engine.prefill_s = s.script_prefill_s
    engine.refuses, engine.ends = s.script_refuses, s.script_ends
    engine.set_steps(s.script_steps)
    if s.cache == "prefix":
        engine.hold(s.script_cache_tokens)
    return engine


class Scripted:
    """The engine; see the module's docstring.

    Attributes:
        running: attempts inside the engine.
        attempts: so far.
        first_token_s: how much later the first token comes.
        prefill_s: how long it computes a thousand tokens of prompts, one prompt after another.
        fail_every: every n-th attempt fails for good; 0: none.
        refuses, ends: fields (`engine_fields.TABLE`) that it refuses, and with which it ends.
        _cache: of prompts; None: it has none.
        _step_clock: of its steps; None: each response has a pace of its own.
        _computing: held while a prompt is computed.
        _hangs: a request with `engine_hang` stopped all of them for the rest of the process.
    """

    ids_are_tokens = True
    model_rev = "scripted-1"
    tokenizer_digest = "scripted-1"
    counting_digest = ""
    stop_ids: frozenset[int] = frozenset()
    features = features.ALL
    parsers: tuple[str, ...] = ("scripted",)

    def __init__(self, *, capacity: int, max_model_len: int) -> None:
        self.capacity = capacity
        self.dead = asyncio.Event()
        self.max_model_len = max_model_len
        self._hangs = False
        self.running = 0
        self.first_token_s = 0.0
        self.fail_every = 0
        self.prefill_s = 0.0
        self.refuses: frozenset[str] = frozenset()
        self.ends: frozenset[str] = frozenset()
        self.attempts = 0
        self.cached_blocks: cached_blocks.CachedBlocks | None = None
        self._cache: scripted_cache.PrefixCache | None = None
        self._step_clock: scripted_steps.StepClock | None = None
        self._computing = asyncio.Lock()

    def set_steps(self, durations: Sequence[tuple[int, float]]) -> None:
        """Give all responses a token a step; without durations, each at its own pace."""
        clock = scripted_steps.StepClock(durations, lambda: self.running)
        self._step_clock = clock if durations else None

    def hold(self, tokens: int) -> None:
        """Set the size of the prefix cache in tokens; 0: no cache."""
        self._cache = scripted_cache.PrefixCache(tokens) if tokens else None
        self.cached_blocks = self._cache.blocks if self._cache is not None else None

    async def start(self) -> None:
        self.dead.clear()

    async def shutdown(self) -> None:
        self.dead.set()

    async def encode(self, request: records.Request) -> list[int]:
        answer(request)  # refuses what it cannot write
        _check_images(request)
        text = "\n".join(f"{m['role']}: {m['content']}" for m in plain(request.messages))
        ids = scripted_embeddings.text_ids(text)
        base.check_length(len(ids), self.max_model_len)
        return ids

    async def encode_inputs(self, request: records.Request) -> list[list[int]]:
        assert request.embed is not None
        return scripted_embeddings.encode(request.embed, self.max_model_len)

    async def generate(self, job: base.GenerationInput, on_step: base.OnStep) -> None:
        steps = (
            self._vectors(job)
            if job.inputs
            else self._steps(job, _with_digests(await job.with_files()))
        )
        await base.call_with_each(steps, on_step)

    async def _steps(
        self, job: base.GenerationInput, request: records.Request
    ) -> AsyncGenerator[base.Step, None]:
        cues = base.metadata(job.request)
        pace_s = _number(cues, "script_pace_ms", PACE_MS) / 1000
        top = job.request.sampling.logprobs
        sampling = _samples(cues)
        nonce = job.fencing_token if sampling else ""
        count = 0
        self.attempts += 1
        self._check_fields(job.request)
        if self.fail_every and self.attempts % self.fail_every == 0:
            raise base.Refused("server_error", "scripted failure")
        self.running += 1
        try:
            await asyncio.sleep(self.first_token_s)
            hits = await self._prefill(job)
            for token_id in answer(request, job.output_so_far, nonce):
                pause_s = await self._fault(cues, len(job.output_so_far) + count, pace_s)
                clock = self._step_clock
                await (asyncio.sleep(pause_s) if clock is None else clock.next())
                count += 1
                finish = "length" if count >= job.max_tokens else None
                lp = () if top is None else logprobs((token_id,), top)
                yield base.Step((token_id,), finish, hits, logprobs=lp)
                if count >= job.max_tokens:
                    return
            await self._fault(cues, len(job.output_so_far) + count, pace_s)
            yield base.Step((), "stop", hits)
        finally:
            self.running -= 1

    def _check_fields(self, request: records.Request) -> None:
        """Refuse or end, as the settings say."""
        names = {row.name for row in engine_fields.rows_for(request)}
        if refusals := names & self.refuses:
            raise base.Refused("invalid_prompt", f"scripted refusal of {min(refusals)}")
        if names & self.ends:
            self.dead.set()
            raise base.EngineDead("scripted death")

    def trial_key(self) -> str | None:
        fields = (sorted(self.refuses), sorted(self.ends))
        return f"{self.model_rev} {fields}" if any(fields) else None

    async def _prefill(self, job: base.GenerationInput) -> int:
        """Compute the prompt. Returns how many of its tokens were in the cache."""
        hits, ids = 0, [*job.prompt_ids, *job.output_so_far]
        async with self._computing:
            if self._cache is not None and ids:
                hits = self._cache.use(ids, self.prefix_scope(job.request))
            if self.prefill_s:
                await asyncio.sleep((len(ids) - hits) / 1000 * self.prefill_s)
        return hits

    async def _vectors(self, job: base.GenerationInput) -> AsyncGenerator[base.Step, None]:
        """With the pace and the faults of tokens, by the number of vectors."""
        assert job.request.embed is not None
        cues = base.metadata(job.request)
        pace_s = _number(cues, "script_pace_ms", PACE_MS) / 1000
        self.running += 1
        try:
            for count, ids in enumerate(job.inputs, 1):
                await asyncio.sleep(await self._fault(cues, count - 1, pace_s))
                vector = scripted_embeddings.vector(ids, job.request.embed.dimensions)
                finish = "stop" if count == len(job.inputs) else None
                yield base.Step((), finish, vectors=(vector,))
        finally:
            self.running -= 1

    def detokenizer(self, prefix_ids: Sequence[int] = ()) -> generation.Detokenizer:
        return Detokenizer()  # of any place, the bytes are those of the ids

    async def token_ids(self, text: str) -> list[int]:
        return text_ids(text)

    def repeatable(self, request: records.Request) -> str | None:
        cues = base.metadata(request)
        script = sorted((name, cue) for name, cue in cues.items() if name.startswith("script_"))
        return None if _samples(cues) else repr(script)

    def prefix_scope(self, request: records.Request) -> Sequence[str]:
        return (request.owner.cache_scope,)

    def parser_name(self, request: records.Request) -> str:
        return scripted_markers.PARSER if scripted_answers.has_items(request) else ""

    async def item_parser(
        self, request: records.Request, prompt_ids: Sequence[int]
    ) -> base.ItemParser:
        return scripted_markers.Parser(Detokenizer())

    async def _fault(self, cues: dict[str, Any], index: int, pace_s: float) -> float:
        """The pause before the next token, in seconds, or the fault that the metadata asks for."""
        if self.dead.is_set():
            raise base.EngineDead("scripted death")
        if self._hangs:
            await asyncio.Event().wait()
        fault = cues.get("script_fault")
        if fault is None or index < int(_number(cues, "script_fault_at", 0)):
            return pace_s
        if fault == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "engine_hang":
            self._hangs = True
        if fault in ("hang", "engine_hang"):
            await asyncio.Event().wait()
        if fault == "error":
            raise base.Transient("scripted error")
        if fault == "engine_death":
            self.dead.set()
            raise base.EngineDead("scripted death")
        return SLOW_MS / 1000
