"""Expressions: a small part of Python's syntax, evaluated over plain JSON values.

`order.total > 5000 and order.currency in ["EUR", "USD"]`. Only the functions of `functions.py` can be called, nothing
can be changed, and every evaluation has a budget. Whole numbers are exact and fractions are decimal: 0.1 + 0.2 is 0.3.
A missing name is an error that names its path; only `default(order.note, "")` accepts one.
"""

from __future__ import annotations

import ast
import keyword
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Struct

from ..errors import TwiceproofError
from ..flows.engine.step_errors import BrokenFlowText
from .functions import FUNCTIONS
from .values import (
    AT_ONCE,
    EXACT,
    QUOTIENT,
    BadValue,
    EvaluationBudget,
    Missing,
    added,
    bounded,
    compared,
    contains,
    exact,
    items_of,
    negated,
    number,
    parts_of,
    quotient,
    remainder,
    same_word,
    shown,
    step_into,
    truth,
)

__all__ = ["Expression", "ExpressionError", "NameUse", "compiled", "holds", "json_number", "plain", "to_plain"]


LONGEST = 2_000  # characters
DEEPEST = 40
MOST_DIGITS = 350  # before or after the point of a number; a JSON number has fewer

_KEYWORD_FIELD = re.compile(rf"(?<=[\w\])])\.({'|'.join(keyword.kwlist)})\b")

CONSTANTS = {"null": None, "true": True, "false": False}


class ExpressionError(TwiceproofError, ValueError):
    """An expression that cannot be read. `column` is counted from zero."""

    def __init__(self, message: str, column: int = 0) -> None:
        super().__init__(message)
        self.column = column


class NameUse(Struct, frozen=True):
    """One name that is read: its path, as far as it is constant, and its place. `optional`: inside `default(…)`."""

    path: tuple[str, ...]
    column: int
    optional: bool = False


Scope = Mapping[str, Any]
Evaluate = Callable[[Scope, EvaluationBudget], Any]


class Expression(Struct, frozen=True):
    """A compiled expression, and the names that it reads."""

    text: str
    names: tuple[NameUse, ...]
    run: Any

    def evaluate(self, scope: Scope) -> Any:
        """Return its value, as plain JSON. Raises Missing, or BrokenFlowText for a value that does not fit."""
        try:
            return plain(self.run(scope, EvaluationBudget()))
        except BadValue as error:
            raise BrokenFlowText(f"{self.text!r} cannot be evaluated: {error}", final=True) from None
        except ArithmeticError:  # of decimals too: what 200 digits do not hold is refused, and never rounded
            raise BrokenFlowText(f"{self.text!r} divides by zero, or its number is too large.", final=True) from None


@lru_cache(2_000)
def compiled(text: str) -> Expression:
    """Compile an expression. Raises ExpressionError, with the column."""
    if len(text) > LONGEST:
        raise ExpressionError(f"the expression is longer than {LONGEST:,} characters")
    source = text.strip()
    try:
        tree = ast.parse(source, mode="eval")
    except SyntaxError as error:
        column = error.offset - 1 if error.offset else len(text.rstrip())  # 0: it ends too early
        if (field := _KEYWORD_FIELD.search(source)) is not None:
            raise ExpressionError(
                f'.{field[1]} is a word of the language; write ["{field[1]}"]', field.start()
            ) from None
        raise ExpressionError(f"cannot be read: {error.msg}", column) from None
    except (ValueError, RecursionError, MemoryError):
        raise ExpressionError("cannot be read: it has a sign or a nesting that no expression has") from None
    compiler = _Compiler(source)
    run = compiler.compile(tree.body, 0)
    return Expression(text, tuple(compiler.names), run)


def holds(field: str, condition: Expression, scope: Scope) -> bool:
    """Evaluate a condition. Raises BrokenFlowText for any other value than true and false: a text like "no" would count
    as one of them, silently."""
    found = condition.evaluate(scope)
    if isinstance(found, bool):
        return found
    raise BrokenFlowText(f"{field}: {condition.text} is neither true nor false; compare it with something.", final=True)


def plain(value: Any) -> Any:
    """Return a value as JSON has it. A fraction becomes a JSON number with the same digits, or is refused."""
    if isinstance(value, Decimal):
        return json_number(value)
    if isinstance(value, list):
        return [plain(item) for item in value]
    return {name: plain(item) for name, item in value.items()} if isinstance(value, dict) else value


