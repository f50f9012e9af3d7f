"""Records of resources: the value itself, or a reference to a blob; finding and removing orphaned blobs."""

from __future__ import annotations

import io
import logging
from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from hashlib import sha256
from itertools import groupby
from tempfile import SpooledTemporaryFile
from typing import IO, BinaryIO, cast

import msgspec
from msgspec import Struct, structs

from ...errors import Misuse, ResultNotKept, StoreUnavailable
from ...operations import InThread, Operation
from ...records import Address, Insert, Record, record_kind
from ...stores.base import Store, scan_all
from ..claim import body_of, run_id, space_of_run
from . import BlobInfo, BlobStore, file_of, is_ours, open_blob_store, path_of, run_of

__all__ = [
    "AWAY",
    "DAY",
    "IN_MEMORY",
    "RESOURCE_KIND",
    "TEXT",
    "BlobRef",
    "copy_blob",
    "delete_blobs",
    "externalise",
    "in_store",
    "load",
    "orphans",
    "put_blob",
    "remove_orphans",
]

RESOURCE_KIND = record_kind("resource", beside_run=True, expires=True)


DAY = 86_400.0


def orphans(store: Store, shelf: BlobStore, now: float, *, older_than: float = DAY) -> Operation[list[BlobInfo]]:
    """Return blobs without a record. Only old ones: a new one may be about to be recorded."""
    before = now - older_than
    found: list[BlobInfo] = yield from InThread(
        lambda: [kept for kept in shelf.listing() if kept.changed_at < before and is_ours(kept.path)]
    )
    lost: list[BlobInfo] = []
    for run, mine in groupby(sorted(found, key=lambda kept: kept.path), key=lambda kept: run_of(kept.path)):
        known = (yield from _files_of(store, run)) if run else set()
        lost += [kept for kept in mine if kept.path.rsplit("/", 1)[-1] not in known]
    return lost


def _files_of(store: Store, run: str) -> Operation[set[str]]:
    try:
        space = space_of_run(run)
    except Misuse:
        return set()
    return {file_of(record.at.key) for record in (yield from scan_all(store, RESOURCE_KIND, space=space))}


def remove_orphans(store: Store, shelf: BlobStore, now: float) -> Operation[int]:
    lost = yield from orphans(store, shelf, now)
    for kept in lost:
        yield from InThread(lambda kept=kept: shelf.remove(kept.path))  # type: ignore[misc]
    return len(lost)


log = logging.getLogger("twiceproof")

TEXT, BASE64, AWAY = "", "base64", "away"  # what a resource's record holds: the text, other bytes, or where they are
IN_MEMORY = 8 * 1024 * 1024
INLINE_MOST = 8 * 1024 * 1024  # larger ones go to a blob store only


class BlobRef(Struct, frozen=True):
    """The record of a resource in a blob store: where it is, its digest and size."""

    shelf: str
    path: str
    digest: str
    size: int


# -- putting -------------------------------------------------------------------------------------


def externalise(shelf: BlobStore | None, pieces: Sequence[Insert]) -> Operation[tuple[Insert, ...]]:
    """Return the writes with their values moved to the blob store, if there is one. Its failure loses no record."""
    if shelf is None or not pieces:
        return tuple(pieces)
    found = []
    for piece in pieces:
        stays = piece.state == AWAY or piece.at.kind != RESOURCE_KIND  # a message is no value of the run
        found += [piece] if stays else (yield from _place(shelf, piece))
    return tuple(found)


def _place(shelf: BlobStore, piece: Insert) -> Operation[list[Insert]]:
    data = piece.body.encode()
    try:
        return [(yield from put_blob(shelf, piece, io.BytesIO(data), sha256(data).hexdigest(), len(data)))]
    except StoreUnavailable as error:
        kept = len(data) <= INLINE_MOST
        log.warning("a resource goes %s: %s", "to the store instead" if kept else "nowhere", error)
        return [piece] if kept else []


def put_blob(shelf: BlobStore, piece: Insert, source: BinaryIO, digest: str, size: int) -> Operation[Insert]:
    """Store a blob before its record: a crash in between leaves an orphan, never a record without a value."""
    path = _path_at(piece.at)
    yield from InThread(lambda: shelf.put(path, source))
    return structs.replace(piece, body=body_of(BlobRef(shelf.url, path, digest, size)), state=AWAY)


def copy_blob(record: Record, at: Address) -> Operation[Insert]:
    """Return a copy for another run. A blob is copied too: each is removed with its own run."""
    piece = Insert(at, record.body, record.state)
    if record.state != AWAY:
        return piece
    away = _away_of(record)
    with (yield from load(record)) as file:
        return (yield from put_blob(open_blob_store(away.shelf), piece, cast(BinaryIO, file), away.digest, away.size))


def in_store(piece: Insert, data: bytes) -> Insert:
    return structs.replace(piece, body=b64encode(data).decode(), state=BASE64)


# -- getting -------------------------------------------------------------------------------------


def load(record: Record) -> Operation[IO[bytes]]:
    """Return the value, from the record or the blob store. A blob whose digest differs is refused."""
    if record.state == TEXT:
        return io.BytesIO(record.body.encode())
    if record.state == BASE64:
        return io.BytesIO(b64decode(record.body))
    away = _away_of(record)
    return (yield from InThread(lambda: _fetch(away)))


def _path_at(at: Address) -> str:
    return path_of(run_id(at.space), at.key)


def _away_of(record: Record) -> BlobRef:
    """Return the reference, if its path fits its address: a manipulated row could have any file read or removed."""
    away = msgspec.json.decode(record.body, type=BlobRef)
    if away.path != _path_at(record.at):
        raise _gone(away, "is not this run's own, and is left alone: its record was changed")
    return away


def _fetch(away: BlobRef) -> IO[bytes]:
    target = cast(IO[bytes], SpooledTemporaryFile(IN_MEMORY))  # noqa: SIM115 - handed to the caller
    try:
        if not open_blob_store(away.shelf).copy(away.path, cast(BinaryIO, target)):
            raise _gone(away, "is gone")
        if _digest(target) != away.digest:
            raise _gone(away, "is not what was put there")
    except BaseException:
        target.close()
        raise
    return target


def _digest(file: IO[bytes]) -> str:
    file.seek(0)
    digest = sha256()
    while part := file.read(1024 * 1024):
        digest.update(part)
    file.seek(0)
    return digest.hexdigest()


def _gone(away: BlobRef, what: str) -> ResultNotKept:
    return ResultNotKept(
        f"The resource {away.path} {what}; restore it from a backup of {away.shelf.partition('?')[0]}.",
        digest=away.digest,
        size=away.size,
    )


# -- forgetting ----------------------------------------------------------------------------------


def delete_blobs(records: Iterable[Record]) -> Operation[None]:
    """Remove the blobs of records that were just removed. What fails is found later, as an orphan."""
    for record in records:
        if record.at.kind == RESOURCE_KIND and record.state == AWAY:
            try:
                away = _away_of(record)
                yield from InThread(lambda away=away: open_blob_store(away.shelf).remove(away.path))  # type: ignore[misc]
            except (StoreUnavailable, ResultNotKept) as error:
                log.warning("a resource could not be removed yet: %s", error)
