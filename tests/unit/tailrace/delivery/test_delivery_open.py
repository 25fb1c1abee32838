"""A response of ours is seen by the tail, whatever the sweep did between its id and its request."""

from __future__ import annotations

from tailrace import log
from tailrace.delivery import delivery
from tailrace.protocol import events, ids, records

OWNER = records.Owner("https://tests", "alice")


def request(rid: str) -> records.Request:
    return records.Request(rid, OWNER, "m", [], records.Sampling(1), events.echo(rid, 1, "m"))


async def test_a_partition_that_was_left_since_the_id_was_minted_is_followed_from_its_bound() -> (
    None
):
    made = delivery.Delivery(
        bootstrap="nowhere:1",
        layout=log.Layout("one", ids.incarnation_tag("one"), 4),
        pools=["default"],
        preferred=[0],
    )
    made._reader.follow(3, 7)
    rid = await made.mint(3)
    made._reader.leave(3)  # as the sweep does with a partition that has no stream
    made.open(request(rid))
    assert made._reader.follows(3)
    assert made._reader.next_offset(3) == 7


async def test_a_partition_that_is_followed_keeps_its_position() -> None:
    made = delivery.Delivery(
        bootstrap="nowhere:1",
        layout=log.Layout("one", ids.incarnation_tag("one"), 4),
        pools=["default"],
        preferred=[0],
    )
    made._reader.follow(3, 7)
    rid = await made.mint(3)
    made._reader.follow(3, 9)
    made.open(request(rid))
    assert made._reader.next_offset(3) == 9