def json_number(value: Decimal) -> int | float:
    """Return a JSON number. Raises BrokenFlowText for other digits: an amount must not be rounded silently."""
    if value == value.to_integral_value() and abs(value.adjusted()) < 300:
        whole = int(value)
        return whole if value.as_tuple().exponent == 0 else float(value) if float(value) == whole else whole
    made = float(value)
    if Decimal(repr(made)) != value:
        raise BrokenFlowText(
            f"{shown(value)} has more digits than a JSON number keeps; use round(x, 2), or text(x).", final=True
        )
    return made


# -- compiling -----------------------------------------------------------------------------------


_COMPARE: dict[type, Callable[[Any, Any], bool]] = {
    ast.Eq: lambda a, b: compared(a, b, operator.eq, ordered=False),
    ast.NotEq: lambda a, b: compared(a, b, operator.ne, ordered=False),
    ast.Lt: lambda a, b: compared(a, b, operator.lt),
    ast.LtE: lambda a, b: compared(a, b, operator.le),
    ast.Gt: lambda a, b: compared(a, b, operator.gt),
    ast.GtE: lambda a, b: compared(a, b, operator.ge),
    ast.In: lambda a, b: contains(b, a),
    ast.NotIn: lambda a, b: not contains(b, a),
    ast.Is: lambda a, b: same_word(a, b),
    ast.IsNot: lambda a, b: not same_word(a, b),
}
_ARITHMETIC: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: added(a, b),
    ast.Sub: lambda a, b: exact(a, b, EXACT.subtract, operator.sub),
    ast.Mult: lambda a, b: exact(a, b, EXACT.multiply, operator.mul),
    ast.Div: lambda a, b: QUOTIENT.divide(Decimal(number(a)), Decimal(number(b))),
    ast.FloorDiv: lambda a, b: exact(a, b, quotient, operator.floordiv),
    ast.Mod: lambda a, b: exact(a, b, remainder, operator.mod),
}


