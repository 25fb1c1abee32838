"""The table of attacks: every number has its tests, and each of them exists."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.attacks import __main__ as attacks_command
from tests.attacks import rows
from tests.support import cases

ROOT = Path(__file__).resolve().parents[2]


def test_every_attack_is_there_once() -> None:
    assert [attack.number for attack in rows.ATTACKS] == list(range(1, 31))


@cases.each("attack", rows.ATTACKS, ids=lambda attack: str(attack.number))
def test_the_tests_of_an_attack_exist(attack: rows.Attack) -> None:
    assert attack.tests
    for test in attack.tests:
        file, _, name = test.partition("::")
        tree = ast.parse((ROOT / file).read_text())
        functions = ast.FunctionDef | ast.AsyncFunctionDef
        assert name in {node.name for node in tree.body if isinstance(node, functions)}, test


REPORT = """<testsuites><testsuite>
<testcase classname="tests.attacks.test_a" name="test_good[1]"/>
<testcase classname="tests.attacks.test_a" name="test_good[2]"/>
<testcase classname="tests.attacks.test_a" name="test_bad[1]"/>
<testcase classname="tests.attacks.test_a" name="test_bad[2]"><failure/></testcase>
<testcase classname="tests.attacks.test_a" name="test_left_out"><skipped/></testcase>
</testsuite></testsuites>"""


@cases.each(
    ("tests", "verdict"),
    [
        (["test_good"], "ok"),
        (["test_good", "test_bad"], "FAILED"),
        (["test_good", "test_left_out"], "skipped"),
        (["test_good", "test_unknown"], "did not run"),
    ],
)
def test_an_attack_is_withstood_when_all_of_its_tests_ran(tests: list[str], verdict: str) -> None:
    named = tuple(f"tests/attacks/test_a.py::{test}" for test in tests)
    attack = rows.Attack(7, "an attack", "a refusal", named)
    line = attacks_command.line(attack, attacks_command.verdicts(REPORT))
    assert line.split()[1] == verdict.split()[0]
    assert verdict in line


def test_an_attack_without_a_number_has_a_line_of_its_own() -> None:
    found = {"tests/attacks/test_x.py::test_one_thing": ["ok", "FAILED"], "tests/y.py::test_y": []}
    assert attacks_command.others(found) == ["  –  FAILED       one thing"]
