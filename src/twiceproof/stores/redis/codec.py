"""Spaces to lanes and slots; batches to script arguments; replies to records.

Every space lives in one of a fixed number of lanes, and a lane in one slot of a cluster. A lane has its own counter,
state indexes and due indexes, so that every write stays on one server. The number of lanes is fixed when the store is
created: with another number, every record would be looked up in the wrong place.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from importlib.resources import files
from typing import Any

import msgspec
from redis.crc import key_slot

from ...errors import BadWrite, SchemaMismatch
from ...records import Address, Batch, Check, Conflict, Insert, Outcome, Record, Remove, Replace, Write, Written
from .connection import named

__all__ = [
    "META_KEY",
    "SCHEMA",
    "SERVER_TIME",
    "Arguments",
    "Lane",
    "Meta",
    "Script",
    "Scripts",
    "address",
    "arguments",
    "encode",
    "found",
    "is_one_put",
    "lane_of",
    "micros",
    "outcome",
    "portions",
    "record",
    "record_key",
    "seconds",
    "slot_of",
    "too_large",
]


META_KEY = "twiceproof:meta"
SCHEMA = 1


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
        if meta.schema != SCHEMA:
            raise SchemaMismatch(f"The Redis store has the unknown schema {meta.schema}; use another database.")
        return meta

    def text(self) -> bytes:
        return msgspec.json.encode(self)


PUT, REMOVE, CHECK = 1, 2, 3
ABSENT, BY_FENCE, BY_VERSION = 0, 1, 2
NO_SUCH_VERSION = -1
ENOUGH_BYTES = 8 * 1024 * 1024
MOST_BYTES = 256 * 1024 * 1024

encode = msgspec.msgpack.Encoder().encode

Arguments = list[bytes]


class Stamp(msgspec.Struct, array_like=True, gc=False):
    """A record as the scripts keep it: times in microseconds, 0 for none."""

    version: int
    fence: int
    created_at: int
    updated_at: int
    lease_until: int
    due_at: int
    state: str
    queue: str
    nonce: str
    body: str


_stamp = msgspec.msgpack.Decoder(Stamp).decode


def address(kind: str, member: bytes) -> Address:
    """A member names a record in the indexes. No text holds a NUL, so the first one parts space and key."""
    space, _, key = member.decode().partition("\0")
    return Address(space, kind, key)


def record_key(lane: str, at: Address) -> str:
    return f"{lane}:r:{at.kind}\0{at.space}\0{at.key}"


def seconds(micros: int) -> float:
    """The server's time, as the scripts return it."""
    return micros / 1_000_000


def micros(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1_000_000)


# -- requests ------------------------------------------------------------------------------------


def arguments(batch: Batch, lane: Callable[[str], Lane], mark: str | None) -> Arguments:
    """Two for each write: its fields, and the end of its record. `lane` returns the lane of a space."""
    prefix = lane(batch.space).prefix
    if len(batch.writes) == 1:
        return _packed(batch.writes[0], True, mark, prefix, batch.nonce)
    last = len(batch.writes) - 1
    packed: Arguments = []
    for i, write in enumerate(batch.writes):
        where = prefix if not batch.others else lane(write.at.space).prefix
        packed += _packed(write, i == last, mark, where, batch.nonce)
    return packed


def is_one_put(batch: Batch) -> bool:
    return len(batch.writes) == 1 and type(batch.writes[0]) in (Insert, Replace)


def _packed(write: Write, last: bool, mark: str | None, lane: str, nonce: str) -> Arguments:
    at = write.at
    name = f"{at.space}\0{at.key}"
    if type(write) is Insert:
        by, value, keep = ABSENT, 0, False
    elif type(write) is Replace:
        (by, value), keep = _condition(write), write.body is None
    else:
        op = REMOVE if type(write) is Remove else CHECK
        return [encode((last, mark, lane, op, at.kind, name, *_condition(write))), b""]  # type: ignore[arg-type]
    lease, due_in = write.lease, write.due_in
    fields = (
        last,
        mark,
        lane,
        PUT,
        at.kind,
        name,
        by,
        value,
        write.draw,
        write.state,
        None if lease is None else round(lease * 1_000_000),
        write.queue,
        None if due_in is None else round(due_in * 1_000_000),
        keep,
    )
    # Without a body, the old one is put behind the end of the record.
    end = (write.state, write.queue, nonce) if keep else (write.state, write.queue, nonce, write.body)
    return [encode(fields), encode(end)[1:]]