class _Compiler:
    """Makes a function of each part of the tree. Syntax that is not listed here is not part of the language."""

    def __init__(self, source: str) -> None:
        self._source = source
        self.names: list[NameUse] = []
        self._optional = False
        self._bound: list[str] = []

    def compile(self, node: ast.expr, depth: int) -> Evaluate:
        if depth > DEEPEST:
            raise ExpressionError("it is nested too deeply", node.col_offset)
        make = getattr(self, f"_{type(node).__name__.lower()}", None)
        if make is None:
            raise ExpressionError(f"{_construct(node)} is not part of the language", node.col_offset)
        run: Evaluate = make(node, depth + 1)

        def counted(scope: Scope, budget: EvaluationBudget) -> Any:
            budget.spend()
            return run(scope, budget)

        return counted

    def _constant(self, node: ast.Constant, depth: int) -> Evaluate:
        value: Any = node.value
        if isinstance(value, float):  # its digits as they are written: Python would round them
            value = Decimal(str(ast.get_source_segment(self._source, node)).replace("_", ""))
            if abs(value.adjusted()) > MOST_DIGITS:
                raise ExpressionError("the number is too large, or too small", node.col_offset)
        if isinstance(value, str) and not _is_unicode(value):
            raise ExpressionError("the text has half a character (\\ud800 to \\udfff)", node.col_offset)
        if not isinstance(value, str | int | Decimal) or isinstance(value, bool):
            raise ExpressionError(f"{node.value!r} is not JSON; write null, true or false", node.col_offset)
        return lambda scope, budget: value

    def _name(self, node: ast.Name, depth: int) -> Evaluate:
        return self._path(node, depth)

    def _attribute(self, node: ast.Attribute, depth: int) -> Evaluate:
        return self._path(node, depth)

    def _subscript(self, node: ast.Subscript, depth: int) -> Evaluate:
        return self._path(node, depth)

    def _path(self, node: ast.expr, depth: int) -> Evaluate:
        """Compile a name and its path: `order.lines[0].sku`. An item in brackets may itself be an expression."""
        steps: list[tuple[str, Evaluate]] = []
        while isinstance(node, ast.Attribute | ast.Subscript):
            steps.insert(0, self._step(node, depth))
            node = node.value
        if not isinstance(node, ast.Name):
            start = self.compile(node, depth)
            return _walk("(…)", start, steps)
        if node.id in CONSTANTS:
            if steps:
                raise ExpressionError(f"{node.id} has no fields", node.col_offset)
            value = CONSTANTS[node.id]
            return lambda scope, budget: value
        if node.id.startswith("_"):
            raise ExpressionError(f"{node.id} begins with _, as no name does", node.col_offset)
        if node.id not in self._bound:
            path = (node.id, *(text.lstrip(".") for text, _ in _leading(steps)))
            self.names.append(NameUse(path, node.col_offset, self._optional))
        return _walk(node.id, _lookup(node.id), steps)

    def _step(self, node: ast.Attribute | ast.Subscript, depth: int) -> tuple[str, Evaluate]:
        if isinstance(node, ast.Attribute):
            if node.attr.startswith("_"):
                raise ExpressionError(f".{node.attr} begins with _, as no field does", node.col_offset)
            name = node.attr
            return f".{name}", lambda scope, budget: name
        if isinstance(node.slice, ast.Slice | ast.Tuple):
            raise ExpressionError("a range of items is not part of the language", node.col_offset)
        return "[…]", self.compile(node.slice, depth)

    def _boolop(self, node: ast.BoolOp, depth: int) -> Evaluate:
        parts = [self.compile(value, depth) for value in node.values]
        stops_at = isinstance(node.op, ast.Or)

        def run(scope: Scope, budget: EvaluationBudget) -> bool:
            return stops_at if any(truth(part(scope, budget)) is stops_at for part in parts) else not stops_at

        return run

    def _unaryop(self, node: ast.UnaryOp, depth: int) -> Evaluate:
        inner = self.compile(node.operand, depth)
        if isinstance(node.op, ast.Not):
            return lambda scope, budget: not truth(inner(scope, budget))
        if isinstance(node.op, ast.USub):
            return lambda scope, budget: negated(number(inner(scope, budget)))
        raise ExpressionError("this sign is not part of the language", node.col_offset)

    def _binop(self, node: ast.BinOp, depth: int) -> Evaluate:
        work = _ARITHMETIC.get(type(node.op))
        if work is None:
            raise ExpressionError("of the signs between numbers there are + - * / // %", node.col_offset)
        left, right = self.compile(node.left, depth), self.compile(node.right, depth)
        return lambda scope, budget: budget.made(work(left(scope, budget), right(scope, budget)))

    def _compare(self, node: ast.Compare, depth: int) -> Evaluate:
        first = self.compile(node.left, depth)
        rest = [
            (isinstance(sign, ast.In | ast.NotIn), _COMPARE[type(sign)], self.compile(value, depth))
            for sign, value in zip(node.ops, node.comparators, strict=True)
        ]

        def run(scope: Scope, budget: EvaluationBudget) -> bool:
            left = first(scope, budget)
            for looks, fits, part in rest:
                right = part(scope, budget)
                _weigh_both(left, right, budget, looks=looks)
                if not fits(left, right):
                    return False
                left = right
            return True

        return run

    def _ifexp(self, node: ast.IfExp, depth: int) -> Evaluate:
        test, then, otherwise = (self.compile(part, depth) for part in (node.test, node.body, node.orelse))
        return lambda scope, budget: (then if truth(test(scope, budget)) else otherwise)(scope, budget)

    def _list(self, node: ast.List, depth: int) -> Evaluate:
        items = [self.compile(item, depth) for item in node.elts]
        return lambda scope, budget: [item(scope, budget) for item in items]

    def _dict(self, node: ast.Dict, depth: int) -> Evaluate:
        pairs: list[tuple[str, Evaluate]] = []
        for key, value in zip(node.keys, node.values, strict=True):
            if not (isinstance(key, ast.Constant) and isinstance(key.value, str)):
                raise ExpressionError('a map\'s names are texts: {"id": order.id}', node.col_offset)
            pairs.append((key.value, self.compile(value, depth)))
        return lambda scope, budget: {name: value(scope, budget) for name, value in pairs}

    def _listcomp(self, node: ast.ListComp, depth: int) -> Evaluate:
        """`[line.sku for line in order.lines if line.qty > 0]`, of one level."""
        (source,) = node.generators if len(node.generators) == 1 else (None,)
        if source is None or not isinstance(source.target, ast.Name) or source.is_async or self._bound:
            raise ExpressionError("of lists there is [x.sku for x in lines if …], of one level", node.col_offset)
        items = self.compile(source.iter, depth)
        name = source.target.id
        self._bound.append(name)
        made = self.compile(node.elt, depth)
        tests = [self.compile(test, depth) for test in source.ifs]
        self._bound.pop()

        def run(scope: Scope, budget: EvaluationBudget) -> list[Any]:
            found: list[Any] = []
            for item in items_of(items(scope, budget)):
                inner = {**scope, name: item}
                if all(truth(test(inner, budget)) for test in tests):
                    found.append(made(inner, budget))
            return found

        return run

    def _call(self, node: ast.Call, depth: int) -> Evaluate:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if node.keywords or any(isinstance(arg, ast.Starred) for arg in node.args):
            raise ExpressionError("arguments are given by place: round(total, 2)", node.col_offset)
        if name == "default":
            return self._default(node, depth)
        known = FUNCTIONS.get(name)
        if known is None:
            there = ", ".join([*FUNCTIONS, "default"])
            raise ExpressionError(f"there is no function {name or '…'}; there are {there}", node.col_offset)
        if not known.least <= len(node.args) <= known.most:
            raise ExpressionError(f"{name} is called as {known.usage}", node.col_offset)
        parts = [self.compile(arg, depth) for arg in node.args]

        def run(scope: Scope, budget: EvaluationBudget) -> Any:
            given = [part(scope, budget) for part in parts]
            for value in given:
                if known.whole:
                    budget.weigh(value, 1)
                elif isinstance(value, list | dict):
                    budget.spend(len(value))
                elif isinstance(value, str):
                    budget.made(value)
            return budget.made(bounded(known.work(*given)))

        return run

    def _default(self, node: ast.Call, depth: int) -> Evaluate:
        if len(node.args) != 2:
            raise ExpressionError('default is called as default(order.note, "")', node.col_offset)
        outer, self._optional = self._optional, True
        wanted = self.compile(node.args[0], depth)
        self._optional = outer
        otherwise = self.compile(node.args[1], depth)

        def run(scope: Scope, budget: EvaluationBudget) -> Any:
            try:
                found = wanted(scope, budget)
            except Missing:
                found = None
            return otherwise(scope, budget) if found is None else found

        return run


