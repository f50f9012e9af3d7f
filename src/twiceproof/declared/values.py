"""The values of expressions: plain JSON, with exact numbers. How they are compared, added, shown and accessed."""

from __future__ import annotations

import operator
from collections.abc import Callable
from decimal import Context, Decimal, DivisionByZero, Inexact, InvalidOperation, Overflow
from typing import Any

from ..flows.engine.step_errors import BrokenFlowText
from ..keys.canonical import decimal_text

__all__ = [
    "AT_ONCE",
    "EXACT",
    "LONGEST_TEXT",
    "QUOTIENT",
    "BadValue",
    "EvaluationBudget",
    "Missing",
    "added",
    "bounded",
    "compared",
    "contains",
    "exact",
    "is_number",
    "items_of",
    "kind_of",
    "negated",
    "number",
    "parts_of",
    "quotient",
    "remainder",
    "same_word",
    "shown",
    "step_into",
    "text_of",
    "truth",
]


LONGEST_TEXT = 100_000
LONGEST_LIST = 10_000
MOST_BITS = 4_096

BUDGET = 20_000  # evaluated parts, including items of lists
AT_ONCE = 16  # values that are compared or copied at the cost of one part
TEXT_PART = 1_000  # characters that count as one part of a value

EXACT = Context(prec=200, traps=[InvalidOperation, DivisionByZero, Overflow, Inexact])
QUOTIENT = Context(prec=15, traps=[InvalidOperation, DivisionByZero, Overflow])  # as many digits as any float keeps


class BadValue(ValueError):
    """A value that does not fit the operation."""


class EvaluationBudget:
    """Counts what an evaluation does, so that a short expression cannot work for long."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left: float = BUDGET

    def spend(self, parts: float = 1) -> None:
        self.left -= parts
        if self.left < 0:
            raise BadValue(f"it needs more than {BUDGET:,} steps")

    def weigh(self, value: Any, at_once: int = AT_ONCE) -> None:
        """Spend for a value that is read as a whole, before it is: its size is the event's, and has no other bound."""
        if isinstance(value, list | dict | str):
            self.spend(parts_of(value, self.left * at_once) / at_once)

    def made(self, value: Any) -> Any:
        """Spend for a text or list that was made, so that a loop does not fill the memory."""
        if isinstance(value, str | list):
            self.spend(len(value) / (TEXT_PART if isinstance(value, str) else AT_ONCE))
        return value


def shown(value: Any) -> str:
    """Return a value for an error message: short, and never a whole payload."""
    if isinstance(value, dict | list):
        return "a map" if isinstance(value, dict) else "a list"
    if isinstance(value, str):
        return repr(value if len(value) <= 40 else value[:40] + "…")
    return {None: "null", True: "true", False: "false"}.get(value, str(value)) if not is_number(value) else str(value)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def number(value: Any) -> int | Decimal:
    """Return a number for calculation: whole numbers exactly, fractions in decimal."""
    if isinstance(value, float):
        return Decimal(repr(value))
    if isinstance(value, int | Decimal) and not isinstance(value, bool):
        return value
    raise BadValue(f"{shown(value)} is no number; write number(x) if it is a text of one")


def compared(a: Any, b: Any, holds: Callable[[Any, Any], bool], *, ordered: bool = True) -> bool:
    """Compare two values. Of two different kinds, neither is the larger."""
    if is_number(a) and is_number(b):
        return holds(number(a), number(b))
    if ordered and not (isinstance(a, str) and isinstance(b, str)):
        raise BadValue(f"{shown(a)} and {shown(b)} have no order; compare two numbers, or two texts")
    if isinstance(a, list | dict) and isinstance(b, list | dict):
        return holds(_comparable(a), _comparable(b))
    return holds((kind_of(a), a), (kind_of(b), b))


def kind_of(value: Any) -> str:
    return "number" if is_number(value) else type(value).__name__


def _comparable(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _comparable(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_comparable(item) for item in value]
    return ("number", Decimal(number(value))) if is_number(value) else (kind_of(value), value)


def text_of(value: Any) -> str:
    """Return a value's text: numbers in plain digits. Lists, maps and null have none."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float | Decimal):
        return decimal_text(Decimal(number(value)))
    raise BadValue(f"{shown(value)} has no text; name a field of it, or write json(x)")


class Missing(BrokenFlowText):
    """A name that an expression or a text reads is missing. Retrying cannot help: the data will be the same."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why}", final=True)
        self.path = path


