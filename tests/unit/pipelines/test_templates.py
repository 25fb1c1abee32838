"""Templates: what they may do, and that no record makes one work for long."""

from __future__ import annotations

import time
from typing import Any

import pytest

from pipelines import definition
from pipelines.templates import MAX_PROMPT, Expression, Template, Unusable
from tests.support import cases

LARGE: dict[str, Any] = {
    "record": {
        "list": ["x"] * 100_000,
        "rows": [[0] * 1_000] * 1_000,
        "number": 10**9,
        "text": "ab" * 100_000,
        "width": "{:1000000000}",
    }
}


def text(template: str, **record: Any) -> str:
    return Template(template, "prompt.user").text({"record": record})


def value(expression: str, **record: Any) -> Any:
    return Expression(expression, "where").value({"record": record})


def test_what_prompts_are_made_of() -> None:
    template = (
        "{% for m in record.messages if m.text %}{{ loop.index }} {{ m.who|upper }}: {{ m.text }}\n"
        "{% else %}nothing{% endfor %}"
    )
    messages = [{"who": "ann", "text": "Hi"}, {"who": "bob", "text": ""}]
    assert text(template, messages=messages) == "1 ANN: Hi\n"
    assert text(template, messages=[]) == "nothing"
    assert text("{{ record.a|map('string')|join(', ') }}", a=[1, 2]) == "1, 2"
    assert text("{{ record.a|map(attribute='n')|sum }}", a=[{"n": 1}, {"n": 2}]) == "3"
    assert text("{{ record.a|replace('b', 'c') }} {{ 7 % 4 * 2 }}", a="abb") == "acc 6"
    assert text("{{ 'de/' ~ record.id ~ none }}", id=3) == "de/3None"
    assert text("{% for k, v in record.a.items() %}{{ k }}{{ v }}{% endfor %}", a={"x": 1}) == "x1"


def test_json_is_written_for_models_and_not_for_web_pages() -> None:
    assert text("{{ record.a|tojson }}", a={"t": "<ü'>"}) == '{"t": "<ü\'>"}'


def test_a_member_of_the_record_comes_before_a_method_of_its_name() -> None:
    assert text("{{ record.items }} {{ record.values }}", items=3, values="v") == "3 v"
    assert value("record.get('a', 5)", b=1) == 5


def test_what_is_undefined_is_said() -> None:
    with pytest.raises(Unusable, match="no attribute 'product'"):
        text("{{ record.product }}")
    with pytest.raises(Unusable, match="no attribute 'product'"):
        value("record.product")
    assert value("record.product is defined and record.product") is False


@cases.each(
    "template",
    [
        "{{ record.__class__ }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ record['__class__']['__mro__'] }}",
        "{{ [record]|map(attribute='__class__')|join }}",
        "{{ range.__globals__ }}",
        "{{ range.__self__ }}",
        "{{ dict.mro() }}",
        "{{ ''.format.__self__ }}",
        "{{ '{0.__class__}'.format(record) }}",
        "{{ self._TemplateReference__context }}",
        "{{ record.update({'a': 1}) }}",
        "{{ record.list.append(1) }}",
    ],
)
def test_nothing_leads_out_of_the_values(template: str) -> None:
    with pytest.raises(Unusable):
        text(template, list=[])


@cases.each(
    "template",
    [
        "{% for i in range(10**9) %}{% endfor %}",
        "{% for i in range(10000) %}{% for j in range(10000) %}{% endfor %}{% endfor %}",
        "{% for a in record.list %}{% for b in record.list %}{% endfor %}{% endfor %}",
        "{% for a in record.list %}{{ record.list|unique|list|length }}{% endfor %}",
        "{% for a in record.list %}{{ 'y' in record.list }}{% endfor %}",
        "{% for a in record.list %}{{ record.list.count('y') }}{% endfor %}",
        "{% for a in record.list %}{{ record.text|upper|length }}{% endfor %}",
        "{% for a in record.list if a in record.list %}{% endfor %}",
        "{{ record.text * record.number }}",
        "{{ record.list * record.number }}",
        "{{ record.number ** record.number }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ record.width.format(1) }}",
        "{{ record.text.replace('a', record.text) }}",
        "{{ record.text|replace('a', record.text) }}",
        "{{ record.list|join(record.text) }}",
        "{{ record.text ~ record.text ~ record.text }}",
        "{% set x = record.text + record.text %}{% set x = x + x %}{% set x = x + x %}",
        "{{ record.text.ljust(10**9) }}",
        "{{ (1).to_bytes(10**9) }}",
        "{% for a in record.list %}{{ record.text }}{% endfor %}",
    ],
)
def test_a_record_cannot_make_a_template_work_for_long(template: str) -> None:
    compiled = Template(template, "prompt.user")
    began = time.process_time()
    with pytest.raises(Unusable):
        compiled.text(LARGE)
    assert time.process_time() - began < 2.0


def test_expressions_are_bounded_too() -> None:
    with pytest.raises(Unusable, match="is for numbers"):
        Expression("record.text * record.number", "where").value(LARGE)
    assert Expression("record.list|length > 5 and 'x' in record.list", "where").value(LARGE)


def test_each_rendering_has_its_own_steps() -> None:
    template = Template("{% for a in record.list %}{% endfor %}", "prompt.user")
    assert [template.text(LARGE) for _ in range(5)] == [""] * 5


def test_a_prompt_is_bounded() -> None:
    assert len(text("{{ record.a }}", a="x" * MAX_PROMPT)) == MAX_PROMPT
    with pytest.raises(Unusable, match="more than"):
        text("{{ record.a }}{{ record.a }}", a="x" * (MAX_PROMPT // 2 + 1))


@cases.each(
    ("template", "why"),
    [
        ("a\n{% if %}", "prompt.user, line 2"),
        ("{{ a|random }}", "No filter named 'random'"),  # it would ask another question each time
        ("{% macro a() %}{{ a() }}{{ a() }}{% endmacro %}{{ a() }}", "no macro"),
        ("{% for x in y recursive %}{{ loop(y) }}{% endfor %}", "no recursive loop"),
        ("{% include 'secret' %}", "no include"),
        ("{% import 'secret' as s %}", "no import"),
        ("{% extends 'secret' %}", "no extends"),
        ("{{ " + "(" * 5_000 + ")" * 5_000 + " }}", "nested too deeply"),
    ],
)
def test_a_template_that_cannot_be_is_refused_with_its_place(template: str, why: str) -> None:
    with pytest.raises(definition.Invalid, match=why):
        Template(template, "prompt.user")


def test_an_expression_that_cannot_be_is_refused() -> None:
    with pytest.raises(definition.Invalid, match=r"alert\.when"):
        Expression("a ==", "alert.when")
