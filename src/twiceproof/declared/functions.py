"""The functions that expressions may call."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import ROUND_HALF_EVEN, Context, Decimal, InvalidOperation
from typing import Any

import msgspec
from msgspec import Struct

from .values import EXACT, LONGEST_TEXT, BadValue, is_number, kind_of, number, shown, text_of

__all__ = ["FUNCTIONS", "ExpressionFunction"]


MOST_DIGITS = 100  # of a number given as text
WIDE = Context(prec=200)


class ExpressionFunction(Struct, frozen=True):
    """A function: its implementation, how many arguments it takes, and an example. `whole`: it reads all that is in
    its arguments, however deep.
    """

    work: Callable[..., Any]
    least: int
    most: int
    usage: str
    whole: bool = False


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise BadValue(f"{shown(value)} is no text; write text(x)")


def _list(value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    raise BadValue(f"{shown(value)} is no list")


def _len(value: Any) -> int:
    if isinstance(value, str | list | dict):
        return len(value)
    raise BadValue(f"{shown(value)} has no length")


def _sum(items: Any) -> int | Decimal:
    total: int | Decimal = 0
    for item in _list(items):
        value = number(item)
        whole = isinstance(total, int) and isinstance(value, int)
        total = total + value if whole else EXACT.add(Decimal(total), Decimal(value))
    return total


def _least(*given: Any) -> Any:
    return min(_several(given), key=_order)


def _greatest(*given: Any) -> Any:
    return max(_several(given), key=_order)


def _several(given: tuple[Any, ...]) -> list[Any]:
    items = _list(given[0]) if len(given) == 1 else list(given)
    if not items:
        raise BadValue("the list is empty")
    if len({kind_of(item) for item in items}) > 1 or not all(
        is_number(item) or isinstance(item, str) for item in items
    ):
        raise BadValue("its values are neither all numbers nor all texts")
    return items


def _order(value: Any) -> Any:
    return Decimal(number(value)) if is_number(value) else value


def _round(value: Any, digits: Any = 0) -> int | Decimal:
    """Round half to even, as banks and Python do."""
    if isinstance(digits, bool) or not isinstance(digits, int) or not 0 <= digits <= 12:
        raise BadValue("round takes a number of digits between 0 and 12")
    made = Decimal(number(value)).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_EVEN, WIDE)
    return made if digits else int(made)


def _join(items: Any, between: Any = "") -> str:
    texts = [text_of(item) for item in _list(items)]
    if sum(map(len, texts)) + len(_text(between)) * len(texts) > LONGEST_TEXT:  # before it is made
        raise BadValue(f"its text is longer than {LONGEST_TEXT:,} characters")
    return str(between.join(texts))


def _split(text: Any, at: Any) -> list[str]:
    if not _text(at):
        raise BadValue("split needs a text to split at")
    return _text(text).split(at)


def _replace(text: Any, old: Any, new: Any) -> str:
    if not _text(old):
        raise BadValue("replace needs a text to replace")
    if len(_text(text)) + _text(text).count(old) * len(_text(new)) > LONGEST_TEXT:
        raise BadValue(f"its text is longer than {LONGEST_TEXT:,} characters")
    return str(text.replace(old, new))


def _number(value: Any) -> int | Decimal:
    if not isinstance(value, str):
        return number(value)
    try:
        if len(value) > MOST_DIGITS or "_" in value:
            raise InvalidOperation
        made = Decimal(value.strip())
        if not made.is_finite() or abs(made.adjusted()) > MOST_DIGITS:
            raise InvalidOperation
    except InvalidOperation:
        raise BadValue(f"{shown(value)} is no number") from None
    return int(made) if made == made.to_integral_value() else made


def _moment(value: Any) -> datetime:
    try:
        made = datetime.fromisoformat(_text(value))
    except ValueError:
        raise BadValue(f"{shown(value)} is no date; write 2026-03-29 or 2026-03-29T12:00:00Z") from None
    return made if made.tzinfo else made.replace(tzinfo=UTC)


def _date(value: Any) -> str:
    try:
        return _moment(value).astimezone(UTC).date().isoformat()
    except OverflowError:
        raise BadValue(f"{shown(value)} is before the year 1, or after 9999, in UTC") from None


def _days_between(start: Any, end: Any) -> int:
    return (date.fromisoformat(_date(end)) - date.fromisoformat(_date(start))).days


def _sha256(value: Any) -> str:
    return hashlib.sha256(_text(value).encode()).hexdigest()


_JSON = msgspec.json.Encoder(decimal_format="number", order="deterministic")

FUNCTIONS: dict[str, ExpressionFunction] = {
    "len": ExpressionFunction(_len, 1, 1, "len(order.lines)"),
    "sum": ExpressionFunction(_sum, 1, 1, "sum([line.price for line in order.lines])"),
    "min": ExpressionFunction(_least, 1, 10, "min(a, b)"),
    "max": ExpressionFunction(_greatest, 1, 10, "max(a, b)"),
    "round": ExpressionFunction(_round, 1, 2, "round(order.total, 2)"),
    "lower": ExpressionFunction(lambda text: _text(text).lower(), 1, 1, "lower(customer.email)"),
    "upper": ExpressionFunction(lambda text: _text(text).upper(), 1, 1, "upper(order.currency)"),
    "trim": ExpressionFunction(lambda text: _text(text).strip(), 1, 1, "trim(customer.name)"),
    "join": ExpressionFunction(_join, 1, 2, 'join(order.tags, ", ")'),
    "split": ExpressionFunction(_split, 2, 2, 'split(order.tags, ",")'),
    "replace": ExpressionFunction(_replace, 3, 3, 'replace(order.id, "-", "")'),
    "starts": ExpressionFunction(lambda text, by: _text(text).startswith(_text(by)), 2, 2, 'starts(order.id, "A")'),
    "ends": ExpressionFunction(lambda text, by: _text(text).endswith(_text(by)), 2, 2, 'ends(file.name, ".pdf")'),
    "number": ExpressionFunction(_number, 1, 1, "number(order.total)"),
    "text": ExpressionFunction(text_of, 1, 1, "text(order.id)"),
    "date": ExpressionFunction(_date, 1, 1, "date(order.paid_at)"),
    "days_between": ExpressionFunction(_days_between, 2, 2, "days_between(order.paid_at, now)"),
    "sha256": ExpressionFunction(_sha256, 1, 1, "sha256(customer.email)"),
    "json": ExpressionFunction(lambda value: _JSON.encode(value).decode(), 1, 1, "json(order.lines)", True),
}
