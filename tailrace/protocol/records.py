"""Records of the log: JSON by msgspec, tagged by `t`, versioned by `v` (pure).

JSON, so that Flink SQL, kcat and any console can read them. Field names are short, because they are
in every record. A record that does not parse, or has an unknown type or version, is *garbage*: the
`decode` functions return None for it and never raise, because one bad record must not stall a
partition (log rule §4). A record has version 2 exactly if it uses a member of version 2
(`version_of`), so other records keep the bytes that old readers know.

`own` in a record is the writer's fencing token: a random text, new for each claim.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec

from tailrace.protocol import files, images

VERSION: Final = 1
VERSION_2: Final = 2
MAX_RECORD_BYTES: Final = 1 << 20
CHARACTERS_PER_TOKEN: Final = 4  # by estimate
MAX_DEPTH: Final = 64  # nesting of arrays and objects in one record; a Response object needs five

# Exact in every JSON reader, also in JavaScript. A client could not read a larger number.
Count = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
RevocationId = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{16}\Z")]
TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
Hex = Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{2})*\Z")]
Failure = Literal["", "expired", "history_lost"]  # why a CANCEL ends a response as failed
MarkKind = Literal["m", "r", "c", "x"]  # message, reasoning, function call, call of a custom tool


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Token counts of one response. `output_tokens` is END.seq for engines that give ids, without
    those that were copied, which count as input (log rule §19);
    `cached_tokens` were served from the prefix cache; `reasoning_tokens` are those of the output
    that belong to reasoning items."""

    input_tokens: Count = 0
    output_tokens: Count = 0
    cached_tokens: Count = 0
    reasoning_tokens: Count = 0


