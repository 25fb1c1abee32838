"""Records: what is written is read back, and garbage is None for every reader alike, never an
exception."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.protocol import records
from tests.support import cases

OWNER = records.Owner("https://issuer", "alice", "acme")
REQUEST = records.Request(
    "resp_a",
    OWNER,
    "m",
    [{"role": "user", "content": "hi"}],
    records.Sampling(max_tokens=5),
    {"id": "resp_a"},
)
CLAIM = records.Claim(
    "resp_a",
    "n1",
    None,
    OWNER,
    "w1",
    "llm.requests.default.interactive",
    7,
    "rev",
    "tok",
    12,
    {"id": "resp_a"},
)
TOK = records.Tok("resp_a", "n1", 0, [1, 2], "hé\u2028\U0001f600", "0" * 16, 1.5)
END = records.End("resp_a", "n1", 2, "stop", "ab", "tail", records.Usage(1, 2, 3))
FAILED = records.End("resp_a", "n1", 0, "failed", "ab", error=("server_error", "The engine died."))
CANCEL = records.Cancel("resp_a", OWNER, {"id": "resp_a"})
YIELD = records.Yield("resp_a", "n1", 2)
DELETED = records.Deleted("resp_a", OWNER)
INCARNATION = records.Incarnation("abc")

Decode = Callable[[bytes | None], Any]
DECODERS: dict[str, Decode] = {
    "token": records.decode_token,
    "request": records.decode_request,
    "deletion": records.decode_deletion,
    "meta": records.decode_meta,
}


@cases.each(
    ("decode", "record"),
    [(records.decode_token, r) for r in (CLAIM, TOK, END, FAILED, CANCEL, YIELD)]
    + [(records.decode_request, REQUEST)]
    + [(records.decode_deletion, DELETED)]
    + [(records.decode_meta, INCARNATION)],
    ids=lambda x: type(x).__name__ if isinstance(x, msgspec.Struct) else "",
)
def test_a_record_comes_back_as_it_was_written(decode: Decode, record: records.Record) -> None:
    assert decode(records.encode(record)) == record


text = st.text(alphabet=st.characters(exclude_categories=["Cs"]))
counts = st.integers(0, 2**53 - 1)
owners = st.builds(records.Owner, text, text, text)
marks = st.lists(
    st.builds(records.Mark, counts, counts, st.sampled_from(["m", "r", "c", "x"]), text, text),
    max_size=3,
).map(tuple)
logprobs = st.floats(-1e6, 0)
likely = st.builds(records.likely, st.binary(max_size=4), logprobs)
lps = st.lists(
    st.builds(records.lp, st.binary(max_size=4), logprobs, st.lists(likely, max_size=2)),
    max_size=3,
).map(tuple)
token_records = st.one_of(
    st.builds(
        records.Claim,
        text,
        text,
        st.none() | text,
        owners,
        text,
        text,
        counts,
        text,
        text,
        counts,
        st.dictionaries(text, text),
        text,
    ),
    st.builds(
        records.Tok,
        text,
        text,
        counts,
        st.lists(st.integers(0, 2**32 - 1), min_size=1),
        text,
        text,
        st.floats(0, 1e13),
        marks,
        lps,
    ),
    st.builds(
        records.End,
        *(text, text, counts, text, text, text),
        st.builds(records.Usage, counts, counts, counts),
        st.none() | st.tuples(text, text),
        marks,
    ),
    st.builds(records.Cancel, text, owners, st.dictionaries(text, text)),
    st.builds(records.Yield, text, text, counts),
)


@given(token_records)
def test_any_token_record_comes_back_as_it_was_written(record: records.TokenRecord) -> None:
    value = records.encode(record)
    version = records.version_of(record)
    assert records.decode_token(value) == msgspec.structs.replace(record, v=version)
    assert (
        json.loads(value)["rid"] == record.rid
    )  # any JSON reader can read it: Flink SQL, kcat, a console


def test_the_record_names_on_the_wire_are_frozen() -> None:
    """Recorded logs of years ago must still be readable."""
    assert json.loads(records.encode(CLAIM)) == {
        "t": "CLAIM",
        "rid": "resp_a",
        "own": "n1",
        "prev": None,
        "owner": {"issuer": "https://issuer", "subject": "alice", "tenant": "acme"},
        "worker": "w1",
        "req_topic": "llm.requests.default.interactive",
        "req_offset": 7,
        "model_rev": "rev",
        "tokenizer_digest": "tok",
        "prompt_tokens": 12,
        "echo": {"id": "resp_a"},
    }
    assert json.loads(records.encode(TOK)) == {
        "t": "TOK",
        "rid": "resp_a",
        "own": "n1",
        "seq": 0,
        "ids": [1, 2],
        "text": TOK.text,
        "parent": "0" * 16,
        "ts": 1.5,
    }
    assert json.loads(records.encode(END))["usage"] == {
        "input_tokens": 1,
        "output_tokens": 2,
        "cached_tokens": 3,
    }
    assert json.loads(records.encode(YIELD)) == {
        "t": "YIELD",
        "rid": "resp_a",
        "own": "n1",
        "seq": 2,
    }
    assert json.loads(records.encode(CANCEL))["t"] == "CANCEL"


def altered(record: records.Record, **fields: Any) -> bytes:
    value = json.loads(records.encode(record))
    value.update(fields)
    return json.dumps({k: v for k, v in value.items() if v is not ...}).encode()


def test_fields_of_a_later_writer_are_tolerated() -> None:
    assert records.decode_token(altered(TOK, shiny={"a": [1, None, "x"]})) == TOK
    assert records.decode_request(altered(REQUEST, shiny=1)) == REQUEST


@cases.each("version", [0, 2, 99, -1, "1", None, 1.0, True, [1]])
def test_another_version_is_garbage_to_this_reader(version: object) -> None:
    assert records.decode_token(altered(TOK, v=version)) is None
    assert records.decode_request(altered(REQUEST, v=version)) is None
    assert records.decode_deletion(altered(DELETED, v=version)) is None
    assert records.decode_meta(altered(INCARNATION, v=version)) is None


MARK = records.Mark(1, 0, "c", "f", "call_x")
LP = records.lp(b"x", -0.5)
# One record for each member of version 2, with the members of version 2 that it has.
USES_VERSION_2: list[tuple[Decode, records.Record, tuple[str, ...]]] = [
    *(
        (records.decode_token, msgspec.structs.replace(TOK, **fields), tuple(fields))
        for fields in ({"marks": (MARK,)}, {"lp": (LP, LP)}, {"marks": (MARK,), "lp": (LP, LP)})
    ),
    (records.decode_token, msgspec.structs.replace(END, marks=(MARK,)), ("marks",)),
    (records.decode_token, msgspec.structs.replace(END, vectors=(b"\0" * 8,)), ("vectors",)),
    (records.decode_token, msgspec.structs.replace(CLAIM, parser="p"), ("parser",)),
    (records.decode_token, msgspec.structs.replace(CLAIM, copied=3), ("copied",)),
    (records.decode_token, msgspec.structs.replace(CLAIM, dropped=3), ("dropped",)),
    (records.decode_token, msgspec.structs.replace(CLAIM, served="m"), ("served",)),
    (records.decode_token, msgspec.structs.replace(CLAIM, answer_of="resp_x"), ("answer_of",)),
    *(
        (records.decode_request, msgspec.structs.replace(REQUEST, **fields), tuple(fields))
        for fields in (
            {"tools": [{"type": "function"}]},
            {"tool_choice": records.ToolChoice("none")},
            {"parallel_tool_calls": False},
            {"max_tool_calls": 0},
            {"format": {"type": "json_object"}},
            {"reasoning": {"effort": "low"}},
            {"raw": True},
            {"embed": records.Embed(["a", "b"])},
            {"embed": records.Embed([[1, 2]], 8, 32)},
            {"embed": records.Embed(["a"], truncate=True)},
            {"fork": records.Fork("resp_x", 0)},
            {"truncate": True},
            {"continue_final": True},
        )
    ),
    *(
        (
            records.decode_request,
            msgspec.structs.replace(REQUEST, sampling=records.Sampling(5, **fields)),
            ("sampling",),
        )
        for fields in (
            {"logprobs": 0},
            {"top_k": 1},
            {"min_p": 0.1},
            {"repetition_penalty": 1.1},
            {"min_tokens": 1},
            {"ignore_eos": True},
        )
    ),
]
uses_version_2 = pytest.mark.parametrize(("decode", "record", "members"), USES_VERSION_2)


@uses_version_2
def test_a_record_is_of_version_2_exactly_if_it_uses_a_member_of_it(
    decode: Decode, record: records.Record, members: tuple[str, ...]
) -> None:
    value = json.loads(records.encode(record))
    assert value["v"] == 2
    assert decode(json.dumps(value).encode()) == msgspec.structs.replace(record, v=2)
    as_version_1 = {k: v for k, v in value.items() if k != "v"}
    assert decode(json.dumps(as_version_1).encode()) is None
    for version in (1, 3):
        assert decode(json.dumps({**value, "v": version}).encode()) is None
    without = {k: v for k, v in value.items() if k not in members}
    if "sampling" in members:
        without["sampling"] = {"max_tokens": 5}
    assert decode(json.dumps(without).encode()) is None
    assert decode(json.dumps({k: v for k, v in without.items() if k != "v"}).encode()) is not None


def test_every_member_of_version_2_has_its_test() -> None:
    """What `version_of` looks at is what the members behind those of version 1 are."""
    tested = {name for *_, members in USES_VERSION_2 for name in members} - {"sampling"}
    of_claims = {"parser", "copied", "dropped", "served", "answer_of"}
    known = {"marks", "lp", "vectors", *of_claims} | set(
        records.Request.__struct_fields__[records.Request.__struct_fields__.index("tools") : -1]
    )
    assert tested == known
    sampling = records.Sampling.__struct_fields__
    assert len(sampling) - sampling.index("logprobs") == 6


@cases.each(
    "fields",
    [
        {"marks": [[0, 0, "z", "", ""]]},
        {"marks": [[-1, 0, "m", "", ""]]},
        {"marks": [[0, -1, "m", "", ""]]},
        {"marks": [[0, 0]]},
        {"marks": [["0", 0, "m"]]},
        {"marks": [{"at": 0, "ids": 0, "kind": "m"}]},
        {"marks": None},
        {"lp": [["x", None, [], ""]]},
        {"lp": [["x", -1.0, [], "0"]]},
        {"lp": [["x", -1.0, [], "zz"]]},
        {"lp": [["x", -1.0, [["y", None]], ""]]},
        {"lp": [[None, -1.0]]},
        {"lp": 0},
    ],
    ids=str,
)
def test_marks_and_log_probabilities_of_the_wrong_shape_are_garbage(fields: dict[str, Any]) -> None:
    """A reader that accepted them could fail at them later."""
    assert records.decode_token(altered(TOK, v=2, **fields)) is None


@cases.each("vectors", [["?"], ["AAAA", 1], "AAAA", [None], [["AAAA"]]], ids=str)
def test_vectors_of_the_wrong_shape_are_garbage(vectors: Any) -> None:
    assert records.decode_token(altered(END, v=2, vectors=["AAAA"])) is not None
    assert records.decode_token(altered(END, v=2, vectors=vectors)) is None


@cases.each(
    "embed",
    [{}, {"inputs": "a"}, {"inputs": [1]}, {"inputs": [[-1]]}, {"inputs": [["a"]]}],
    ids=str,
)
def test_inputs_of_the_wrong_shape_are_garbage(embed: Any) -> None:
    assert records.decode_request(altered(REQUEST, v=2, embed={"inputs": ["a", [1]]})) is not None
    assert records.decode_request(altered(REQUEST, v=2, embed=embed)) is None


def test_a_prompt_that_is_embedded_has_its_own_digest() -> None:
    one, other = (
        msgspec.structs.replace(REQUEST, messages=[], embed=records.Embed([text]))
        for text in ("a", "b")
    )
    assert len({one.prompt_digest, other.prompt_digest, REQUEST.prompt_digest}) == 3
    assert REQUEST.prompt_digest == records.prompt_digest(REQUEST.messages)


@cases.each("name", ["tok", "TOKEN", "", None, 1, ["TOK"], {}, ...])
def test_an_unknown_type_is_garbage(name: object) -> None:
    assert records.decode_token(altered(TOK, t=name)) is None


def test_a_record_of_another_topic_is_garbage() -> None:
    assert records.decode_token(records.encode(REQUEST)) is None
    assert records.decode_request(records.encode(CLAIM)) is None
    assert records.decode_deletion(records.encode(INCARNATION)) is None
    assert records.decode_meta(records.encode(DELETED)) is None


@cases.each(
    "fields",
    [
        {"rid": ...},
        {"rid": None},
        {"own": 5},
        {"seq": -1},
        {"seq": 2**53},
        {"seq": 10**400},
        {"seq": "0"},
        {"seq": 0.0},
        {"seq": True},
        {"ids": []},
        {"ids": None},
        {"ids": [-1]},
        {"ids": [2**32]},
        {"ids": [10**400]},
        {"ids": ["1"]},
        {"ids": [True]},
        {"ids": [[1]]},
        {"text": None},
        {"text": ["x"]},
        {"parent": None},
    ],
    ids=str,
)
def test_a_frame_of_the_wrong_shape_is_garbage(fields: dict[str, Any]) -> None:
    assert records.decode_token(altered(TOK, **fields)) is None


@cases.each(
    ("record", "fields"),
    [
        (
            CLAIM,
            {"prev": ...},
        ),  # null must be said: a claim that merely lacks the field is not a first claim
        (CLAIM, {"prev": 0}),
        (CLAIM, {"owner": None}),
        (CLAIM, {"owner": {"issuer": "i"}}),
        (CLAIM, {"echo": []}),
        (CLAIM, {"req_offset": -1}),
        (END, {"usage": {"input_tokens": -1}}),
        (END, {"usage": {"output_tokens": 2**63}}),
        (END, {"error": ["only one"]}),
        (END, {"error": "text"}),
        (END, {"seq": -1}),
        (CANCEL, {"by": "alice"}),
        (YIELD, {"seq": None}),
    ],
)
def test_other_records_of_the_wrong_shape_are_garbage(
    record: records.Record, fields: dict[str, Any]
) -> None:
    assert records.decode_token(altered(record, **fields)) is None


JUNK: list[bytes | None] = [
    None,
    b"",
    b" ",
    b"null",
    b"true",
    b"0",
    b'"TOK"',
    b"[]",
    b"{}",
    b"[" * 100_000,
    b'{"t":' * 50_000,
    b'{"t":"TOK"',
    b'{"t":"TOK","t":"END"}',
    b"\xff\xfe\x00",
    "\ufeff{}".encode(),
    "{}".encode("utf-16"),
    b'{"t":"TOK","rid":"\xff"}',
    b"\0" * 1000,
    b"9" * 1_000_000,
    b'"' + b"a" * 1_000_000 + b'"',
]


@cases.each("name", DECODERS)
@cases.each("junk", JUNK, ids=range(len(JUNK)))
def test_junk_is_none(name: str, junk: bytes | None) -> None:
    assert DECODERS[name](junk) is None


@given(st.binary(max_size=300))
def test_no_bytes_raise(value: bytes) -> None:
    for decode in DECODERS.values():
        assert decode(value) is None


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=12,
)
field_names = sorted(
    {
        name
        for record in (REQUEST, CLAIM, TOK, END, CANCEL, DELETED, INCARNATION)
        for name in json.loads(records.encode(record))
    }
)


@given(
    st.dictionaries(st.sampled_from(field_names), json_values),
    st.sampled_from([REQUEST, CLAIM, TOK, END, CANCEL, YIELD, DELETED, INCARNATION]),
)
def test_no_json_raises_and_what_is_read_can_be_written(
    fields: dict[str, Any], record: records.Record
) -> None:
    value = altered(record, **fields)
    for decode in DECODERS.values():
        read = decode(value)
        if read is not None:
            assert decode(records.encode(read)) == read


@cases.each("surrogate", [b"\\ud800", b"\\udfff", b"\\udc00\\ud800"])
def test_lone_surrogates_never_get_in(surrogate: bytes) -> None:
    """They could not be encoded for a client: a reader would crash on text that no tokenizer
    makes."""
    value = records.encode(TOK).replace(TOK.text.encode(), surrogate)
    assert surrogate in value
    assert records.decode_token(value) is None


def test_invalid_utf8_is_garbage() -> None:
    value = records.encode(TOK).replace(TOK.text.encode(), b"\xc3\x28")
    assert records.decode_token(value) is None


def nested(depth: int) -> bytes:
    return records.encode(TOK)[:-1] + b',"extra":' + b"[" * depth + b"]" * depth + b"}"


def at_stack_depth(frames: int, call: Callable[[], Any]) -> Any:
    return call() if frames == 0 else at_stack_depth(frames - 1, call)


@cases.each("depth", [1, 30, 62, 63, 64, 65, 200, 400, 900, 100_000])
def test_nesting_is_judged_alike_by_every_reader(depth: int) -> None:
    """The parser's own bound shrinks with the caller's stack: a claim with a deep echo counted for
    one reader and not for another."""
    readings = [
        at_stack_depth(frames, lambda: records.decode_token(nested(depth)))
        for frames in (0, 200, sys.getrecursionlimit() - 300)
    ]
    assert readings == [TOK if depth < records.MAX_DEPTH else None] * 3


def test_brackets_inside_text_are_not_nesting() -> None:
    code = "[{" * 500 + '"\\' + "]" * 3 + "\\" * 5 + '"' + "{" * 100
    frame = msgspec.structs.replace(TOK, text=code)
    assert records.decode_token(records.encode(frame)) == frame


@given(st.text(alphabet='[]{}"\\a', max_size=400))
def test_no_text_is_taken_for_nesting(content: str) -> None:
    frame = msgspec.structs.replace(TOK, text=content + "[" * records.MAX_DEPTH)
    assert records.decode_token(records.encode(frame)) == frame


def depth_of(value: object) -> int:
    inner = (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    )
    return 0 if inner is None else 1 + max(map(depth_of, inner), default=0)


@given(
    st.recursive(
        st.text(alphabet='[]{}"\\a', max_size=4),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
        max_leaves=20,
    ),
    st.integers(50, 70),
    st.booleans(),
)
def test_nesting_is_counted_as_it_is(value: Any, around: int, lists: bool) -> None:
    for _ in range(around):
        value = [value, "]"] if lists else {'"{': value, "b": "\\"}
    written = json.dumps([value, [[]] * 70]).encode()  # with so many brackets it looks twice
    assert records.too_deep(written) == (depth_of([value, [[]]]) > records.MAX_DEPTH)


def test_a_prompt_digest_depends_on_content_and_not_on_spelling() -> None:
    one = records.prompt_digest([{"role": "user", "content": "hi"}])
    assert one == records.prompt_digest([{"content": "hi", "role": "user"}])
    assert one != records.prompt_digest([{"role": "user", "content": "hi "}])
    assert "hi" not in one


def test_the_key_of_an_owner_is_stable() -> None:
    assert OWNER.key == "https://issuer|acme|alice"


def test_a_token_record_under_the_key_of_another_response_is_garbage_to_every_reader() -> None:
    """Delivery looked at keys and the worker's tail at bodies: one such record made them disagree
    about what a response is."""
    record = records.Yield("resp_a", "own", 3)
    assert records.token_of(b"resp_a", records.encode(record)) == record
    for key in (b"resp_b", b"", None):
        assert records.token_of(key, records.encode(record)) is None


def test_no_two_owners_that_must_not_share_a_cache_have_one_scope() -> None:
    """Neither equal names of two issuers nor a subject that is named like a tenant."""
    apart = [
        records.Owner("i", "alice"),
        records.Owner("j", "alice"),
        records.Owner("i", "bob"),
        records.Owner("i", "alice", "acme"),
        records.Owner("j", "alice", "acme"),
        records.Owner("i", "x", "alice"),
        records.Owner("i|alice", ""),
        records.Owner("i", "|alice"),
        records.Owner('i","alice', "bob"),
        records.Owner("i", 'alice","bob'),
    ]
    assert len({owner.cache_scope for owner in apart}) == len(apart)
    assert all(len(owner.cache_scope) == 32 for owner in apart)


def test_a_tenant_shares_its_cache() -> None:
    one, other = records.Owner("i", "alice", "acme"), records.Owner("i", "bob", "acme")
    assert one.cache_scope == other.cache_scope


def test_a_hedged_claim_is_of_the_version_that_it_would_have_without() -> None:
    """Readers that pass over the member read the same response."""
    plain = records.Claim("r", "b", "a", records.Owner("i", "s"), "w", "t", 0, "m1", "t1")
    hedged = msgspec.structs.replace(plain, hedged=True)
    assert records.encode(hedged) == records.encode(plain)[:-1] + b',"hedged":true}'
    assert records.decode_token(records.encode(hedged)) == hedged
