"""Requests into the log, over a writer whose answers are given."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.requests import request_writer
from tailrace import log
from tailrace.protocol import errors, topics
from tests.support import cases, gateway_parts
from tests.support.gateway_parts import ALICE, create

TOPIC = topics.requests("default", "interactive")


class Writer:
    """Answers every append with `offset`."""

    connected = True

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.appended: list[bytes] = []

    def append(self, *record: Any) -> asyncio.Future[log.Appended]:
        self.appended.append(record[3])
        done: asyncio.Future[log.Appended] = asyncio.get_running_loop().create_future()
        done.set_result(log.Appended(self.offset, 0))
        return done


@cases.each(("offset", "after"), [(4, 5), (0, 1), (-1, -1)])
async def test_the_offset_after_the_record_is_returned_if_the_client_library_knows_it(
    offset: int, after: int
) -> None:
    writer: Any = Writer(offset)
    async with gateway_parts.running() as parts:
        request, partition = await parts.builder.build(create(), ALICE)
        output = request_writer.RequestWriter(parts.delivery, writer)
        subscription, end = await output.append(request, TOPIC, partition)
        assert end == after
        assert subscription.pending()[0].type == "response.created", "it is visible now"


async def test_a_request_that_fits_no_record_is_refused_before_it_is_registered() -> None:
    writer: Any = Writer(0)
    async with gateway_parts.running() as parts:
        request, partition = await parts.builder.build(
            create("x" * 15_000, metadata={"k": "v"}), ALICE
        )
        request.messages.append({"role": "user", "content": "x" * request_writer.MAX_BODY_BYTES})
        with pytest.raises(errors.ApiError) as error:
            await request_writer.RequestWriter(parts.delivery, writer).append(
                request, TOPIC, partition
            )
        assert error.value.code == "context_length_exceeded"
        assert (writer.appended, parts.delivery.load(0)) == ([], 0)
