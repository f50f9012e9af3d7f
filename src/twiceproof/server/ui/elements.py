"""The HTML of what lists have in each row: states, times, cells. As macros of a template they cost five times as much.

HTML is made here by `shape` alone, which escapes each value that it puts into it, as templates do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

from markupsafe import Markup, escape

from .formatting import digits_of, sign_of, visible
from .listing import Cell, CellKind, Column, ListingRow

__all__ = ["content", "inserted", "row_element", "shape", "state_element", "time_element"]

WHOLE = 40  # letters of a code that is not broken

# Texts of these characters look the same escaped: ASCII without controls and without & < > " '.
_is_plain = re.compile(r"[ !#-%(-;=?-~]*").fullmatch


def inserted(value: Any) -> str:
    """Return what a page shows of a value: it and its invisible characters are escaped, unless it is markup."""
    kind = type(value)
    if kind is Markup or (kind is str and _is_plain(value)):
        return value  # type: ignore[no-any-return]
    return escape(visible(value) if isinstance(value, str) and not hasattr(value, "__html__") else value)


# Markup's own constructor looks for `__html__` before, and takes three times as long.
_markup: Callable[[str], Markup] = partial(str.__new__, Markup)


def shape(html: str) -> Callable[..., Markup]:
    """Return a function that puts values into HTML, in place of each `%s`."""
    return lambda *values: _markup(html % tuple(map(inserted, values)))


_state = shape(
    '<span class="state %s" data-state="%s"><span class="sign" aria-hidden="true">%s</span> '
    '<span class="word">%s</span></span>'
)
_link = shape('<a class="open" href="%s">%s</a>')
_key = shape('<a class="open key" href="%s">%s</a>')
_code, _whole_code = shape("<code>%s</code>"), shape('<code class="whole">%s</code>')
NOTHING = Markup('<span class="faint">–</span>')


@lru_cache(256)
def state_element(name: str, lapsed: bool = False) -> Markup:
    """Return a state's sign and word."""
    sign = sign_of(name, lapsed=lapsed)
    return _state(sign.tone, name, sign.sign, sign.word)


def time_element(at: float | None, *, exact: bool = False) -> Markup:
    """Return a time that the page's script can show in another zone."""
    digits = "" if at is None else digits_of(at)
    if not digits:
        return NOTHING
    shown = digits[11:] if exact else digits[11:19]
    return _markup(f'<time datetime="{digits}Z">{digits[:10]} {shown} UTC</time>')


# What is in a cell, by its kind; in one of any other kind it is the text. `root` is before addresses.
CONTENTS: dict[CellKind, Callable[[Cell, str], Markup]] = {
    "state": lambda one, root: state_element(one.state),
    "when": lambda one, root: time_element(one.at),
    "link": lambda one, root: _link(root + one.href, one.text),
    "key": lambda one, root: _key(root + one.href, one.text),
    "code": lambda one, root: (_whole_code if len(one.text) < WHOLE else _code)(one.text),
    "faint": lambda one, root: NOTHING,
}


def content(one: Cell, root: str) -> str:
    """Return what is in a cell: markup, or a text that is escaped where it is inserted."""
    made = CONTENTS.get(one.kind)
    return one.text if made is None else made(one, root)


def row_element(row: ListingRow, columns: Sequence[Column], root: str) -> Markup:
    """Return a row of a list."""
    parts: list[str] = ["<tr>"]
    for nth, (one, column) in enumerate(zip(row.cells, columns, strict=True)):
        look = "heading" if nth == row.name else "number" if column.is_number else one.kind
        parts += _opening(look, column.word), inserted(content(one, root)), "</th>" if nth == row.name else "</td>"
    parts.append("</tr>")
    return _markup("".join(parts))


# How the element of a cell begins. What is not named here is an ordinary one.
OPENINGS = {
    "heading": shape('<th scope="row" data-label="%s">'),
    "number": shape('<td data-label="%s" class="num">'),
    "faint": shape('<td data-label="%s" class="none">'),
    "state": shape('<td data-label="%s" data-plain>'),
}
_ordinary = shape('<td data-label="%s">')


@lru_cache(256)
def _opening(look: str, word: str) -> Markup:
    return OPENINGS.get(look, _ordinary)(word)
