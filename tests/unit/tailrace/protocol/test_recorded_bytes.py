"""Records on the wire: the bytes of versions 1 and 2, as they lie in recorded logs.

A failure here means that new writers and old readers would not understand each other. Field names
and defaults change only with a new record version.
"""

from typing import Any

import pytest

from tailrace.protocol import files, records
from tests.support import cases

OWNER = records.Owner("i", "s", "t")
OWNER_JSON = b'{"issuer":"i","subject":"s","tenant":"t"}'
USAGE = records.Usage(3, 2, 1)
USAGE_JSON = b'{"input_tokens":3,"output_tokens":2,"cached_tokens":1}'

RECORDED: list[tuple[Any, bytes]] = [
    (
        records.Request(
            "resp_a",
            OWNER,
            "m",
            [{"role": "user", "content": "h"}],
            records.Sampling(9, stop=("x",)),
            {"id": "resp_a"},
            previous="resp_b",
            idempotency_key="k",
            prefix=["d"],
            body_digest="b",
            append_by=8,
            choice=records.Choice("g", 1, 2),
        ),
        b'{"t":"REQUEST","rid":"resp_a","owner":' + OWNER_JSON + b',"model":"m",'
        b'"messages":[{"role":"user","content":"h"}],"sampling":{"max_tokens":9,"stop":["x"]},'
        b'"echo":{"id":"resp_a"},"previous":"resp_b","idempotency_key":"k","prefix":["d"],'
        b'"body_digest":"b","append_by":8,"choice":["g",1,2]}',
    ),
    (
        records.Claim(
            "resp_a", "n2", "n1", OWNER, "w/1", "q", 7, "rev", "tok", 3, {"id": "resp_a"}
        ),
        b'{"t":"CLAIM","rid":"resp_a","own":"n2","prev":"n1","owner":' + OWNER_JSON + b","
        b'"worker":"w/1","req_topic":"q","req_offset":7,"model_rev":"rev",'
        b'"tokenizer_digest":"tok","prompt_tokens":3,"echo":{"id":"resp_a"}}',
    ),
    (
        records.Tok("resp_a", "n1", 4, [5, 6], "hi", "0" * 16, 1.5),
        b'{"t":"TOK","rid":"resp_a","own":"n1","seq":4,"ids":[5,6],"text":"hi",'
        b'"parent":"0000000000000000","ts":1.5}',
    ),
    (
        records.End("resp_a", "n1", 6, "failed", "0" * 16, "t", USAGE, ("c", "m")),
        b'{"t":"END","rid":"resp_a","own":"n1","seq":6,"reason":"failed",'
        b'"digest":"0000000000000000","text_tail":"t","usage":' + USAGE_JSON + b","
        b'"error":["c","m"]}',
    ),
    (
        records.End("resp_a", "n1", 0, "failed", "0" * 16, "", USAGE, ("c", "m"), param="top_p"),
        b'{"t":"END","rid":"resp_a","own":"n1","seq":0,"reason":"failed",'
        b'"digest":"0000000000000000","usage":'
        + USAGE_JSON
        + b',"error":["c","m"],"param":"top_p"}',
    ),
    (
        records.Request(
            "resp_a",
            OWNER,
            "m",
            [],
            records.Sampling(9, logprobs=0, top_k=4, min_p=0.5, min_tokens=2, ignore_eos=True),
            {},
            tools=[{"type": "function", "function": {"name": "f"}}],
            tool_choice=records.ToolChoice("required", ("f",)),
            parallel_tool_calls=False,
            max_tool_calls=2,
            format={"type": "json_object"},
            reasoning={"effort": "low"},
        ),
        b'{"t":"REQUEST","rid":"resp_a","owner":' + OWNER_JSON + b',"model":"m","messages":[],'
        b'"sampling":{"max_tokens":9,"logprobs":0,"top_k":4,"min_p":0.5,"min_tokens":2,'
        b'"ignore_eos":true},"echo":{},"tools":[{"type":"function","function":{"name":"f"}}],'
        b'"tool_choice":{"mode":"required","names":["f"]},"parallel_tool_calls":false,'
        b'"max_tool_calls":2,"format":{"type":"json_object"},"reasoning":{"effort":"low"},"v":2}',
    ),
    (
        records.Claim(
            "resp_a", "n2", None, OWNER, "w/1", "q", 7, "rev", "tok", parser="hermes@vllm-0.32.0"
        ),
        b'{"t":"CLAIM","rid":"resp_a","own":"n2","prev":null,"owner":' + OWNER_JSON + b","
        b'"worker":"w/1","req_topic":"q","req_offset":7,"model_rev":"rev",'
        b'"tokenizer_digest":"tok","parser":"hermes@vllm-0.32.0","v":2}',
    ),
    (
        records.Tok(
            "resp_a",
            "n1",
            4,
            [5, 6],
            "hi{",
            "0" * 16,
            1.5,
            (records.Mark(0, 0, "m"), records.Mark(2, 1, "c", "f", "call_x")),
            (
                records.lp(b"hi", -0.25),
                records.lp(b"{\xf0", -1.5, [records.likely(b"{", -1.5)]),
            ),
        ),
        b'{"t":"TOK","rid":"resp_a","own":"n1","seq":4,"ids":[5,6],"text":"hi{",'
        b'"parent":"0000000000000000","ts":1.5,"marks":[[0,0,"m","",""],[2,1,"c","f","call_x"]],'
        b'"lp":[["hi",-0.25,[],""],["{\xef\xbf\xbd",-1.5,[["{",-1.5,""]],"7bf0"]],"v":2}',
    ),
    (
        records.End(
            "resp_a",
            "n1",
            6,
            "stop",
            "0" * 16,
            "t",
            records.Usage(3, 2, 1, 1),
            marks=(records.Mark(1, 0, "m"),),
        ),
        b'{"t":"END","rid":"resp_a","own":"n1","seq":6,"reason":"stop",'
        b'"digest":"0000000000000000","text_tail":"t","usage":{"input_tokens":3,'
        b'"output_tokens":2,"cached_tokens":1,"reasoning_tokens":1},'
        b'"marks":[[1,0,"m","",""]],"v":2}',
    ),
    (
        records.Cancel("resp_a", OWNER, {"id": "resp_a"}),
        b'{"t":"CANCEL","rid":"resp_a","by":' + OWNER_JSON + b',"echo":{"id":"resp_a"}}',
    ),
    (
        records.Cancel("resp_a", OWNER, withdrawn=True),
        b'{"t":"CANCEL","rid":"resp_a","by":' + OWNER_JSON + b',"withdrawn":true}',
    ),
    (
        records.Cancel("resp_a", OWNER, failed="expired"),
        b'{"t":"CANCEL","rid":"resp_a","by":' + OWNER_JSON + b',"failed":"expired","v":2}',
    ),
    (
        records.Claim("resp_a", "n2", "n1", OWNER, "w/1", "q", 7, "rev", "tok", continues=True),
        b'{"t":"CLAIM","rid":"resp_a","own":"n2","prev":"n1","owner":' + OWNER_JSON + b","
        b'"worker":"w/1","req_topic":"q","req_offset":7,"model_rev":"rev",'
        b'"tokenizer_digest":"tok","continues":true,"v":2}',
    ),
    (
        records.Claim("resp_a", "n1", None, OWNER, "w/1", "q", 7, "rev", "tok", served="s"),
        b'{"t":"CLAIM","rid":"resp_a","own":"n1","prev":null,"owner":' + OWNER_JSON + b","
        b'"worker":"w/1","req_topic":"q","req_offset":7,"model_rev":"rev",'
        b'"tokenizer_digest":"tok","served":"s","v":2}',
    ),
    (
        records.Claim("resp_a", "n1", None, OWNER, "w/1", "q", 7, "rev", "tok", answer_of="resp_b"),
        b'{"t":"CLAIM","rid":"resp_a","own":"n1","prev":null,"owner":' + OWNER_JSON + b","
        b'"worker":"w/1","req_topic":"q","req_offset":7,"model_rev":"rev",'
        b'"tokenizer_digest":"tok","answer_of":"resp_b","v":2}',
    ),
    (
        records.Request("resp_a", OWNER, "m", [], records.Sampling(9), {}, cached_answers=False),
        b'{"t":"REQUEST","rid":"resp_a","owner":' + OWNER_JSON + b',"model":"m","messages":[],'
        b'"sampling":{"max_tokens":9},"echo":{},"cached_answers":false}',
    ),
    (
        records.Reroute(
            "resp_a",
            records.Request("resp_a", OWNER, "m", [], records.Sampling(9), {"id": "resp_a"}),
            5,
        ),
        b'{"t":"REROUTE","rid":"resp_a","request":{"t":"REQUEST","rid":"resp_a","owner":'
        + OWNER_JSON
        + b',"model":"m","messages":[],"sampling":{"max_tokens":9},"echo":{"id":"resp_a"}},'
        b'"asked_ms":5}',
    ),
    (
        records.Yield("resp_a", "n1", 6),
        b'{"t":"YIELD","rid":"resp_a","own":"n1","seq":6}',
    ),
    (
        records.Deleted("resp_a", OWNER),
        b'{"t":"DELETED","rid":"resp_a","by":' + OWNER_JSON + b"}",
    ),
    (
        records.Metadata("resp_a", OWNER, {"a": "b"}),
        b'{"t":"METADATA","rid":"resp_a","by":' + OWNER_JSON + b',"metadata":{"a":"b"}}',
    ),
    (
        records.Revoked("00ff00ff00ff00ff", "https://i", 7, subject="alice"),
        b'{"t":"REVOKED","id":"00ff00ff00ff00ff","issuer":"https://i","issued_until":7,'
        b'"subject":"alice"}',
    ),
    (
        records.Revoked(
            "00ff00ff00ff00ff", "i", 7, tenant="acme", credential="c", by="i||root", lifted=True
        ),
        b'{"t":"REVOKED","id":"00ff00ff00ff00ff","issuer":"i","issued_until":7,'
        b'"tenant":"acme","credential":"c","by":"i||root","lifted":true}',
    ),
    (
        records.Upload(
            "file-a", OWNER, "5a", files.Place(1, (2, 3), 4, 5), "n", "vision", "image/png", 6, 7
        ),
        b'{"t":"UPLOAD","id":"file-a","owner":' + OWNER_JSON + b',"sha256":"5a",'
        b'"file":{"p":1,"at":[2,3],"bytes":4,"ms":5},"filename":"n","purpose":"vision",'
        b'"media":"image/png","created":6,"expires":7}',
    ),
    (records.Incarnation("inc"), b'{"t":"INCARNATION","id":"inc"}'),
    (
        records.UsageRecord(
            "resp_a", OWNER, "m", "rev", "completed", USAGE, 1, "w/1", 9, "digest", "h"
        ),
        b'{"t":"USAGE","rid":"resp_a","owner":' + OWNER_JSON + b',"model":"m",'
        b'"model_rev":"rev","status":"completed","usage":' + USAGE_JSON + b","
        b'"claims":1,"worker":"w/1","ts":9,"prompt_digest":"digest","ids_digest":"h"}',
    ),
    (
        records.UsageRecord(
            *("resp_a", OWNER, "m", "rev", "completed", USAGE, 1, "w/1", 9, "digest", "h"),
            cost_nano=0,
            first_token_ms=30,
            inter_token_ms=1.5,
        ),
        b'{"t":"USAGE","rid":"resp_a","owner":' + OWNER_JSON + b',"model":"m",'
        b'"model_rev":"rev","status":"completed","usage":' + USAGE_JSON + b","
        b'"claims":1,"worker":"w/1","ts":9,"prompt_digest":"digest","ids_digest":"h","cost_nano":0,'
        b'"first_token_ms":30,"inter_token_ms":1.5}',
    ),
    (
        records.DeadLetter("resp_a", OWNER, "m", "attempts", 3, "q", 7, "digest"),
        b'{"t":"DEAD","rid":"resp_a","owner":' + OWNER_JSON + b',"model":"m",'
        b'"reason":"attempts","attempts":3,"req_topic":"q","req_offset":7,'
        b'"prompt_digest":"digest"}',
    ),
]


@cases.each(
    ("record", "recorded"), [pytest.param(*pair, id=type(pair[0]).__name__) for pair in RECORDED]
)
def test_a_record_has_the_bytes_of_recorded_logs(record: Any, recorded: bytes) -> None:
    assert records.encode(record) == recorded


def test_every_record_type_has_recorded_bytes() -> None:
    assert {type(record) for record, _ in RECORDED} == set(records.Record.__args__)
