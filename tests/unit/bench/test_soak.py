"""What a soak says of its samples."""

from __future__ import annotations

import pytest

from bench import report, soak


def rising(
    part: str, value: str, start: float, per_sample: float, n: int = 30
) -> list[soak.Sample]:
    return [soak.Sample(i * 10.0, part, {value: start + i * per_sample}) for i in range(n)]


def test_a_line_has_its_slope_and_noise_around_a_constant_has_next_to_none() -> None:
    assert soak.slope([(x, 3.0 + 0.5 * x) for x in range(10)]) == pytest.approx(0.5)
    assert soak.slope([(x, 7.0 + (-1) ** x) for x in range(100)]) == pytest.approx(0, abs=0.001)
    assert soak.slope([(1.0, 2.0)]) == soak.slope([(1.0, 2.0), (1.0, 4.0)]) == 0


def test_a_trend_leaves_out_the_warm_up_and_is_per_hour() -> None:
    filling = [soak.Sample(i * 10.0, "worker-1", {"resident_mb": 50.0 + i}) for i in range(10)]
    flat = [soak.Sample(100 + i * 10.0, "worker-1", {"resident_mb": 60.0}) for i in range(20)]
    (trend,) = soak.trends([*filling, *flat])
    assert (trend.first, trend.last, trend.most, trend.per_hour) == (50, 60, 60, 0)
    (trend,) = soak.trends(rising("push-1", "files", 20, 1))
    assert trend.per_hour == pytest.approx(360)


def test_the_report_names_each_part_and_value_in_order() -> None:
    found = soak.trends(
        [
            *rising("worker-1", "tasks", 5, 0),
            *rising("redis-1", "keys", 9, 0),
            *rising("gateway-1", "resident_mb", 70, 0),
        ]
    )
    assert [(t.part, t.value) for t in found] == [
        ("gateway-1", "resident_mb"),
        ("worker-1", "tasks"),
        ("redis-1", "keys"),
    ]
    text = report.tables([soak.SUITE], soak.rows(found))
    assert "### gateway-1" in text
    assert "| resident_mb | 70.0 | 70.0 | 70.0 | 0 |" in text