def _condition(write: Replace | Remove | Check) -> tuple[int, int]:
    if write.fence is not None:
        return BY_FENCE, write.fence
    if write.version is not None:
        return BY_VERSION, _number(write.version)
    return ABSENT, 0


def _number(version: str) -> int:
    """A version of another store, or none at all, is simply not the one found."""
    plain = version.isascii() and version.isdecimal() and len(version) < 17
    return int(version) if plain and str(int(version)) == version else NO_SUCH_VERSION


def portions(places: Sequence[int], packed: Sequence[Arguments]) -> list[Sequence[int]]:
    """Places whose batches go into one call each. Too large ones go into none: a server reads no 512 MB at once."""
    size = sum([len(argument) for i in places for argument in packed[i]])
    if size <= (ENOUGH_BYTES if len(places) > 1 else MOST_BYTES):
        return [places]
    if len(places) == 1:
        return []
    half = len(places) // 2
    return [*portions(places[:half], packed), *portions(places[half:], packed)]


def too_large() -> BadWrite:
    return BadWrite(
        f"These writes together have more than {MOST_BYTES:,} bytes, which Redis does not take; split them."
    )


# -- replies -------------------------------------------------------------------------------------


def outcome(batch: Batch, answer: Any, now: float) -> Outcome | Exception:
    if type(answer) is int:
        return Written(str(answer), answer, now)
    index, *rest = answer
    if index < 0:
        return named(rest[0].decode(errors="replace"))
    at = batch.writes[index].at
    return Conflict(at, record(at, *rest) if rest else None, now)


def record(at: Address, packed: bytes) -> Record:
    stamp = _stamp(packed)
    return Record(
        at,
        stamp.body,
        stamp.state,
        str(stamp.version),
        stamp.fence,
        stamp.nonce,
        seconds(stamp.created_at),
        seconds(stamp.updated_at),
        seconds(stamp.lease_until) if stamp.lease_until else None,
        stamp.queue,
        seconds(stamp.due_at) if stamp.due_at else None,
    )


def found(at: Address, packed: bytes | None) -> Record | None:
    return None if packed is None else record(at, packed)


SERVER_TIME = "local time = redis.call('TIME') local micros = time[1] * 1000000 + time[2]"


class Script:
    """A script, the name the server knows it by, and how a call of it begins on the wire."""

    def __init__(self, name: str, now_lua: str) -> None:
        self.name = name
        self.text = _with_plain_constants(_source("prelude") + _source(name)).replace("@NOW@", now_lua).encode()
        self.sha = hashlib.sha1(self.text, usedforsecurity=False).hexdigest().encode()
        self._heads: dict[int, bytes] = {}

    def call(self, lane: Lane, arguments: Sequence[bytes]) -> bytes:
        head = self._heads.get(lane.number)
        if head is None:
            head = self._heads[lane.number] = _wire((b"EVALSHA", self.sha, b"2", *lane.keys))
        return b"*%d\r\n%b%b" % (5 + len(arguments), head, _wire(arguments))

    def call_whole(self, lane: Lane, arguments: Sequence[bytes]) -> bytes:
        """For a server that does not know the script."""
        head = _wire((b"EVAL", self.text, b"2", *lane.keys))
        return b"*%d\r\n%b%b" % (5 + len(arguments), head, _wire(arguments))


def _wire(parts: Iterable[bytes]) -> bytes:
    return b"".join([b"$%d\r\n%b\r\n" % (len(part), part) for part in parts])


class Scripts:
    """All of them, with one clock: Lua that puts the store's time, in whole microseconds, into `micros`."""

    def __init__(self, now_lua: str = SERVER_TIME) -> None:
        self.commit = Script("commit", now_lua)
        self.put = Script("put", now_lua)
        self.fetch = Script("fetch", now_lua)
        self.scan = Script("scan", now_lua)
        self.peek = Script("peek", now_lua)
        self.take = Script("take", now_lua)
        self.epoch = Script("epoch", now_lua)


def _source(name: str) -> str:
    return files(__package__).joinpath("lua", f"{name}.lua").read_text("utf-8")


def _with_plain_constants(text: str) -> str:
    """Constants as plain numbers: as Lua locals they would be captured by every function in every call."""
    names: dict[str, str] = {}

    def note(line: re.Match[str]) -> str:
        names.update(zip(line[1].split(", "), line[2].split(", "), strict=True))
        return ""

    text = re.sub(r"^local ([A-Z_, ]+) = ([0-9, ]+)$", note, text, flags=re.MULTILINE)
    return re.sub(rf"\b({'|'.join(names)})\b", lambda name: names[name[1]], text)
