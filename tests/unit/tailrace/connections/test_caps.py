"""How many connections an address may hold, and whose address it is."""

from __future__ import annotations

import ipaddress

import pytest

from tailrace.connections import caps
from tests.support import cases

PROXIES = caps.Proxies([ipaddress.ip_network("10.0.0.0/8"), ipaddress.ip_network("fd00::/8")])


@cases.each(
    ("address", "key"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::ffff", "2001:db8:1:2::/64"),
        ("", caps.UNKNOWN),
        ("no address", caps.UNKNOWN),
    ],
)
def test_an_address_is_counted_as_itself_or_as_its_network(address: str, key: str) -> None:
    assert caps.address_key(address) == key


@cases.each(
    ("forwarded", "client"),
    [
        ([b"192.0.2.1"], "192.0.2.1"),
        ([b"6.6.6.6, 192.0.2.1"], "192.0.2.1"),
        ([b"6.6.6.6", b"192.0.2.1, 10.1.1.1"], "192.0.2.1"),
        ([b"10.2.2.2, fd00::1"], "10.0.0.1"),
        ([b"192.0.2.1, unknown"], "10.0.0.1"),
        ([b"192.0.2.1:4711"], "10.0.0.1"),
        ([b"\xff\xfe"], "10.0.0.1"),
        ([], "10.0.0.1"),
    ],
)
def test_the_last_address_that_is_no_proxy_is_the_client_s(
    forwarded: list[bytes], client: str
) -> None:
    assert PROXIES.client_of("10.0.0.1", forwarded) == client


def test_without_a_setting_nobody_is_a_proxy() -> None:
    assert not caps.Proxies().trusts("127.0.0.1")


def test_a_place_gives_back_all_that_it_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caps, "KEPT_BYTES_PER_ADDRESS", 10)
    bounds = caps.Caps(2, 1)
    place, other = caps.Place(bounds), caps.Place(bounds)
    assert bounds.full()
    assert place.charge("192.0.2.1")
    assert place.charge("192.0.2.1")  # charged already
    assert not other.charge("192.0.2.1")
    assert place.keep(10)
    assert not place.keep(11)
    assert place.keep(4)
    place.leave()
    assert other.charge("192.0.2.1")
    assert other.keep(10)
    other.leave()
    assert bounds.open == 0
    assert not bounds.by_address
    assert not bounds.kept


def test_a_place_that_is_charged_to_another_address_leaves_the_first_one() -> None:
    """A proxy tells the client's address only after the head was read."""
    bounds = caps.Caps(3, 1)
    place, other = caps.Place(bounds), caps.Place(bounds)
    assert place.charge("192.0.2.1")
    assert place.charge("192.0.2.2")
    assert other.charge("192.0.2.1")
    assert not caps.Place(bounds).charge("192.0.2.2")
