"""Templates and expressions of a pipeline, in a sandbox (pure).

The author of a pipeline's file must not read the runner's memory with it, and a record must not
stop the runner. So a template may use only a part of Jinja: no macros, no recursion, no `random`,
and of values only the methods of `_METHODS`. The rest works in steps, which are counted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sized
from typing import Any, Final, TypeVar

import jinja2
import jinja2.filters
import jinja2.nodes
import jinja2.sandbox
import jinja2.visitor

from pipelines import definition

T = TypeVar("T")

MAX_PROMPT: Final = 400_000  # characters
MAX_STEPS: Final = 200_000  # of one rendering: items that are looked at, calls, 100 characters each
MAX_RANGE: Final = 10_000
MAX_BITS: Final = 4_096  # of an integer that is computed
_CHARACTERS: Final = 100  # are a step

# Allowed methods of values. Others create large texts (`center`, `replace`), or read formats.
_METHODS: Final[Mapping[type, frozenset[str]]] = {
    str: frozenset(
        {
            *("capitalize", "casefold", "lower", "title", "upper"),
            *("endswith", "startswith", "isalnum", "isalpha", "isdigit", "islower", "isupper"),
            *("lstrip", "removeprefix", "removesuffix", "rstrip", "strip"),
            *("partition", "rpartition", "rsplit", "split", "splitlines"),
        }
    ),
    dict: frozenset({"get", "items", "keys", "values"}),
    list: frozenset({"index", "count"}),
    tuple: frozenset({"index", "count"}),
    int: frozenset(),
    float: frozenset(),
}
_CHEAP: Final = ("abs", "count", "d", "default", "first", "last", "length", "round")
_FILTERS: Final = (
    *("capitalize", "float", "int", "lower", "string", "striptags", "title", "trim", "truncate"),
    *("upper", "urlencode", "wordcount"),
    *("dictsort", "groupby", "items", "list", "map", "max", "min", "reject", "rejectattr"),
    *("reverse", "select", "selectattr", "sort", "sum", "unique"),
)
_REFUSED: Final[Mapping[type, str]] = {
    jinja2.nodes.Macro: "macro",
    jinja2.nodes.CallBlock: "call",
    jinja2.nodes.Include: "include",
    jinja2.nodes.Import: "import",
    jinja2.nodes.FromImport: "from",
    jinja2.nodes.Extends: "extends",
    jinja2.nodes.Block: "block",
}


class Unusable(Exception):
    """A record does not fit a template. The text is for its dead letter."""


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Attributes:
    _steps: that the rendering has left. Rendering never waits, so there is one at a time.
    """

    intercepted_binops = frozenset({"*", "**", "%", "+"})

    def __init__(self) -> None:
        super().__init__(
            undefined=jinja2.StrictUndefined, autoescape=False, keep_trailing_newline=True
        )
        self._steps = MAX_STEPS
        self.globals = {"range": self._range, "dict": dict}
        self.filters = {
            **{name: jinja2.filters.FILTERS[name] for name in _CHEAP},
            **{name: self._count_steps(jinja2.filters.FILTERS[name]) for name in _FILTERS},
            "join": self._join,
            "replace": self._replace,
            "tojson": self._tojson,
            "counted": self._items,
            "within": self._within,
        }

    def begin(self) -> None:
        """A rendering begins."""
        self._steps = MAX_STEPS

    def step(self, many: int = 1) -> None:
        """Raises Unusable: there were too many of them."""
        self._steps -= many
        if self._steps < 0:
            raise Unusable(f"the template takes more than {MAX_STEPS} steps")

    def _count_size(self, value: object) -> None:
        size = len(value) if isinstance(value, Sized) else 1
        self.step(1 + (size // _CHARACTERS if isinstance(value, str) else size))

    def _items(self, value: Any) -> Iterator[Any]:
        """The items of a loop."""
        for item in value:
            self.step()
            yield item

    def _within(self, value: Any) -> Any:
        """The operand of `in`."""
        self._count_size(value)
        return value

    def _count_steps(self, filter_: Callable[..., Any]) -> Callable[..., Any]:
        has_context_arg = hasattr(filter_, "jinja_pass_arg")

        def counting(*args: Any, **kwargs: Any) -> Any:
            self._count_size(args[1 if has_context_arg else 0])
            return filter_(*args, **kwargs)

        if has_context_arg:
            counting.jinja_pass_arg = filter_.jinja_pass_arg  # type: ignore[attr-defined]
        return counting

    def _range(self, *bounds: int) -> range:
        numbers = range(*bounds)
        if len(numbers) > MAX_RANGE:
            raise Unusable(f"a range of more than {MAX_RANGE} numbers")
        return numbers

    def _join(self, values: Any, between: Any = "", attribute: str | int | None = None) -> str:
        self._count_size(values)
        if attribute is not None:
            values = map(jinja2.filters.make_attrgetter(self, attribute), values)
        parts: list[str] = []
        length = 0
        for value in values:
            self.step()
            parts.append(str(value))
            length += len(parts[-1]) + len(str(between))
            _check_length(length)
        return str(between).join(parts)

    def _replace(self, value: Any, old: Any, new: Any, count: int = -1) -> str:
        text = str(value)
        self._count_size(text)
        many = text.count(str(old)) if count < 0 else min(count, text.count(str(old)))
        _check_length(len(text) + many * len(str(new)))
        return text.replace(str(old), str(new), count)

    def _tojson(self, value: Any, indent: int | None = None) -> str:
        """Plain JSON: Jinja's own filter escapes for web pages."""
        self._count_size(value)
        return json.dumps(value, ensure_ascii=False, indent=None if indent is None else 2)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Allow only the methods above of a record's values."""
        methods = next((names for kind, names in _METHODS.items() if isinstance(obj, kind)), None)
        if methods is not None and attr not in methods:
            return False
        return super().is_safe_attribute(obj, attr, value)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """`record.items` is the record's member of that name, if it has one."""
        if isinstance(obj, dict) and attribute in obj:
            return obj[attribute]
        return super().getattr(obj, attribute)

    def wrap_str_format(self, value: Any) -> None:
        """Treat `format` like other methods; it is not allowed."""

    def call(self, context: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
        self._count_size(getattr(obj, "__self__", None))
        return super().call(context, obj, *args, **kwargs)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Bound results that could be much larger than their operands."""
        numbers = isinstance(left, int | float) and isinstance(right, int | float)
        if operator == "+" and not numbers:
            if isinstance(left, Sized) and isinstance(right, Sized):
                _check_length(len(left) + len(right))
                self.step(1 + (len(left) + len(right)) // _CHARACTERS)
        elif not numbers:
            raise Unusable(f"`{operator}` is for numbers")
        elif isinstance(left, int) and isinstance(right, int):
            bits = {
                "*": left.bit_length() + right.bit_length(),
                "**": left.bit_length() * max(0, right),
            }
            if bits.get(operator, 0) > MAX_BITS:
                raise Unusable(f"a number of more than {MAX_BITS} bits")
        return super().call_binop(context, operator, left, right)

    def _generate(self, source: jinja2.nodes.Template, *args: Any, **kwargs: Any) -> str:
        return super()._generate(_Bounding().visit(source), *args, **kwargs)


class _Bounding(jinja2.visitor.NodeTransformer):
    """Adds the counting of steps to a template. Raises TemplateSyntaxError: it has a forbidden
    statement."""

    def generic_visit(self, node: jinja2.nodes.Node, *args: Any, **kwargs: Any) -> Any:
        if type(node) in _REFUSED:
            raise jinja2.TemplateSyntaxError(f"no {_REFUSED[type(node)]} here", node.lineno)
        return super().generic_visit(node, *args, **kwargs)

    def visit_For(self, node: jinja2.nodes.For) -> Any:
        self.generic_visit(node)
        if node.recursive:
            raise jinja2.TemplateSyntaxError("no recursive loop here", node.lineno)
        node.iter = _filter(node.iter, "counted")
        return node

    def visit_Operand(self, node: jinja2.nodes.Operand) -> Any:
        self.generic_visit(node)
        if node.op in ("in", "notin"):
            node.expr = _filter(node.expr, "within")
        return node

    def visit_Concat(self, node: jinja2.nodes.Concat) -> Any:
        self.generic_visit(node)
        return _filter(jinja2.nodes.List(node.nodes, lineno=node.lineno), "join")


def _filter(node: Any, name: str) -> jinja2.nodes.Filter:
    node_filter = jinja2.nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)
    node_filter.set_environment(node.environment or _environment)
    return node_filter


def _check_length(length: int) -> None:
    if length > MAX_PROMPT:
        raise Unusable(f"more than {MAX_PROMPT} characters")


_environment: Final = _Environment()


def _compile(compile_: Callable[[], T], where: str) -> T:
    try:
        return compile_()
    except jinja2.TemplateSyntaxError as error:
        raise definition.Invalid(f"{where}, line {error.lineno}: {error.message}") from error
    except (RecursionError, SyntaxError, MemoryError) as error:
        raise definition.Invalid(f"{where}: nested too deeply") from error


def _work(work: Callable[[], T]) -> T:
    _environment.begin()
    try:
        return work()
    except Unusable:
        raise
    except Exception as error:  # a template may raise any error
        raise Unusable(f"{type(error).__name__}: {error}"[:500]) from error


class Template:
    """A compiled template."""

    def __init__(self, text: str, where: str) -> None:
        """`where`: names it in errors. Raises definition.Invalid."""
        self._template = _compile(lambda: _environment.from_string(text), where)

    def text(self, values: Mapping[str, Any]) -> str:
        """The text for these values. Raises Unusable."""
        return _work(lambda: self._text(values))

    def _text(self, values: Mapping[str, Any]) -> str:
        parts, length = [], 0
        for part in self._template.generate(values):
            parts.append(part)
            length += len(part)
            if length > MAX_PROMPT:
                raise Unusable(f"the prompt has more than {MAX_PROMPT} characters")
        return "".join(parts)


class Expression:
    """A compiled expression."""

    def __init__(self, text: str, where: str) -> None:
        """`where`: names it in errors. Raises definition.Invalid."""
        self._value = _compile(
            lambda: _environment.compile_expression(text, undefined_to_none=False), where
        )

    def value(self, values: Mapping[str, Any]) -> Any:
        """Its value. Raises Unusable."""
        return _work(lambda: self._evaluate(values))

    def _evaluate(self, values: Mapping[str, Any]) -> Any:
        value = self._value(**values)
        if isinstance(value, jinja2.Undefined):
            str(value)  # strict: raises, and says what is undefined
        return value
