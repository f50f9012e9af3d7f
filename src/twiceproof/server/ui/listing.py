"""Lists and single things as data, for the pages that are tables: cells, columns, facts and forms of acts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal
from urllib.parse import urlencode

from msgspec import Struct

from .formatting import CAPPED, ShownValue, counted, span, utc

__all__ = [
    "ActField",
    "ActForm",
    "ActiveFilter",
    "Cell",
    "Column",
    "DetailPage",
    "Fact",
    "HourBar",
    "Listing",
    "ListingFilter",
    "ListingRow",
    "active_filters",
    "address_with",
    "code",
    "hour_bars",
    "key",
    "left_until",
    "link",
    "number",
    "state",
    "text",
    "when",
]

HOUR = 3_600.0
CellKind = Literal["text", "faint", "state", "when", "link", "key", "number", "code"]


class Cell(Struct, frozen=True):
    """One cell. A template decides by its kind how it looks."""

    kind: CellKind
    text: str = ""
    href: str = ""
    at: float | None = None
    state: str = ""


def text(value: object, *, most: int = 300) -> Cell:
    """A text, of which a list shows the beginning."""
    shown = str(value)
    return Cell("text", shown if len(shown) <= most else shown[:most] + "…") if shown else Cell("faint", "–")


def code(value: str) -> Cell:
    return Cell("code", value) if value else Cell("faint", "–")


def number(value: int, most: int = CAPPED) -> Cell:
    """A count that ended at `most`, at the latest."""
    return Cell("number", counted(value, most))


def state(name: str) -> Cell:
    return Cell("state", state=name)


def when(at: float | None) -> Cell:
    return Cell("when", at=at)


def link(shown: str, address: str) -> Cell:
    """A link to a page of the dashboard."""
    return Cell("link", shown, address)


def key(shown: str, address: str) -> Cell:
    """A key or an id that leads to its page."""
    return Cell("key", shown, address)


class ActiveFilter(Struct, frozen=True):
    """A filter that is on, and the address without it."""

    name: str
    value: str
    without: str


def active_filters(path: str, asked: Mapping[str, str], names: Sequence[str]) -> list[ActiveFilter]:
    """Return every active filter, so that none is hidden."""
    on = {name: asked[name] for name in names if asked.get(name)}
    return [
        ActiveFilter(name, value, address_with(path, {other: text for other, text in on.items() if other != name}))
        for name, value in on.items()
    ]


def address_with(path: str, asked: Mapping[str, str]) -> str:
    return f"{path}?{urlencode(asked)}" if asked else path


class HourBar(Struct, frozen=True):
    """One hour in a chart of 1000 by 100."""

    x: float
    y: float
    width: float
    height: float
    tone: str
    label: str


def hour_bars(by_hour: Mapping[int, int], now: float, hours: int = 24) -> list[HourBar]:
    """Return the last hours, the present one at the end, each as high as its share of the highest. None if nothing came
    in any of them."""
    last, width = int(now // HOUR), 1_000 / hours
    counts = [by_hour.get(last - hours + 1 + nth, 0) for nth in range(hours)]
    highest = max(counts)
    return [
        _hour_bar(nth * width, width * 0.8, count / highest, f"{count:,} from {utc((last - hours + 1 + nth) * HOUR)}")
        for nth, count in enumerate(counts)
        if highest
    ]


def _hour_bar(x: float, width: float, share: float, label: str) -> HourBar:
    height = round(max(share * 100, 2.0), 1)  # an hour without any has a line to stand on
    return HourBar(round(x, 1), round(100 - height, 1), round(width, 1), height, "good" if share else "none", label)


class Column(Struct, frozen=True):
    word: str
    is_number: bool = False


class ListingRow(Struct, frozen=True):
    """One row. `name`: which cell is its heading."""

    cells: tuple[Cell, ...]
    name: int = 0


class ListingFilter(Struct, frozen=True):
    """A field above a list. Without choices it takes any text."""

    name: str
    word: str
    choices: tuple[str, ...] = ()


class Listing(Struct, frozen=True):
    """A list with its filters, and what is shown instead if it is empty."""

    title: str
    columns: tuple[Column, ...]
    rows: Sequence[ListingRow]
    empty: tuple[str, str, str] = ("Nothing here", "", "")  # a title, what would bring something here, a command
    filters: tuple[ListingFilter, ...] = ()
    older: str = ""
    newer: str = ""
    note: str = ""


class Fact(Struct, frozen=True):
    """A name and its value."""

    word: str
    cell: Cell


class ActField(Struct, frozen=True):
    """A field of an act's form."""

    name: str
    word: str
    value: str = ""
    is_required: bool = False
    choices: tuple[str, ...] = ()
    is_json: bool = False


class ActForm(Struct, frozen=True):
    """One act that a person may do here, and the command that does the same."""

    action: str
    verb: str
    scope: str
    about: str = ""
    command: str = ""
    fields: tuple[ActField, ...] = ()
    hidden: tuple[tuple[str, str], ...] = ()
    is_grave: bool = False  # it deletes something: its page requires more than a click
    commands: tuple[tuple[str, str], ...] = ()  # where a choice decides which: its words, and the command


class DetailPage(Struct, frozen=True):
    """One thing on a page of its own."""

    title: str
    state: str
    crumbs: tuple[tuple[str, str], ...]
    facts: Sequence[Fact]
    values: Sequence[tuple[str, ShownValue | None]] = ()
    acts: Sequence[ActForm] = ()
    lists: Sequence[Listing] = ()
    reason: str = ""
    rare_acts: Sequence[ActForm] = ()  # below everything else


def left_until(at: float | None, now: float) -> str:
    """Return how long something is kept or waits."""
    if at is None:
        return "for ever"
    return f"{span(at - now)} left" if at > now else "over"
