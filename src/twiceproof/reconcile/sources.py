"""Sources of a reconciliation: reads rows, and gives each a key, an id and a time.

Keys are made by the same rules as the keys of claims, so that a row and the run that made it have the same key: upper
and lower case and leading zeros are distinguished; Unicode normal forms are not; 17 and "17" are the same. A row whose
key would be blank, begin or end with white space, contain a control character or be too long has no key: such rows are
counted in a finding of their own and compared with nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec import Struct

from ..errors import KeyRefused, Misuse
from ..flows.limits import Rate
from ..keys import Template, canonical, validate_key
from ..keys.key import part_text
from .readers import Reading, Row, RowReader, SourceIncomplete, pumped

__all__ = [
    "FieldPair",
    "KeyedSource",
    "SourceOrigin",
    "SourceReading",
    "SourceRow",
    "Unkeyed",
    "moment_of",
    "read_source",
]

KeyOf = str | Callable[[Row], str]
EXAMPLES = 5  # rows without a key that a finding shows


class SourceOrigin:
    """A reader, and the settings for reading it. Several keyed sources may share one, which is read once for all."""

    def __init__(
        self, name: str, reader: RowReader, *, timeout: float, shrink: float, empty: bool, rate: Rate | None
    ) -> None:
        self.name = name
        self.reader = reader
        self.timeout = timeout
        self.shrink = shrink
        self.empty = empty
        self.rate = rate

    def incomplete_because(self, rows: int, before: int | None) -> str:
        """Return why a reading that reached its end still counts as incomplete; "" if it does not."""
        if rows == 0 and not self.empty:
            return "it has no rows; say empty=True if that can be"
        if before is not None and rows < before * (1 - self.shrink):
            return f"it has {rows:,} rows, and had {before:,}: more than {self.shrink:.0%} are gone"
        return ""


class FieldPair(Struct, frozen=True):
    """A field in which two sources should agree, by its name in this one."""

    name: str
    tolerance: str | None = None  # numbers may differ by this much; None: compared exactly


class SourceRow(Struct, frozen=True):
    """A row with its key and id. `at` is when it was created, in seconds since 1970, if that is known."""

    key: str
    ref: str
    at: float | None
    row: Row


class Unkeyed(Struct, frozen=True):
    """A row that has no key, and why."""

    ref: str
    why: str


class KeyedSource:
    """One view of an origin: the key, the id and the time of its rows."""

    def __init__(
        self,
        number: int,
        name: str,
        origin: SourceOrigin,
        *,
        key: KeyOf,
        id: str | None = None,  # noqa: A002 - the word that users know
        at: str | None = None,
        look: Callable[[str], Any] | None = None,
        where: Callable[[Row], bool] | None = None,
        normal: Callable[[str], str] | None = None,
        fields: tuple[FieldPair, ...] = (),
        show: tuple[str, ...] = (),
    ) -> None:
        self.number = number
        self.name = name
        self.origin = origin
        self.key = key
        self.id = id
        self.at = at
        self.look = look
        self.where = where
        self.normal = normal
        self.fields = fields
        self.show = show
        self._key: Callable[[Row], str] = key if callable(key) else Template(key).render
        self._template = Template(key) if isinstance(key, str) else None
        self._id = None if id is None else Template(id)
        self._at = None if at is None else Template(at)

    def derived(self, number: int, name: str, **changes: Any) -> KeyedSource:
        """Return another view of the same rows. With another key it has no `look`: that knows the source's own keys,
        and would find nothing under others."""
        if "key" in changes:
            changes = {"look": None, **changes}
        same = {part: getattr(self, part) for part in ("key", "id", "at", "look", "where", "normal", "fields", "show")}
        return KeyedSource(number, name, self.origin, **{**same, **changes})

    @property
    def has_ids(self) -> bool:
        return self._id is not None

    def row(self, row: Row) -> SourceRow | Unkeyed | None:
        """Return a row with its key; None if `where` excludes it."""
        if self.where is not None and not self.where(row):
            return None
        ref = self._ref(row)
        try:
            text = self._key(row)
            key = validate_key(text if self.normal is None else self.normal(text))
        except KeyRefused as error:
            return Unkeyed(ref, str(error)[:200])
        return SourceRow(key, ref, self._moment(row), row)

    def _ref(self, row: Row) -> str:
        """Return the row's id; without one, the digest of its contents, which is the same in every reading."""
        if self._id is not None:
            try:
                return self._id.render(row)
            except KeyRefused:
                pass
        return "#" + blake2b(_content(row), digest_size=8).hexdigest()

    def _moment(self, row: Row) -> float | None:
        if self._at is None:
            return None
        try:
            return moment_of(self._at.fields[0].find(row))
        except (KeyRefused, IndexError):
            return None

    def mark(self, row: Row, *, plain: bool) -> bytes | str | None:
        """Return what two rows are compared by: a digest, or with a tolerance the values themselves."""
        if not self.fields:
            return None
        values = [field_value(row.get(pair.name), pair) for pair in self.fields]
        if plain and any(pair.tolerance is not None for pair in self.fields):
            return msgspec.json.encode(values).decode()
        return blake2b(msgspec.json.encode(values), digest_size=8).digest()

    def shown(self, row: Row) -> dict[str, Any]:
        """Return the part of a row that a finding shows: the compared fields, and those that `show=` names."""
        templates = (self._template, self._id, self._at)
        named = [field.name for template in templates if template is not None for field in template.fields]
        names = dict.fromkeys([*named, *(pair.name for pair in self.fields), *self.show])
        return {name: _plain(row[name]) for name in names if name in row}