def _leading(steps: list[tuple[str, Evaluate]]) -> Iterator[tuple[str, Evaluate]]:
    """Return the constant beginning of a path: after an item in brackets it depends on the data."""
    for step in steps:
        if not step[0].startswith("."):
            return
        yield step


def _is_unicode(text: str) -> bool:
    """Half of a character that is written as two cannot be stored or sent."""
    return not any("\ud800" <= sign <= "\udfff" for sign in text)


def _construct(node: ast.expr) -> str:
    words = {"Lambda": "lambda", "NamedExpr": ":=", "JoinedStr": "f-strings", "Await": "await", "Starred": "*"}
    words |= {"DictComp": "a map made in a loop", "SetComp": "a set", "Set": "a set", "Tuple": "a tuple; write [a, b]"}
    return words.get(type(node).__name__, type(node).__name__)


# -- evaluating ----------------------------------------------------------------------------------


def _weigh_both(left: Any, right: Any, budget: EvaluationBudget, *, looks: bool) -> None:
    """Spend for a comparison, or for a look into a list, which compares with each of its items."""
    if looks and isinstance(right, dict):
        return
    budget.weigh(right)
    budget.weigh(left)
    if looks and isinstance(left, list | dict) and isinstance(right, list):
        budget.spend(len(right) * parts_of(left, budget.left) / AT_ONCE)


def _lookup(name: str) -> Evaluate:
    def run(scope: Scope, budget: EvaluationBudget) -> Any:
        try:
            return scope[name]
        except KeyError:
            raise Missing(name, "there is no such name here") from None

    return run


def _walk(start: str, first: Evaluate, steps: list[tuple[str, Evaluate]]) -> Evaluate:
    if not steps:
        return first

    def run(scope: Scope, budget: EvaluationBudget) -> Any:
        value, path = first(scope, budget), start
        for text, part in steps:
            at = part(scope, budget)
            path += f"[{shown(at)}]" if text == "[…]" else text
            value = step_into(value, at, path)
        return value

    return run


def to_plain(value: Any) -> Any:
    """Return what a step returned, or was given, as the plain data that expressions read."""
    return value if isinstance(value, dict | list | str | int | float) or value is None else msgspec.to_builtins(value)
