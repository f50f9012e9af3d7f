"""A record as a row of a web service: its columns, its unique key, texts that no service alters; and `RowService`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from ..records import Address, Record

__all__ = [
    "COLUMNS",
    "GONE",
    "STALE",
    "RowPage",
    "RowRefused",
    "RowService",
    "ServiceRow",
    "address_column",
    "as_text",
    "of_text",
    "row_key",
    "short",
]

# The columns of a row, and what each is for. The service adds its own: who changed it when, and its version.
COLUMNS = {
    "key": "the record's address: unique",
    "space": "what the record belongs to",
    "kind": "what kind of record it is",
    "address": "the address in full, where the key is a hash",
    "state": "the record's state",
    "nonce": "by which a writer recognises its own write",
    "fence": "the number that a holder must know; empty: the row's own version",
    "lease": "for how many seconds after its last change it is held",
    "stamped": "when it was last changed, if the row's own time is of something else",
    "queue": "the list that it is due in",
    "due_in": "after how many seconds from its last change it is due",
    "due": "about when that is, to sort by",
    "body": "the contents",
}

SIMPLE = re.compile(r"[a-z0-9._@:/-]{1,200}")
SHORT = str.maketrans({":": "~", "/": "!"})  # neither may be in the address of a row of Dataverse
LONG = str.maketrans({"~": ":", "!": "/"})
HASHED = "x-"
MOST_ROW_KEY = 250  # characters; a line of text in SharePoint has 255
ESCAPED = "json:"
AWKWARD = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]|^\s|\s$")  # what a service may alter


def short(text: str) -> str:
    """A text as it is found in a column that is searched: readable if it is simple, else its hash.

    Services compare texts without case, and not all characters can be in an address; people write rows, too.
    """
    if SIMPLE.fullmatch(text) and not text.startswith(HASHED):
        return text.translate(SHORT)
    return HASHED + sha256(text.encode()).hexdigest()


def row_key(at: Address) -> str:
    """The unique key of an address: `default!charge!shop~order~1;claim;self`, or a hash."""
    parts = [short(part) for part in (at.space, at.kind, at.key)]
    joined = ";".join(parts)
    if len(joined) <= MOST_ROW_KEY:
        return joined
    return HASHED + sha256(_address_text(at).encode()).hexdigest()


def _address_text(at: Address) -> str:
    return msgspec.json.encode([at.space, at.kind, at.key]).decode()


def address_column(at: Address, key: str) -> str | None:
    """What the column `address` holds: nothing where the key can be read."""
    readable = HASHED not in [part[: len(HASHED)] for part in key.split(";")]
    return None if readable else as_text(_address_text(at))


def as_text(text: str) -> str | None:
    """A text in a form that no service alters. None is the empty one, which services cannot tell from nothing."""
    if not text:
        return None
    if AWKWARD.search(text) or text.startswith(ESCAPED):
        return ESCAPED + msgspec.json.encode(text).decode().translate(_ESCAPES)
    return text


_ESCAPES = {code: f"\\u{code:04x}" for code in (*range(0x7F, 0xA0), 0x2028, 0x2029, 0xFEFF, 0xFFFE, 0xFFFF)}


def of_text(text: Any) -> str:
    if not text:
        return ""
    return msgspec.json.decode(text[len(ESCAPED) :], type=str) if text.startswith(ESCAPED) else str(text)


class ServiceRow(Struct, frozen=True):
    """A row as the service has it. `number` is its version as a number that grows with each change of this key."""

    values: Mapping[str, Any]
    handle: tuple[str, str]  # the row's own address, and its ETag
    version: str
    number: int
    created: float
    modified: float
    now: float

    @property
    def updated(self) -> float:
        stamped = self.values.get("stamped")
        return self.modified if stamped is None else float(stamped)

    @property
    def fence(self) -> int:
        """A row that says nothing of its fence drew it with its last change."""
        told = self.values.get("fence")
        return self.number if told in (None, "") else int(told)

    @property
    def at(self) -> Address:
        key = str(self.values["key"])
        told = self.values.get("address")
        if told:
            return Address(*msgspec.json.decode(of_text(told), type=tuple[str, str, str]))
        return Address(*(part.translate(LONG) for part in key.split(";")))

    def record(self) -> Record:
        values, updated = self.values, self.updated
        lease, due_in = values.get("lease"), values.get("due_in")
        return Record(
            at=self.at,
            body=of_text(values.get("body")),
            state=of_text(values.get("state")),
            version=self.version,
            fence=self.fence,
            nonce=of_text(values.get("nonce")),
            created_at=self.created,
            updated_at=updated,
            lease_until=None if lease is None else updated + float(lease),
            queue=of_text(values.get("queue")),
            due_at=None if due_in is None else self.modified + float(due_in),
        )


class RowRefused(Struct, frozen=True):
    """Why the service did not write: the row has another ETag, or there is none."""

    gone: bool


STALE, GONE = RowRefused(False), RowRefused(True)


class RowPage(Struct, frozen=True):
    rows: Sequence[ServiceRow]
    after: str | None
    now: float


class RowService(Protocol):
    """What a service must do. Values are by the names of `COLUMNS`; a written row comes back with its stamps."""

    def create(self, values: Mapping[str, Any]) -> ServiceRow | None:
        """Create a row. None if its key is taken."""

    def find(self, key: str) -> tuple[ServiceRow | None, float]:
        """The row with this key, and the service's time."""

    def change(self, key: str, handle: tuple[str, str], values: Mapping[str, Any]) -> ServiceRow | RowRefused:
        """Change these columns of a row that has this ETag."""

    def remove(self, key: str, handle: tuple[str, str]) -> float | RowRefused:
        """Remove a row that has this ETag; the service's time."""

    def page(self, kind: str, space: str | None, state: str | None, after: str | None, limit: int) -> RowPage:
        """Rows in an order that does not change while they stay. It may be wider than asked."""

    def waiting(self, kind: str, after: str | None, limit: int) -> RowPage:
        """Rows that have a `due`, the earliest first."""

    def close(self) -> None: ...

    def abandon(self) -> None: ...