def step_into(value: Any, at: Any, path: str) -> Any:
    """Return the field or item of a value. `path` is what an error calls it."""
    if isinstance(value, dict) and isinstance(at, str):
        if at in value:
            return value[at]
        raise Missing(path, f"there is none; there {'is' if len(value) == 1 else 'are'} {_listed(value)}")
    if isinstance(value, list) and isinstance(at, int) and not isinstance(at, bool):
        if -len(value) <= at < len(value):
            return value[at]
        raise Missing(path, f"the list has {len(value)} item{'s' * (len(value) != 1)}")
    raise Missing(path, f"what it is looked for in is {shown(value)}")


def _listed(value: dict[str, Any]) -> str:
    names = ", ".join(list(value)[:8])
    return f"{names}, …" if len(value) > 8 else names or "nothing in it"


def truth(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise BadValue(f"{shown(value)} is neither true nor false; compare it with something, as in x > 0 or x != null")


def items_of(value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    raise BadValue(f"{shown(value)} is no list")


def contains(container: Any, item: Any) -> bool:
    if isinstance(container, str):
        if not isinstance(item, str):
            raise BadValue(f"{shown(item)} is looked for in a text; write text(x) in …")
        return item in container
    if isinstance(container, dict):
        return isinstance(item, str) and item in container
    return any(compared(item, one, operator.eq, ordered=False) for one in items_of(container))


def same_word(a: Any, b: Any) -> bool:
    if a is None or b is None or isinstance(a, bool) or isinstance(b, bool):
        return a is b
    raise BadValue("is compares with null, true and false only; write ==")


def added(a: Any, b: Any) -> Any:
    if isinstance(a, str) and isinstance(b, str):
        return bounded(a + b)
    if isinstance(a, list) and isinstance(b, list):
        return bounded(a + b)
    if isinstance(a, str) or isinstance(b, str):
        raise BadValue(f"{shown(a)} + {shown(b)}: a text and something else; write text(x), or number(x)")
    return exact(a, b, EXACT.add, operator.add)


def exact(a: Any, b: Any, decimal_work: Callable[..., Decimal], int_work: Callable[[int, int], int]) -> Any:
    left, right = number(a), number(b)
    if isinstance(left, int) and isinstance(right, int):
        return bounded(int_work(left, right))
    return bounded(decimal_work(Decimal(left), Decimal(right)))


def negated(value: int | Decimal) -> int | Decimal:
    return EXACT.minus(value) if isinstance(value, Decimal) else -value


def quotient(a: Decimal, b: Decimal) -> Decimal:
    """`//`, rounded down as for whole numbers: -7.5 // 2 is -4."""
    whole = EXACT.divide_int(a, b)
    is_above = EXACT.remainder(a, b) != 0 and (a < 0) != (b < 0)
    return EXACT.subtract(whole, Decimal(1)) if is_above else whole


def remainder(a: Decimal, b: Decimal) -> Decimal:
    """`%`, with the sign of the divisor as for whole numbers: -7.5 % 2 is 0.5."""
    rest = EXACT.remainder(a, b)
    return EXACT.add(rest, b) if rest != 0 and (rest < 0) != (b < 0) else rest


def parts_of(value: Any, most: float) -> int:
    """Count the values in a value, itself included; a long text counts as several. Stops soon after `most`."""
    count, rest = 0, [value]
    while rest and count <= most:
        one = rest.pop()
        count += 1 + (len(one) // TEXT_PART if isinstance(one, str) else 0)
        if isinstance(one, list):
            rest.extend(one)
        elif isinstance(one, dict):
            rest.extend(one.values())
    return count


def bounded(value: Any) -> Any:
    if isinstance(value, str) and len(value) > LONGEST_TEXT:
        raise BadValue(f"its text is longer than {LONGEST_TEXT:,} characters")
    if isinstance(value, list) and len(value) > LONGEST_LIST:
        raise BadValue(f"its list is longer than {LONGEST_LIST:,} items")
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        raise BadValue("its number is too large")
    return value
