"""The broker's clock."""

from __future__ import annotations

from tailrace.protocol.broker_clock import WINDOW_S, BrokerClock


def test_nothing_is_known_before_the_first_timestamp() -> None:
    assert BrokerClock().now_ms(123.0) == 0.0


def test_the_bound_never_runs_ahead_of_the_broker_and_follows_the_tightest_observation() -> None:
    broker = BrokerClock()
    broker.observe(1_000, 10.0)  # an old record: its lead is small
    assert broker.now_ms(10.0) == 1_000
    broker.observe(5_000, 10.5)  # a fresh one
    assert broker.now_ms(10.5) == 5_000
    broker.observe(5_100, 12.0)  # came late: proves less
    assert broker.now_ms(12.0) == 6_500


def test_a_flood_of_old_records_does_not_hide_a_fresh_one() -> None:
    """A successor reads a long stretch of old log after the record that matters. With a clock that
    forgot that record, no owner would ever be silent for longer than the grace."""
    broker = BrokerClock()
    broker.observe(1_000_000, 10.0)
    for i in range(100_000):
        broker.observe(500_000 + i, 10.1)
    assert broker.now_ms(12.0) == 1_002_000


def test_observations_are_forgotten_by_their_age() -> None:
    broker = BrokerClock()
    broker.observe(100_000, 1.0)
    broker.observe(2_000, 2.0)
    assert broker.now_ms(2.0) == 101_000
    broker.observe(300_000, 2.0 + WINDOW_S)
    assert broker.now_ms(2.0 + WINDOW_S) == 2_000 + WINDOW_S * 1000
    assert broker.now_ms(1e6) > 1e8, "the last thing known is never forgotten"


def test_a_broker_set_back_is_believed_at_the_next_acknowledgement() -> None:
    broker = BrokerClock()
    broker.observe_acknowledgement(100_000, 1.0)
    broker.observe_acknowledgement(90_000, 2.0)  # a late one
    assert broker.now_ms(2.0) == 101_000
    broker.observe_acknowledgement(2_000, 3.0)
    assert broker.now_ms(3.0) == 2_000


def test_only_an_acknowledgement_settles_the_clock() -> None:
    broker = BrokerClock()
    broker.observe(5, 1.0)
    assert not broker.settled
    broker.observe_acknowledgement(6, 1.0)
    assert broker.settled
