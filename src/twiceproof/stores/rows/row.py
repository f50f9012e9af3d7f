"""How records are stored in rows: a record's own row, a row for when it is due, a tombstone where one was removed.

All rows of a space are in one lane. Keys of rows are letters and digits, which every service accepts and sorts alike;
the readable address is in the data.

    r kind space key             a record, or its tombstone
    d kind class time digest     what is due when; the class is shared by all queues named `tenant/…`
    z time digest                tombstones, by when they may go
"""

from __future__ import annotations

import zlib
from functools import lru_cache
from hashlib import blake2b

import msgspec

from ...errors import SchemaMismatch
from ...records import Address, Insert, Record, Replace
from .table import Place

__all__ = [
    "DueEntry",
    "Grave",
    "LaneCount",
    "RowStamp",
    "due_prefix",
    "due_row",
    "grave_row",
    "kind_prefix",
    "lane_of",
    "micros",
    "pack",
    "place_of_record",
    "put_stamp",
    "record_of",
    "seconds",
    "space_prefix",
    "stamp_of",
    "time_part",
    "tombstone",
]

SCHEMA = 1
PLAIN_KEY = 150  # first bytes of a key that are written into the row's key in sortable form
SHARED_CLASS = "/"

pack = msgspec.msgpack.Encoder().encode


class RowStamp(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A record as it is stored: times in microseconds, 0 for none. `dead`: a tombstone."""

    space: str
    kind: str
    key: str
    number: int
    fence: int = 0
    created_at: int = 0
    updated_at: int = 0
    lease_until: int = 0
    due_at: int = 0
    state: str = ""
    queue: str = ""
    nonce: str = ""
    body: str = ""
    dead: bool = False

    @property
    def at(self) -> Address:
        return Address(self.space, self.kind, self.key)


class DueEntry(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The data of a row in the index of due records."""

    due_at: int
    queue: str
    space: str
    kind: str
    key: str


class Grave(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Points to a tombstone."""

    key: str  # of the row
    number: int


stamp_of = msgspec.msgpack.Decoder(RowStamp).decode
due_entry = msgspec.msgpack.Decoder(DueEntry).decode
grave_of = msgspec.msgpack.Decoder(Grave).decode


class LaneCount(msgspec.Struct, frozen=True):
    """Settings that are fixed when the ledger is created."""

    schema: int
    lanes: int

    @classmethod
    def read(cls, data: bytes) -> LaneCount:
        try:
            found = msgspec.json.decode(data, type=cls)
        except msgspec.MsgspecError:
            raise SchemaMismatch(
                "The table holds something that twiceproof did not write; name another table in the store's URL."
            ) from None
        if found.schema != SCHEMA:
            raise SchemaMismatch(
                f"The ledger was written by another release (schema {found.schema}, this one knows {SCHEMA}); "
                "upgrade the older of the two."
            )
        return found

    @classmethod
    def text(cls, lanes: int) -> bytes:
        return msgspec.json.encode(cls(SCHEMA, lanes))


def seconds(micros: int) -> float:
    return micros / 1_000_000


def micros(seconds: float) -> int:
    return round(seconds * 1_000_000)


# -- keys of rows --------------------------------------------------------------------------------


def lane_of(space: str, lanes: int) -> int:
    return zlib.crc32(space.encode()) % lanes


def _digest(text: str, size: int = 20) -> str:
    return blake2b(text.encode(), digest_size=size).hexdigest()


@lru_cache(maxsize=4_096)
def _short_digest(text: str) -> str:
    return _digest(text, 8)


def _key_part(key: str) -> str:
    """Encode a key so that rows sort in the order of their keys, except for very long ones."""
    data = key.encode()
    if len(data) <= PLAIN_KEY:
        return "0" + data.hex()
    return "1" + data[: PLAIN_KEY // 2].hex() + _digest(key)


def kind_prefix(kind: str) -> str:
    return "r" + _short_digest(kind)


def space_prefix(kind: str, space: str) -> str:
    return kind_prefix(kind) + _digest(space)


def place_of_record(at: Address, lanes: int) -> Place:
    return lane_of(at.space, lanes), space_prefix(at.kind, at.space) + _key_part(at.key)


def time_part(micros: int) -> str:
    return f"{max(0, micros):016d}"


def due_prefix(kind: str, queue: str) -> str:
    return "d" + _short_digest(kind) + _short_digest(SHARED_CLASS if "/" in queue else f"q{queue}")


def due_row(stamp: RowStamp) -> tuple[str, bytes]:
    """Return the key and data of the index row for a due record."""
    prefix = due_prefix(stamp.kind, stamp.queue)
    entry = DueEntry(stamp.due_at, stamp.queue, stamp.space, stamp.kind, stamp.key)
    return f"{prefix}{time_part(stamp.due_at)}{_digest(stamp.space + chr(0) + stamp.key)}", pack(entry)


def grave_row(key: str, number: int, until: int) -> tuple[str, bytes]:
    return f"z{time_part(until)}{_digest(key)}", pack(Grave(key, number))


# -- contents of rows ----------------------------------------------------------------------------


def put_stamp(write: Insert | Replace, old: RowStamp | None, number: int, nonce: str, now: int) -> RowStamp:
    """Return the record as it is after a write."""
    at = write.at
    kept = old.body if old else ""
    return RowStamp(
        at.space,
        at.kind,
        at.key,
        number,
        number if write.draw else (old.fence if old else 0),
        old.created_at if old else now,
        now,
        0 if write.lease is None else now + micros(write.lease),
        0 if write.due_in is None else now + micros(write.due_in),
        write.state,
        write.queue,
        nonce,
        kept if write.body is None else write.body,
    )


def tombstone(at: Address, number: int) -> RowStamp:
    return RowStamp(at.space, at.kind, at.key, number, dead=True)


def record_of(stamp: RowStamp) -> Record:
    return Record(
        Address(stamp.space, stamp.kind, stamp.key),
        stamp.body,
        stamp.state,
        str(stamp.number),
        stamp.fence,
        stamp.nonce,
        seconds(stamp.created_at),
        seconds(stamp.updated_at),
        seconds(stamp.lease_until) if stamp.lease_until else None,
        stamp.queue,
        seconds(stamp.due_at) if stamp.due_at else None,
    )
