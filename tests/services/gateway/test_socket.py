"""`WS /v1/responses` on real parts: a raw client, the protocol to the letter."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.services.gateway.conftest import Socket, events_of, opened, text_of
from tests.support import gateway_process as gp


async def refused(
    gateway: gp.Gateway, query: str = "", path: str | None = None, **options: Any
) -> tuple[int, dict[str, Any]]:
    with pytest.raises(InvalidStatus) as e:
        async with connect(path or gateway.ws + query, **options):
            pass
    body = json.loads(e.value.response.body)
    assert set(body["error"]) == {"message", "type", "param", "code"}
    return e.value.response.status_code, body["error"]


class TestHandshake:
    @pytest.mark.parametrize("credential", [None, "", "Bearer", "Bearer x.y.z", "Basic abc"])
    async def test_no_credential_is_refused_before_the_upgrade(
        self, gateway: gp.Gateway, credential: str | None
    ) -> None:
        headers = {} if credential is None else {"Authorization": credential}
        status, error = await refused(gateway, additional_headers=headers)
        assert (status, error["code"]) == (401, "invalid_api_key")

    async def test_a_credential_in_the_query_is_none(self, gateway: gp.Gateway) -> None:
        token = gateway.keys.token()
        assert (await refused(gateway, f"?token={token}&authorization=Bearer%20{token}"))[0] == 401

    @pytest.mark.parametrize(
        "origin",
        ["http://evil.test", "null", gp.ORIGIN + ".evil.test", gp.ORIGIN + "/", gp.ORIGIN.upper()],
    )
    async def test_a_present_origin_must_be_listed(self, gateway: gp.Gateway, origin: str) -> None:
        status, error = await refused(
            gateway, additional_headers={**gateway.headers(), "Origin": origin}
        )
        assert (status, error["code"]) == (403, "forbidden_origin")

    async def test_a_listed_origin_may(self, gateway: gp.Gateway) -> None:
        async with opened(gateway, headers={"Origin": gp.ORIGIN}) as socket:
            await socket.create()
            await socket.end()

    async def test_deflate_is_not_negotiated(self, gateway: gp.Gateway) -> None:
        async with connect(
            gateway.ws, additional_headers=gateway.headers(), compression="deflate"
        ) as ws:
            assert ws.response is not None
            assert "sec-websocket-extensions" not in ws.response.headers

    async def test_a_ticket_opens_one_socket_for_its_origin(
        self, gateway: gp.Gateway, client: httpx.AsyncClient
    ) -> None:
        answer = await client.post("/v1/tickets", headers={"origin": gp.ORIGIN})
        assert answer.json()["expires_in"] <= 30
        offered: Any = ["tailrace.v1", f"ticket.{answer.json()['ticket']}"]
        async with connect(gateway.ws, origin=gp.ORIGIN, subprotocols=offered) as ws:  # type: ignore[arg-type]
            assert ws.subprotocol == "tailrace.v1"
            socket = Socket(ws)
            await socket.create()
            await socket.end()
        assert (await refused(gateway, origin=gp.ORIGIN, subprotocols=offered))[0] == 401

    async def test_a_ticket_of_another_origin_is_refused_and_used_up(
        self, gateway: gp.Gateway, client: httpx.AsyncClient
    ) -> None:
        ticket = (await client.post("/v1/tickets", headers={"origin": gp.ORIGIN})).json()["ticket"]
        offered: Any = ["tailrace.v1", f"ticket.{ticket}"]
        assert (await refused(gateway, subprotocols=offered))[0] == 401
        assert (await refused(gateway, origin=gp.ORIGIN, subprotocols=offered))[0] == 401

    async def test_two_handshakes_with_one_ticket_have_one_winner(
        self, gateway: gp.Gateway, client: httpx.AsyncClient
    ) -> None:
        ticket = (await client.post("/v1/tickets")).json()["ticket"]
        offered: Any = ["tailrace.v1", f"ticket.{ticket}"]

        async def attempt() -> int:
            try:
                async with connect(gateway.ws, subprotocols=offered):
                    return 101
            except InvalidStatus as error:
                return error.response.status_code

        assert sorted(await asyncio.gather(*(attempt() for _ in range(4)))) == [101, 401, 401, 401]

    async def test_an_unknown_path(self, gateway: gp.Gateway) -> None:
        with pytest.raises(InvalidStatus):
            async with connect(gateway.ws + "/nothing", additional_headers=gateway.headers()):
                pass


class TestResponses:
    async def test_the_whole_series_with_dense_numbers(self, socket: Socket) -> None:
        await socket.create(tokens=6)
        seen = await socket.end()
        assert [e["sequence_number"] for e in seen] == list(range(len(seen)))
        kinds = [e["type"] for e in seen]
        assert kinds[:4] == [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
        ]
        assert kinds[-4:] == [
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.completed",
        ]
        assert text_of(seen) == seen[-1]["response"]["output"][0]["content"][0]["text"]
        assert all("stream_id" not in e for e in seen)
        assert seen[-1]["response"]["usage"]["output_tokens"] == 6

    async def test_one_lane_is_strictly_first_in_first_out(self, socket: Socket) -> None:
        for i in range(3):
            await socket.create(f"question {i}", tokens=4)
        seen = [e for _ in range(3) for e in await socket.end()]
        borders = [
            e["type"] for e in seen if e["type"] in ("response.created", "response.completed")
        ]
        assert borders == ["response.created", "response.completed"] * 3

    async def test_lanes_interleave_and_every_event_names_its_lane(self, socket: Socket) -> None:
        for lane in ("a", "b"):
            await socket.create(stream_id=lane, tokens=30, pace_ms=5)
        seen, done = [], 0
        while done < 2:
            seen.append(await socket.event())
            done += seen[-1]["type"] == "response.completed"
        for lane in ("a", "b"):
            mine = [e for e in seen if e["stream_id"] == lane]
            assert [e["sequence_number"] for e in mine] == list(range(len(mine)))
        first_end = next(i for i, e in enumerate(seen) if e["type"] == "response.completed")
        assert {e["stream_id"] for e in seen[:first_end]} == {"a", "b"}

    async def test_many_lanes_at_once(self, socket: Socket) -> None:
        for i in range(20):
            await socket.create(stream_id=f"lane-{i}", tokens=10)
        ended: set[str] = set()
        while len(ended) < 20:
            event = await socket.event()
            assert event["type"] != "error"
            if event["type"] == "response.completed":
                ended.add(event["stream_id"])

    async def test_an_error_waits_for_its_turn_on_its_lane(self, socket: Socket) -> None:
        await socket.create(tokens=10)
        await socket.create(temperature=9)
        await socket.create(tokens=3)
        await socket.end()
        error = await socket.error()
        assert (error["status"], error["error"]["param"]) == (400, "temperature")
        assert (await socket.end())[-1]["response"]["usage"]["output_tokens"] == 3

    async def test_errors_of_a_lane_name_it(self, socket: Socket) -> None:
        await socket.create(stream_id="a", tools=[{"type": "function"}])
        error = await socket.error()
        assert (error["stream_id"], error["error"]["param"], error["error"]["type"]) == (
            "a",
            "tools[0].name",
            "invalid_request_error",
        )

    async def test_an_unknown_model(self, socket: Socket) -> None:
        await socket.create(model="nope")
        assert (await socket.error())["error"]["code"] == "model_not_found"

    async def test_background_is_refused_and_stream_is_ignored(self, socket: Socket) -> None:
        await socket.create(background=True)
        assert (await socket.error())["error"]["param"] == "background"
        await socket.create(
            stream=True, client_metadata={"x": 1}, stream_options={"include_obfuscation": False}
        )
        assert (await socket.end())[-1]["type"] == "response.completed"

    async def test_the_stored_response_can_be_read_over_http(
        self, socket: Socket, client: httpx.AsyncClient
    ) -> None:
        await socket.create()
        seen = await socket.end()
        rid = seen[0]["response"]["id"]
        assert (await client.get(f"/v1/responses/{rid}")).json() == seen[-1]["response"]
        assert events_of((await client.get(f"/v1/responses/{rid}?stream=true")).text) == seen


class TestMemory:
    async def test_what_is_not_stored_is_continued_on_its_connection_only(
        self, gateway: gp.Gateway, socket: Socket
    ) -> None:
        await socket.create(store=False)
        first = (await socket.end())[-1]["response"]
        async with opened(gateway) as other:
            await other.create("and?", store=False, previous_response_id=first["id"])
            error = await other.error()
            assert (error["status"], error["error"]["code"], error["error"]["param"]) == (
                400,
                "previous_response_not_found",
                "previous_response_id",
            )
        await socket.create("and?", store=False, previous_response_id=first["id"])
        second = (await socket.end())[-1]["response"]
        assert second["previous_response_id"] == first["id"]
        assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"]

    async def test_a_failed_continuation_evicts_its_parent(self, socket: Socket) -> None:
        await socket.create(store=False)
        rid = (await socket.end())[-1]["response"]["id"]
        await socket.create(store=False, previous_response_id=rid, temperature=9)
        await socket.error()
        await socket.create(store=False, previous_response_id=rid)
        assert (await socket.error())["error"]["code"] == "previous_response_not_found"

    async def test_a_failed_fork_keeps_its_parent(self, socket: Socket) -> None:
        await socket.create(store=False)
        rid = (await socket.end())[-1]["response"]["id"]
        await socket.create(store=False, previous_response_id=rid, temperature=9, stream_id="fork")
        await socket.error()
        await socket.create(store=False, previous_response_id=rid)
        assert (await socket.end())[-1]["type"] == "response.completed"

    async def test_a_warm_up_has_no_output_and_can_be_continued_without_being_stored(
        self, socket: Socket
    ) -> None:
        await socket.send(
            "response.create", generate=False, store=False, input="context", instructions="i"
        )
        seen = await socket.end()
        assert seen[-1]["response"]["output"] == []
        assert seen[0]["type"] == "response.created"
        await socket.create("go", store=False, previous_response_id=seen[-1]["response"]["id"])
        assert (await socket.end())[-1]["type"] == "response.completed"

    async def test_a_continuation_queued_behind_what_it_continues(self, socket: Socket) -> None:
        await socket.create(store=False, tokens=30, pace_ms=5)
        created = await socket.event()
        await socket.create("and?", store=False, previous_response_id=created["response"]["id"])
        await socket.end()
        assert (await socket.end())[-1]["response"]["previous_response_id"] == created["response"][
            "id"
        ]

    async def test_a_stored_one_is_continued_from_any_connection(
        self, gateway: gp.Gateway, socket: Socket
    ) -> None:
        await socket.create()
        rid = (await socket.end())[-1]["response"]["id"]
        async with opened(gateway) as other:
            await other.create("and?", previous_response_id=rid)
            assert (await other.end())[-1]["type"] == "response.completed"

    async def test_somebody_elses_is_unknown(self, gateway: gp.Gateway, socket: Socket) -> None:
        await socket.create()
        rid = (await socket.end())[-1]["response"]["id"]
        async with opened(gateway, subject="bob") as other:
            await other.create("and?", previous_response_id=rid)
            assert (await other.error())["error"]["code"] == "previous_response_not_found"


class TestCancelAndSteer:
    @pytest.mark.parametrize("named", [True, False])
    async def test_cancel_ends_with_one_terminal_event(self, socket: Socket, named: bool) -> None:
        await socket.create(tokens=3000, pace_ms=5)
        seen = await socket.until("response.output_text.delta")
        await socket.send(
            "response.cancel", **({"response_id": seen[0]["response"]["id"]} if named else {})
        )
        terminal = (await socket.end())[-1]
        assert (terminal["type"], terminal["response"]["status"]) == (
            "response.incomplete",
            "cancelled",
        )
        assert terminal["response"]["output"][0]["content"][0]["text"]
        await socket.send("response.cancel", response_id=terminal["response"]["id"])
        await socket.create()
        assert (await socket.end())[-1]["type"] == "response.completed"

    async def test_cancel_at_once(self, socket: Socket) -> None:
        await socket.create(tokens=3000, pace_ms=5)
        await socket.send("response.cancel")
        assert (await socket.end())[-1]["response"]["status"] == "cancelled"

    async def test_somebody_elses_cannot_be_cancelled(
        self, gateway: gp.Gateway, socket: Socket
    ) -> None:
        await socket.create(tokens=60, pace_ms=5)
        rid = (await socket.event())["response"]["id"]
        async with opened(gateway, subject="bob") as other:
            await other.send("response.cancel", response_id=rid)
            error = await other.error()
            assert (error["status"], error["error"]["code"]) == (404, "response_not_found")
        assert (await socket.end())[-1]["type"] == "response.completed"

    async def test_steering(self, socket: Socket) -> None:
        await socket.send("response.steer", previous_response_id="resp_1", input="left")
        event = await socket.event()
        assert (event["type"], event["error"]["code"], event["steer"]["input"]) == (
            "response.steer.failed",
            "steering_not_supported",
            "left",
        )


# A close frame sent to a peer that is still sending may be lost to the reset that follows unread
# data: the client then sees 1006.
TOO_BIG = (1009, 1006)


class TestBadFrames:
    @pytest.mark.parametrize(
        ("frame", "code"),
        [
            ("", "invalid_json"),
            ("{", "invalid_json"),
            ("[" * 60_000, "invalid_json"),
            ('{"type":"response.create","input":"\\ud800"}', "invalid_json"),
            ("[]", "invalid_type"),
            ("{}", "unknown_event"),
            ('{"type":"session.update"}', "unknown_event"),
            ('{"type":"response.create","stream_id":"a b"}', "invalid_stream_id"),
            ('{"type":"response.create"}', "missing_required_parameter"),
            (b"\x00\x01", "invalid_request_error"),
        ],
        ids=range(10),
    )
    async def test_an_error_event_and_the_socket_stays_open(
        self, socket: Socket, frame: str | bytes, code: str
    ) -> None:
        await socket.ws.send(frame)
        error = await socket.error()
        assert (error["status"], error["error"]["code"]) == (400, code)
        assert set(error["error"]) >= {"type", "code", "message", "param"}
        await socket.create(tokens=2)
        assert (await socket.end())[-1]["type"] == "response.completed"

    async def test_a_frame_above_the_limit_closes_with_1009(self, socket: Socket) -> None:
        with contextlib.suppress(ConnectionClosed):
            await socket.ws.send(json.dumps({"type": "response.create", "input": "x" * 140_000}))
        assert (await socket.closed())[0] in TOO_BIG

    async def test_many_small_fragments_of_one_big_message(self, socket: Socket) -> None:
        with contextlib.suppress(ConnectionClosed):  # the server closes while we still send
            await socket.ws.send(["x" * 1000] * 200)
        assert (await socket.closed())[0] in TOO_BIG

    async def test_bad_utf8_closes_with_1007(self, gateway: gp.Gateway) -> None:
        async with opened(gateway) as socket:
            await socket.ws.send(b"\xff\xfe", text=True)
            assert (await socket.closed())[0] == 1007


class TestResume:
    async def test_the_rest_on_a_new_socket(self, gateway: gp.Gateway) -> None:
        async with opened(gateway) as first:
            await first.create(tokens=60, pace_ms=10)
            seen = await first.until("response.output_text.delta")
        rid = seen[0]["response"]["id"]
        async with opened(
            gateway, f"?resume={rid}&starting_after={seen[-1]['sequence_number']}"
        ) as second:
            rest = await second.end()
            assert [e["sequence_number"] for e in [*seen, *rest]] == list(
                range(len(seen) + len(rest))
            )
            assert (
                text_of([*seen, *rest]) == rest[-1]["response"]["output"][0]["content"][0]["text"]
            )
            await second.create("and?", previous_response_id=rid)
            assert (await second.end())[-1]["response"]["previous_response_id"] == rid

    async def test_what_is_not_stored_by_its_owner(self, gateway: gp.Gateway) -> None:
        async with opened(gateway) as first:
            await first.create(tokens=150, pace_ms=10, store=False, stream_id="main")
            seen = await first.until("response.output_text.delta")
        rid = seen[0]["response"]["id"]
        async with opened(
            gateway, f"?resume={rid}&starting_after={seen[-1]['sequence_number']}&stream_id=main"
        ) as second:
            rest = await second.end()
        assert {e["stream_id"] for e in rest} == {"main"}
        assert rest[-1]["type"] == "response.completed"

    async def test_beyond_the_end_nothing_comes_and_the_socket_is_usable(
        self, gateway: gp.Gateway, socket: Socket
    ) -> None:
        await socket.create()
        seen = await socket.end()
        async with opened(
            gateway, f"?resume={seen[0]['response']['id']}&starting_after={len(seen)}"
        ) as second:
            await second.create(tokens=2)
            assert (await second.event())["type"] == "response.created"

    @pytest.mark.parametrize(
        ("query", "status"),
        [
            ("?resume=resp_x", 404),
            ("?resume=", 404),
            ("?resume=resp_" + "A" * 32, 404),
            ("?resume={rid}&starting_after=x", 400),
            ("?resume={rid}&starting_after=-1", 400),
            ("?resume={rid}&stream_id=a%20b", 400),
        ],
    )
    async def test_refusals_come_before_the_upgrade(
        self, gateway: gp.Gateway, socket: Socket, query: str, status: int
    ) -> None:
        await socket.create()
        rid = (await socket.end())[0]["response"]["id"]
        assert (
            await refused(gateway, query.format(rid=rid), additional_headers=gateway.headers())
        )[0] in (status, 410)

    async def test_somebody_elses(self, gateway: gp.Gateway, socket: Socket) -> None:
        await socket.create()
        rid = (await socket.end())[0]["response"]["id"]
        status, error = await refused(
            gateway, f"?resume={rid}", additional_headers=gateway.headers("bob")
        )
        assert (status, error["code"]) == (404, "response_not_found")


class TestLeaving:
    async def test_a_stored_response_outlives_its_socket(
        self, gateway: gp.Gateway, client: httpx.AsyncClient
    ) -> None:
        async with opened(gateway) as socket:
            await socket.create(tokens=60, pace_ms=5)
            rid = (await socket.event())["response"]["id"]
        seen = events_of((await client.get(f"/v1/responses/{rid}?stream=true")).text)
        assert seen[-1]["response"]["usage"]["output_tokens"] == 60

    async def test_what_is_not_stored_is_cancelled_after_the_grace(
        self, gateway: gp.Gateway, client: httpx.AsyncClient, kafka: str
    ) -> None:
        async with opened(gateway) as socket:
            await socket.create(tokens=4000, pace_ms=10, store=False)
            rid = (await socket.event())["response"]["id"]
        await gp.cancelled(kafka, rid)
        seen = events_of((await client.get(f"/v1/responses/{rid}?stream=true")).text)
        assert seen[-1]["response"]["status"] == "cancelled"

    async def test_a_create_under_way_when_the_client_leaves_is_not_lost(
        self, gateway: gp.Gateway, client: httpx.AsyncClient
    ) -> None:
        key = "left at once"
        async with opened(gateway) as socket:
            await socket.create(tokens=3, idempotency_key=key)
        answer = await client.post(
            "/v1/responses",
            json={"input": "hi", "metadata": gp.cues(3, 2)},
            headers={"Idempotency-Key": key},
        )
        assert answer.json()["status"] == "completed"

    async def test_an_expired_credential_closes_the_socket_for_a_new_one(
        self, gateway: gp.Gateway
    ) -> None:
        async with opened(gateway, ttl=2) as socket:
            await socket.create()
            await socket.end()
            code, reason = await socket.closed()
        assert code == 1012
        assert "credential" in reason


async def test_another_users_socket_never_sees_an_event_of_mine(
    gateway: gp.Gateway, socket: Socket
) -> None:
    async with opened(gateway, subject="bob") as other:
        await socket.create(tokens=20, pace_ms=2)
        await other.create(tokens=20, pace_ms=2)
        mine, theirs = await asyncio.gather(socket.end(), other.end())
    assert {e["response"]["id"] for e in mine if "response" in e}.isdisjoint(
        {e["response"]["id"] for e in theirs if "response" in e}
    )
