"""Lanes: every space lives in one of a fixed number of them, and a lane in one slot of a cluster.

A lane has its own counter, state indexes and due indexes, so that every write stays on one server. Their
number is fixed when the store is created: another would look for every record in the wrong place.
"""

from __future__ import annotations

import zlib
from functools import cached_property

import msgspec
from redis.crc import key_slot

from ..errors import SchemaMismatch

__all__ = ["META_KEY", "SCHEMA", "Lane", "Meta", "lane_of", "slot_of"]

META_KEY = "twiceproof:meta"
SCHEMA = 4  # 1 kept a record as a hash, 2 had no heads, and up to 3 a run was a record of the kind "claim"


class Lane:
    """One lane and the names of its keys."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.prefix = f"twiceproof:{{lane-{number}}}"  # the braces: a cluster hashes only what is in them
        self.keys = (f"{self.prefix}:number".encode(), f"{self.prefix}:never".encode())

    @cached_property
    def slot(self) -> int:
        return slot_of(self.keys[0])


def slot_of(key: bytes) -> int:
    return int(key_slot(key))


def lane_of(space: str, lanes: int) -> int:
    return zlib.crc32(space.encode()) % lanes


class Meta(msgspec.Struct, frozen=True):
    """What is fixed when the store is created."""

    schema: int
    lanes: int

    @classmethod
    def read(cls, text: bytes) -> Meta:
        try:
            meta = msgspec.json.decode(text, type=cls)
        except msgspec.MsgspecError:
            raise SchemaMismatch(
                f"The key {META_KEY} holds something that twiceproof did not write; use another database."
            ) from None
        if meta.schema > SCHEMA:
            raise SchemaMismatch(
                f"The Redis store was written by a newer release (schema {meta.schema}, this one knows {SCHEMA}); "
                "upgrade twiceproof."
            )
        if meta.schema < SCHEMA:
            raise SchemaMismatch(
                f"The Redis store was written by an older release (schema {meta.schema}, this one knows {SCHEMA}), "
                "and its records cannot be carried over; use another database."
            )
        return meta

    def text(self) -> bytes:
        return msgspec.json.encode(self)
