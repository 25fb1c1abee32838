"""The broker's clock."""

from __future__ import annotations

from worker import clock


def test_nothing_is_known_before_the_first_timestamp() -> None:
    assert clock.BrokerClock().now_ms(123.0) == 0.0


def test_it_never_runs_ahead_of_the_broker_and_follows_the_tightest_proof() -> None:
    broker = clock.BrokerClock()
    broker.observe(1_000, 10.0)  # an old record: its lead is small
    assert broker.now_ms(10.0) == 1_000
    broker.observe(5_000, 10.5)  # a fresh one
    assert broker.now_ms(10.5) == 5_000
    broker.observe(5_100, 12.0)  # came late: proves less
    assert broker.now_ms(12.0) == 6_500


def test_a_broker_set_back_is_believed_after_enough_samples() -> None:
    broker = clock.BrokerClock()
    broker.observe(100_000, 1.0)
    for i in range(300):
        broker.observe(2_000 + i, 2.0 + i / 1000)
    assert broker.now_ms(2.3) < 3_000


def test_only_an_acknowledgement_settles_it() -> None:
    broker = clock.BrokerClock()
    broker.observe(5, 1.0)
    assert not broker.settled
    broker.acknowledged(6, 1.0)
    assert broker.settled