def _content(row: Row) -> bytes:
    try:
        return canonical(dict(row))
    except ValueError:
        return repr(sorted(row.items(), key=lambda item: str(item[0]))).encode(errors="surrogatepass")


def _plain(value: Any) -> Any:
    text = value if isinstance(value, str | int | float | bool | None) else _content_text(value)
    return text if not isinstance(text, str) or len(text) <= 200 else f"{text[:199]}…"


def _content_text(value: Any) -> str:
    try:
        return part_text(value, "a field")
    except KeyRefused:
        return str(value)


def field_value(value: Any, pair: FieldPair) -> str | None:
    """Return a field as text. With a tolerance, text that is a number is one."""
    if value is None:
        return None
    if pair.tolerance is not None and (number := number_of(value)) is not None:
        return format(number.normalize(), "f")
    if isinstance(value, float | Decimal):
        return format(Decimal(str(value)).normalize(), "f")
    try:
        return canonical(value).decode() if isinstance(value, dict | list) else normal_text(value)
    except ValueError:
        return str(value)


def normal_text(value: Any) -> str:
    from unicodedata import normalize

    return normalize("NFC", value) if isinstance(value, str) else part_text(value, "a field")


def number_of(value: Any) -> Decimal | None:
    """Return a finite number, given as one or as text."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal | str):
        return None
    try:
        number = Decimal(str(value).strip())
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def moment_of(value: Any) -> float | None:
    """Return a time in seconds since 1970: from a datetime, ISO 8601, or a number. Without a zone it is UTC."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float | Decimal):
        return float(value)
    try:
        found = datetime.fromisoformat(value) if isinstance(value, str) else value
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (AttributeError, ValueError, OverflowError):
        return None


class SourceReading(Struct, frozen=True):
    """How the reading of a source went."""

    source: str
    rows: int
    whole: bool
    why: str = ""  # why it is incomplete
    unusable: int = 0  # rows that have no key
    examples: tuple[str, ...] = ()


Keep = Callable[[KeyedSource, SourceRow], None]


def read_source(
    origin: SourceOrigin, views: list[KeyedSource], reading: Reading, before: int | None, keep: Keep
) -> SourceReading:
    """Read an origin once, and pass each row on under the key of each view."""
    count, unkeyed, why = 0, 0, ""
    examples: list[str] = []
    try:
        for batch in pumped(origin.reader, reading, origin.timeout):
            for row in batch:
                if not isinstance(row, Mapping):
                    raise SourceIncomplete(f"a row is a {type(row).__name__}; rows are dicts")
                count += 1
                for found in _known_as(views, row, keep):
                    unkeyed += 1
                    if len(examples) < EXAMPLES:
                        examples.append(f"{found.ref}: {found.why}")
    except SourceIncomplete as error:
        why = str(error)
    why = why or origin.incomplete_because(count, before)
    return SourceReading(origin.name, count, not why, why, unkeyed, tuple(examples))


def _known_as(views: list[KeyedSource], row: Row, keep: Keep) -> Iterator[Unkeyed]:
    for view in views:
        found = view.row(row)
        if isinstance(found, Unkeyed):
            yield found
        elif found is not None:
            keep(view, found)


def refuse_unreadable(name: str, key: Any) -> None:
    """Refuse a key that is neither a template nor a function, when the source is declared."""
    if not (isinstance(key, str) or callable(key)):
        raise Misuse(f'The source {name} needs a key; write key="order:{{id}}", or give a function of the row.')
