"""How a batch becomes what the scripts read, and what they answer becomes records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from ..errors import BadWrite
from ..records import Address, Batch, Check, Conflict, Insert, Outcome, Record, Remove, Replace, Write, Written
from .redis_faults import named

__all__ = ["address", "encode", "found", "outcome", "packed_batch", "portions", "record", "record_key", "too_large"]

PUT, REMOVE, CHECK = 1, 2, 3
ABSENT, BY_FENCE, BY_VERSION = 0, 1, 2
NO_SUCH_VERSION = -1
ENOUGH_BYTES = 8 * 1024 * 1024
MOST_BYTES = 256 * 1024 * 1024

encode = msgspec.msgpack.Encoder().encode


class Stamp(msgspec.Struct, array_like=True, gc=False):
    """A record's field `m`, as the scripts pack it."""

    state: str
    version: int
    fence: int
    nonce: str
    created_at: float
    updated_at: float
    lease_until: float | None
    queue: str
    due_at: float | None


_stamp = msgspec.msgpack.Decoder(Stamp).decode


def address(kind: str, member: bytes) -> Address:
    """A member names a record in the indexes. No text holds a NUL, so the first one parts space and key."""
    space, _, key = member.decode().partition("\0")
    return Address(space, kind, key)


def record_key(lane: str, at: Address) -> str:
    return f"{lane}:r:{at.kind}\0{at.space}\0{at.key}"


def packed_batch(batch: Batch, lane: str, mark: str | None) -> msgspec.Raw:
    return msgspec.Raw(encode((lane, batch.nonce, [_packed(write) for write in batch.writes], mark)))


def portions(places: list[int], packed: Sequence[msgspec.Raw]) -> Iterator[list[int]]:
    """Places whose batches go into one call: a server reads no argument of more than 512 MB."""
    part: list[int] = []
    size = 0
    for i in places:
        length = len(memoryview(packed[i]))
        if length > MOST_BYTES:
            continue
        if part and size + length > ENOUGH_BYTES:
            yield part
            part, size = [], 0
        part.append(i)
        size += length
    if part:
        yield part


def too_large() -> BadWrite:
    return BadWrite(
        f"These writes together have more than {MOST_BYTES:,} bytes, which Redis does not take; split them."
    )


def _packed(write: Write) -> tuple[Any, ...]:
    at = write.at
    name = f"{at.space}\0{at.key}"
    if type(write) is Insert:
        return PUT, at.kind, name, ABSENT, 0, *_content(write)
    if type(write) is Replace:
        return PUT, at.kind, name, *_condition(write), *_content(write)
    if type(write) is Remove:
        return REMOVE, at.kind, name, *_condition(write)
    return CHECK, at.kind, name, *_condition(write)  # type: ignore[arg-type]


def _content(write: Insert | Replace) -> tuple[Any, ...]:
    return write.draw, write.state, write.lease, write.queue, write.due_in, write.body


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


def outcome(batch: Batch, answer: Any, now: float) -> Outcome | Exception:
    if type(answer) is int:
        return Written(str(answer), answer, now)
    index, *found = answer
    if index < 0:
        return named(found[0].decode(errors="replace"))
    at = batch.writes[index].at
    return Conflict(at, record(at, *found) if found else None, now)


def record(at: Address, m: bytes, body: bytes) -> Record:
    stamp = _stamp(m)
    return Record(
        at,
        body.decode(),
        stamp.state,
        str(stamp.version),
        stamp.fence,
        stamp.nonce,
        stamp.created_at,
        stamp.updated_at,
        stamp.lease_until,
        stamp.queue,
        stamp.due_at,
    )


def found(at: Address, pair: Sequence[bytes | None]) -> Record | None:
    m, body = pair
    return None if m is None or body is None else record(at, m, body)