class Owner(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who owns a response: the principal's identity, without scopes and expiry."""

    issuer: str
    subject: str
    tenant: str = ""

    @property
    def key(self) -> str:
        """Stable text for maps and record keys: `issuer|tenant|subject`. Never a metric label."""
        return f"{self.issuer}|{self.tenant}|{self.subject}"

    @property
    def cache_scope(self) -> str:
        """Who may share cached prompts: one tenant of one issuer, or one subject without a tenant.

        A digest of an array, so that no two scopes have one text, whatever names contain.
        """
        scope = ["tenant", self.issuer, self.tenant]
        if not self.tenant:
            scope = ["subject", self.issuer, self.subject]
        return hashlib.blake2b(msgspec.json.encode(scope), digest_size=16).hexdigest()


class Sampling(msgspec.Struct, frozen=True, omit_defaults=True):
    """Sampling parameters, checked by the gateway. `max_tokens` counts the output tokens of the
    whole response. Those from `logprobs` on belong to version 2. `logprobs`: each token has its log
    probability and those of this number of likely ones; None: no log probabilities. `top_k` 0: no
    bound."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    stop: tuple[str, ...] = ()
    seed: int | None = None
    logit_bias: dict[str, float] = {}
    logprobs: Count | None = None
    top_k: Count = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    min_tokens: Count = 0
    ignore_eos: bool = False

    @property
    def version(self) -> int:
        """The record version that has all members which are used."""
        later = (
            self.top_k,
            self.min_p,
            self.repetition_penalty,
            self.min_tokens,
            self.ignore_eos,
        )
        plain = self.logprobs is None and later == (0, 0.0, 1.0, 0, False)
        return VERSION if plain else VERSION_2


class ToolChoice(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which tools the model may or must call. `names`: only these; empty: all. A function that must
    be called is `required` with its name."""

    mode: Literal["auto", "none", "required"] = "auto"
    names: tuple[str, ...] = ()


class Embed(msgspec.Struct, frozen=True, omit_defaults=True):
    """Inputs to be embedded, each a text or token ids. `dimensions`: None for all that the model
    has. `first`: the number that the first one has in the client's list, of which this may be a
    part. `truncate`: of an input that is too long for the model, embed the beginning."""

    inputs: list[str | list[TokenId]]
    dimensions: Count | None = None
    first: Count = 0
    truncate: bool = False

    @property
    def characters(self) -> int:
        """Length of all inputs, for estimates. A token counts as four characters."""
        return sum(
            len(each) if isinstance(each, str) else CHARACTERS_PER_TOKEN * len(each)
            for each in self.inputs
        )


class Choice(msgspec.Struct, array_like=True, frozen=True):
    """Which choice of a chat completion a response is: number `index` of `count`, from 0. `group`
    is random text that all choices of one completion share."""

    group: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    index: Count = 0
    count: Count = 1


class ForkSource(msgspec.Struct, frozen=True):
    """The first `at` ids of a fork's source, and what they were generated with."""

    model_rev: str
    tokenizer_digest: str
    ids: list[TokenId]


class Fork(msgspec.Struct, frozen=True, omit_defaults=True):
    """A response begins with the first `at` ids of the response `rid`, and with the ids of the text
    `replace` after them (log rule §19). `source`: if `llm.tokens` may have lost them; None: it has
    them."""

    rid: str
    at: Count
    replace: str = ""
    source: ForkSource | None = None


class Request(msgspec.Struct, tag_field="t", tag="REQUEST", frozen=True, omit_defaults=True):
    """What to generate; on `llm.requests.<pool>.<class>[p]`, key = rid.

    `messages` is the whole context (chat messages, instructions first), so that a lost session can
    be rebuilt from this record and the answer. `echo` is the static part of the public Response
    object. The first CLAIM holds a copy of it, so that `llm.tokens` can be read alone. `input` is
    this turn's items as the client gave them. With `generate` false the response is a warm-up: it
    ends at once and has no output. `body_digest` is the digest of the client's body, present only
    with an idempotency key; records of version 0.1 have none.

    `choice` is that of a chat completion. `conversation` is the id of this turn's conversation.
    Lists need them, and older readers miss nothing without them. With `cached_answers` false it is
    neither answered by a former answer nor kept as one (log rule §24); older workers do neither.

    `append_by` is a time of the broker in ms, 0 for none. A record that the broker appended later
    does not count: its client got the answer that the request failed (log rule §10).

    The members from `tools` on belong to version 2, and so do messages with calls of tools, with
    their outputs or with images (`tailrace.protocol.images`). `tools` are those that the prompt
    shows, as chat templates take them: `{"type":"function","function":{"name","description",
    "parameters","strict"}}`, or `{"type":"custom","custom":{"name","description","format"}}`.
    `format` has a `type`: `json_schema` (and `schema`, `strict`), `json_object`, `regex`
    (`pattern`), `choice` (`choices`) or `grammar` (`definition`); None: text. `reasoning` is what
    the client requested: `effort`, `summary`. With `raw` the prompt is the text of the only message
    as it is: no chat template is applied, and the answer is plain text. With `embed` nothing is
    generated: the inputs become vectors (log rule §17), and there are no messages. With `fork` the
    answer begins with tokens of another one, to whose prompt it is an answer too; `max_tokens`
    counts what follows them. With `truncate` the worker leaves older messages out where the prompt
    is too long (log rule §21). With `continue_final` the last message is an assistant's, and the
    answer continues its text: the prompt leaves that message open (log rule §23).
    """

    rid: str
    owner: Owner
    model: str
    messages: list[dict[str, Any]]
    sampling: Sampling
    echo: dict[str, Any]
    input: list[dict[str, Any]] = []
    previous: str | None = None
    store: bool = True
    generate: bool = True
    ttl_ms: int = 600_000
    idempotency_key: str | None = None
    prefix: list[str] = []
    body_digest: str | None = None
    append_by: Count = 0
    choice: Choice | None = None
    conversation: str | None = None
    cached_answers: bool = True
    tools: list[dict[str, Any]] = []
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool = True
    max_tool_calls: Count | None = None
    format: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    raw: bool = False
    embed: Embed | None = None
    fork: Fork | None = None
    truncate: bool = False
    continue_final: bool = False
    v: int = VERSION

    @property
    def prompt_digest(self) -> str:
        """Digest of the prompt, for audit records and dead letters, which must not hold it."""
        prompt = self.messages if self.embed is None else self.embed.inputs
        return prompt_digest(prompt)

    @property
    def version(self) -> int:
        """The record version that has all members which are used."""
        plain = (
            not self.tools
            and self.tool_choice == ToolChoice()
            and self.parallel_tool_calls
            and self.max_tool_calls is None
            and self.format is None
            and self.reasoning is None
            and not self.raw
            and self.embed is None
            and self.fork is None
            and not self.truncate
            and not self.continue_final
            and not images.any_in(self.messages)
            and not any("tool_calls" in m or m.get("role") == "tool" for m in self.messages)
        )
        return self.sampling.version if plain else VERSION_2

    def late(self, timestamp: int) -> bool:
        """Whether a record with this broker time came too late, and does not count."""
        return 0 < self.append_by < timestamp


class Reroute(msgspec.Struct, tag_field="t", tag="REROUTE", frozen=True, omit_defaults=True):
    """On the request topic of another pool, in the same partition, key = rid: its workers may
    answer `request` too, which is in the log already (log rule §22). `asked_ms`: broker time of the
    request's own record; 0 where its gateway does not know it. `continues`: also after tokens of
    another model, whose text they continue (log rule §25)."""

    rid: str
    request: Request
    asked_ms: Count = 0
    continues: bool = False
    v: int = VERSION

    @property
    def version(self) -> int:
        """The record version that has all members which are used."""
        return VERSION_2 if self.continues else VERSION


class Claim(msgspec.Struct, tag_field="t", tag="CLAIM", frozen=True, omit_defaults=True):
    """A worker with fencing token `own` takes the response over from `prev` (null: no owner yet).

    `worker` names one process incarnation. `prompt_tokens` is for the usage of a cancelled
    response. `copied` of them are the ids that the response begins with (log rule §19). `dropped`
    messages were left out of the prompt (log rule §21); only a first claim has it. `parser` is
    equal if the same ids make the same text and marks: names of parsers
    and the version of what runs them; empty for a plain response (log rule §16). `served` is the
    public name of the worker's model if it is not the requested one (log rule §22).
    `answer_of` is the response whose ids it writes instead of generating any (log rule §24).
    `continues`: another model made the tokens before it, and it continues their text (log rule
    §25).
    `hedged`: `prev` lives and is late with its first token (log rule §26).
    """

    rid: str
    own: str
    prev: str | None
    owner: Owner
    worker: str
    req_topic: str
    req_offset: Count
    model_rev: str
    tokenizer_digest: str
    prompt_tokens: Count = 0
    echo: dict[str, Any] = {}
    parser: str = ""
    copied: Count = 0
    dropped: Count = 0
    served: str = ""
    answer_of: str = ""
    continues: bool = False
    hedged: bool = False
    v: int = VERSION

    @property
    def version(self) -> int:
        """The record version that has all members which are used."""
        later = self.parser or self.copied or self.dropped or self.served
        later = later or self.answer_of or self.continues
        return VERSION_2 if later else VERSION


class Mark(msgspec.Struct, array_like=True, frozen=True):
    """Where in a record's text an item begins (log rule §16).

    `at` characters and `ids` ids of the record come before it. `kind`: m message, r reasoning, c
    function call, x call of a custom tool; only calls have `name` and `call_id`.
    """

    at: Count
    ids: Count
    kind: MarkKind
    name: str = ""
    call_id: str = ""


class Likely(msgspec.Struct, array_like=True, frozen=True):
    """A token that was likely, and its log probability. `raw`: the token's bytes in hexadecimal
    where they are not the UTF-8 of `token`, else empty."""

    token: str
    logprob: float
    raw: Hex = ""


class Lp(msgspec.Struct, array_like=True, frozen=True):
    """The log probability of one id of a frame, and the likely tokens at its place. A token without
    text is empty."""

    token: str
    logprob: float
    top: tuple[Likely, ...] = ()
    raw: Hex = ""


LEAST_LOGPROB: Final = -9999.0  # what OpenAI's API says for one that is too small; JSON has no -inf


def likely(token: bytes, logprob: float) -> Likely:
    """One likely token, by its bytes."""
    text = token.decode(errors="replace")
    raw = "" if text.encode() == token else token.hex()
    return Likely(text, max(round(logprob, 6), LEAST_LOGPROB), raw)


def lp(token: bytes, logprob: float, top: Iterable[Likely] = ()) -> Lp:
    """The entry of one id, by its token's bytes."""
    own = likely(token, logprob)
    return Lp(own.token, own.logprob, tuple(top), own.raw)


class Tok(msgspec.Struct, tag_field="t", tag="TOK", frozen=True, omit_defaults=True):
    """One frame. `ids[0]` is token number `seq`; `parent` is the rolling hash before it. `ts` is
    the worker's send time in ms, for measurements only. `marks` say where items begin; `lp` has one
    entry per id, or none if the client did not request them."""

    rid: str
    own: str
    seq: Count
    ids: Annotated[list[TokenId], msgspec.Meta(min_length=1)]
    text: str
    parent: str
    ts: float = 0.0
    marks: tuple[Mark, ...] = ()
    lp: tuple[Lp, ...] = ()
    v: int = VERSION

    @property
    def version(self) -> int:
        """The record version that has all members which are used."""
        return VERSION_2 if self.marks or self.lp else VERSION


class End(msgspec.Struct, tag_field="t", tag="END", frozen=True, omit_defaults=True):
    """The end, written once. `reason` is stop, length, expired, failed or warmup. `error` is (code,
    message) for failed; `param`: the request's field at fault, if the worker knows it. `marks` are
    those in `text_tail`. `vectors`: one for each input that was to be embedded, as 32-bit floats,
    little-endian (in JSON as base64)."""

    rid: str
    own: str
    seq: Count
    reason: str
    digest: str
    text_tail: str = ""
    usage: Usage = Usage()
    error: tuple[str, str] | None = None
    marks: tuple[Mark, ...] = ()
    vectors: tuple[bytes, ...] = ()
    param: str = ""
    v: int = VERSION

    @property
    def version(self) -> int:
        """The record version that has all members which are used. Readers of version 1 can do
        without `param`."""
        return VERSION_2 if self.marks or self.vectors else VERSION


class Cancel(msgspec.Struct, tag_field="t", tag="CANCEL", frozen=True, omit_defaults=True):
    """The response's owner `by` cancels it. With `echo`, a response that was cancelled before any
    CLAIM can be read from `llm.tokens` alone.

    `withdrawn`: the gateway cancels a request that it has confirmed to no client. Its idempotency
    key is free for the next request (log rule §10).

    `failed`: a service ends it for its owner, as failed (log rule R5). "expired": no worker has
    claimed it in time. "history_lost": the log has lost its beginning, and its owner is gone.
    """

    rid: str
    by: Owner
    echo: dict[str, Any] = {}
    withdrawn: bool = False
    failed: Failure = ""
    v: int = VERSION

    @property
    def version(self) -> int:
        """The record version that has all members which are used."""
        return VERSION_2 if self.failed else VERSION


class Yield(msgspec.Struct, tag_field="t", tag="YIELD", frozen=True, omit_defaults=True):
    """A draining worker asks to be taken over now. It does not change the owner."""

    rid: str
    own: str
    seq: Count
    v: int = VERSION


class Deleted(msgspec.Struct, tag_field="t", tag="DELETED", frozen=True, omit_defaults=True):
    """On `llm.deletions`, key = rid: the owner deleted the response. Reads answer 404 from now
    on."""

    rid: str
    by: Owner
    v: int = VERSION


class Metadata(msgspec.Struct, tag_field="t", tag="METADATA", frozen=True, omit_defaults=True):
    """On `llm.history`, key = `<rid>:metadata`: the owner `by` gave the response other metadata,
    all of it."""

    rid: str
    by: Owner
    metadata: dict[str, str] = {}
    v: int = VERSION


class Revoked(msgspec.Struct, tag_field="t", tag="REVOKED", frozen=True, omit_defaults=True):
    """On `llm.revocations`, key = `id`: credentials that are refused from now on.

    They are those of `issuer` that carry each of `subject`, `tenant` and `credential` (the claim
    `jti`) which is given here, and were issued at `issued_until` (seconds since the epoch) or
    before. A record that gives none of the three is garbage. `lifted` takes it back. `by` is the
    key of the principal who asked for it, or empty for an operator at the log.
    """

    id: RevocationId
    issuer: Name
    issued_until: Count
    subject: Name | None = None
    tenant: Name | None = None
    credential: Name | None = None
    by: str = ""
    lifted: bool = False
    v: int = VERSION


class Upload(msgspec.Struct, tag_field="t", tag="UPLOAD", frozen=True, omit_defaults=True):
    """On `llm.uploads`, key = `id`: a file that its owner may name in requests until `expires`
    (seconds since the epoch, as `created`).

    `file` says where its chunks are. `media` is what the file itself says; an image has its size in
    pixels. `deleted` takes the name back; the chunks go with the retention of `llm.files`.
    """

    id: Name
    owner: Owner
    sha256: str
    file: files.Place
    filename: str
    purpose: str
    media: str
    created: Count
    expires: Count
    width: Count = 0
    height: Count = 0
    deleted: bool = False
    v: int = VERSION


class Incarnation(
    msgspec.Struct, tag_field="t", tag="INCARNATION", frozen=True, omit_defaults=True
):
    """On `llm.meta`, key `incarnation`: which log this is. Written once, when `llm.tokens` is
    created."""

    id: str
    v: int = VERSION


class UsageRecord(msgspec.Struct, tag_field="t", tag="USAGE", frozen=True, omit_defaults=True):
    """On `llm.usage`, key = owner: one finished response. It is billed once per rid. `answer_of`:
    the response whose answer was given again (log rule §24); empty: this one was generated.
    `cost_nano`: in billionths of the currency that prices are written in, by the prices when this
    was written; None: there is no price. Not a function of the log, so copies may differ in it.
    `first_token_ms`: from the request to the first frame with generated ids, by the broker times of
    both records. `inter_token_ms`: mean time between two tokens, from that frame to the last one.
    None: no such time is known (log rule §27)."""

    rid: str
    owner: Owner
    model: str
    model_rev: str
    status: str
    usage: Usage
    claims: int
    worker: str
    ts: int
    prompt_digest: str = ""
    ids_digest: str = ""
    answer_of: str = ""
    cost_nano: int | None = None
    first_token_ms: int | None = None
    inter_token_ms: float | None = None
    v: int = VERSION


class DeadLetter(msgspec.Struct, tag_field="t", tag="DEAD", frozen=True, omit_defaults=True):
    """On `llm.dlq`, key = rid: a response whose attempts all failed. Without its prompt."""

    rid: str
    owner: Owner
    model: str
    reason: str
    attempts: int
    req_topic: str
    req_offset: int
    prompt_digest: str
    v: int = VERSION


TokenRecord = Claim | Tok | End | Cancel | Yield
Record = (
    Request
    | Reroute
    | TokenRecord
    | Deleted
    | Metadata
    | Revoked
    | Upload
    | Incarnation
    | UsageRecord
    | DeadLetter
)

T = TypeVar(
    "T", bound=Request | Reroute | TokenRecord | Deleted | Metadata | Revoked | Upload | Incarnation
)

_encoder = msgspec.json.Encoder()
_tokens = msgspec.json.Decoder(TokenRecord)
_requests = msgspec.json.Decoder(Request)
_reroutes = msgspec.json.Decoder(Reroute)
_deletions = msgspec.json.Decoder(Deleted)
_changes = msgspec.json.Decoder(Metadata)
_revocations = msgspec.json.Decoder(Revoked)
_uploads = msgspec.json.Decoder(Upload)
_meta = msgspec.json.Decoder(Incarnation)


_IN_TWO_VERSIONS: Final = (
    Tok,
    Claim,
    End,
    Cancel,
    Request,
    Reroute,
)  # not a union, which is slow to test


def version_of(record: Record) -> int:
    """The version that the members which a record uses belong to (log rule §2)."""
    return record.version if isinstance(record, _IN_TWO_VERSIONS) else VERSION


def encode(record: Record) -> bytes:
    """The record's bytes. It gets the version that it must have."""
    version = version_of(record)
    if record.v != version:
        record = msgspec.structs.replace(record, v=version)
    return _encoder.encode(record)


def _decode(
    decoder: msgspec.json.Decoder[T], value: bytes | None, depth: int = MAX_DEPTH
) -> T | None:
    if value is None:
        return None
    if too_deep(value, depth):
        return None
    try:
        record = decoder.decode(value)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    return record if record.v == version_of(record) else None


_ESCAPED = re.compile(rb"\\.", re.DOTALL)
_STRING = re.compile(rb'"[^"]*"')
_ONE_KIND = bytes.maketrans(b"{}", b"[]")
_ALL_BUT_BRACKETS_AND_QUOTES = bytes(set(range(256)) - set(b'[]{}"'))


def too_deep(value: bytes, depth: int = MAX_DEPTH) -> bool:
    """Whether arrays and objects are nested deeper than `depth`. For invalid JSON, either answer.

    The parser's limit depends on the depth of the caller's stack, so two readers could disagree on
    whether a record is garbage.
    """
    # True for nearly every record. A frame with log probabilities has thousands of brackets.
    if value.count(b"[") + value.count(b"{") <= depth:
        return False
    if b"\\" in value:
        value = _ESCAPED.sub(b"", value)  # an escaped quote ends no string
    brackets = value.translate(_ONE_KIND, _ALL_BUT_BRACKETS_AND_QUOTES)
    brackets = _STRING.sub(b"", brackets.replace(b'""', b""))  # without the content of strings
    for _ in range(depth):
        if not brackets:
            return False
        brackets = brackets.replace(b"[]", b"")  # the innermost level
    return bool(brackets)


def decode_token(value: bytes | None) -> TokenRecord | None:
    """A record of `llm.tokens`, or None for garbage."""
    return _decode(_tokens, value)


def token_of(key: bytes | None, value: bytes | None) -> TokenRecord | None:
    """Like `decode_token`, but also None if the key names another response: readers that check
    keys and readers that do not must agree."""
    record = decode_token(value)
    return record if record is not None and key == record.rid.encode() else None


def decode_request(value: bytes | None) -> Request | None:
    """A record of a request topic, or None for garbage."""
    return _decode(_requests, value)


def decode_deletion(value: bytes | None) -> Deleted | None:
    """A record of `llm.deletions`, or None for garbage."""
    return _decode(_deletions, value)


def metadata_of(value: bytes | None) -> Metadata | None:
    """A record of metadata of `llm.history`, or None for garbage."""
    return _decode(_changes, value)


def revocation_of(key: bytes | None, value: bytes | None) -> Revoked | None:
    """A record of `llm.revocations`, or None for garbage and where the key is not its id."""
    record = _decode(_revocations, value)
    if record is None or key != record.id.encode():
        return None
    if record.subject is None and record.tenant is None and record.credential is None:
        return None  # it would refuse every credential
    return record


def upload_of(key: bytes | None, value: bytes | None) -> Upload | None:
    """A record of `llm.uploads`, or None for garbage and where the key is not its id."""
    record = _decode(_uploads, value)
    if record is None or key != record.id.encode() or not record.file.valid:
        return None
    return record


def deletion_of(key: bytes | None, value: bytes | None) -> Deleted | None:
    """Like `decode_deletion`, but also None where the key names another response."""
    record = decode_deletion(value)
    return record if record is not None and key == record.rid.encode() else None


def request_of(key: bytes | None, value: bytes | None) -> Request | None:
    """Like `decode_request`, but also None where the key names another response."""
    record = decode_request(value)
    return record if record is not None and key == record.rid.encode() else None


def reroute_of(key: bytes | None, value: bytes | None) -> Reroute | None:
    """A reroute, or None for every other record of a request topic, for garbage, and where the key
    names another response."""
    record = _decode(_reroutes, value, MAX_DEPTH + 1)  # its request is one level deeper
    if record is None or key != record.rid.encode():
        return None
    request = record.request
    return record if request.rid == record.rid and request.v == request.version else None


def decode_meta(value: bytes | None) -> Incarnation | None:
    """The incarnation record of `llm.meta`, or None for garbage."""
    return _decode(_meta, value)


def prompt_digest(messages: Sequence[Any]) -> str:
    """Digest of a prompt: messages, or inputs to be embedded."""
    return hashlib.blake2b(
        msgspec.json.encode(messages, order="sorted"), digest_size=16
    ).hexdigest()
