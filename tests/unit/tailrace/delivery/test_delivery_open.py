"""The tail sees a response opened here, whatever the sweep did between its id and its request."""

from __future__ import annotations

from tailrace.delivery import delivery
from tailrace.protocol import events, records, topics
from tests.support import log_contract, memory_delivery, memory_log

OWNER = records.Owner("https://tests", "alice")


def request(rid: str) -> records.Request:
    return records.Request(rid, OWNER, "m", [], records.Sampling(1), events.echo(rid, 1, "m"))


def ending_at(end: int) -> memory_log.MemoryLog:
    broker = memory_log.MemoryLog()
    broker.skip_to(topics.TOKENS, 3, end)
    return broker


async def test_a_partition_that_was_left_since_the_id_was_minted_is_followed_from_its_bound() -> (
    None
):
    broker = ending_at(7)
    clients = memory_delivery.clients(broker)
    made = memory_delivery.over(broker, preferred=[0], using=clients)
    rid = await made.mint(3)
    clients.on_demand.leave(3)  # as the sweep does with a partition that has no stream
    broker.skip_to(topics.TOKENS, 3, 9)
    made.open(asked := request(rid), records.encode(asked))
    assert clients.on_demand.next_offset(3) == 7


async def test_a_partition_that_is_followed_keeps_its_position() -> None:
    broker = ending_at(7)
    clients = memory_delivery.clients(broker)
    made = memory_delivery.over(broker, preferred=[0], using=clients)
    rid = await made.mint(3)
    clients.on_demand.follow(3, 9)
    made.open(asked := request(rid), records.encode(asked))
    assert clients.on_demand.next_offset(3) == 9


async def test_an_on_demand_partition_is_left_once_it_has_no_stream_and_a_preferred_one_stays() -> (
    None
):
    broker = ending_at(7)
    clients = memory_delivery.clients(broker)
    made = delivery.Delivery(
        clients, layout=broker.layout, pools=lambda: ["default"], preferred=[0], sweep_s=0.01
    )
    async with memory_delivery.running(made):
        asked = request(opened := await made.mint(3))
        made.open(asked, records.encode(asked))
        await made.mint(4)
        await log_contract.until(lambda: not clients.on_demand.follows(4), 5)
        assert clients.on_demand.follows(3)
        made.discard(opened)
        await log_contract.until(lambda: not clients.on_demand.follows(3), 5)
        assert clients.long_polled.follows(0)
