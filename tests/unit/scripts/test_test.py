"""How `make test` reads pytest's report, and what it makes of durations."""

from __future__ import annotations

from scripts import test as runner

REPORT = """<testsuites><testsuite>
<testcase classname="tests.unit.scripts.test_test" name="test_a[x]" time="1.5"/>
<testcase classname="tests.unit.scripts.test_test.TestB" name="test_b" time="0.5">
  <failure message="no"/></testcase>
<testcase classname="tests.contract.test_log" name="test_c" time="4">
  <error message="no"/></testcase>
<testcase classname="tests.contract.test_log" name="test_d" time="0">
  <skipped message="no broker"/></testcase>
<testcase classname="" name="tests.journey.test_gone" time="0"><error message="import"/></testcase>
</testsuite></testsuites>"""


def test_a_report_is_counted_by_tier_and_file() -> None:
    report = runner.read_report(REPORT)
    here = "tests/unit/scripts/test_test.py"
    assert report.seconds == {
        here: 2.0,
        "tests/contract/test_log.py": 4.0,
        "tests.journey.test_gone": 0.0,
    }
    assert report.count[here] == 2
    unit, contract = report.tiers["unit"], report.tiers["contract"]
    assert (unit.passed, unit.failures) == (1, ["tests.unit.scripts.test_test.TestB.test_b"])
    assert contract.failures == ["tests.contract.test_log.test_c"]
    assert dict(contract.skips) == {"no broker": 1}
    assert contract.line.startswith("tier contract  FAILED  0 passed, 1 failed, 1 skipped")


def test_a_module_that_cannot_be_imported_is_a_failure_of_its_tier() -> None:
    journey = runner.read_report(REPORT).tiers["journey"]
    assert journey.failures == ["tests.journey.test_gone.tests.journey.test_gone"]
    assert "FAILED" in journey.line


def test_a_tier_of_which_nothing_ran_says_so() -> None:
    assert "SKIPPED: no test of it" in runner.read_report("<testsuites/>").tiers["faults"].line


def test_only_files_that_take_much_longer_than_expected_are_named() -> None:
    seconds, expected = {"a.py": 61, "b.py": 61, "c.py": 13}, {"b.py": 30, "c.py": 4}
    lines = runner.over_budget(seconds, expected, default_s=20)
    assert [line.split()[0] for line in lines] == []
    assert runner.over_budget(seconds, {"b.py": 30}, 6)[0].startswith("a.py took 61 s; 12 s are")


def test_a_busy_machine_makes_no_file_too_slow() -> None:
    expected = {f"{n}.py": 10.0 for n in range(9)}
    busy = dict.fromkeys(expected, 60.0)
    assert runner.over_budget(busy, expected, 5) == []
    [line] = runner.over_budget(busy | {"3.py": 200.0}, expected, 5)
    assert line.startswith("3.py took 200 s; 60 s are expected")
