"""Blob stores: where large values are kept outside of the ledger, a directory or an S3-compatible bucket."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from hashlib import blake2b
from typing import BinaryIO, Protocol

from msgspec import Struct

from ...errors import Misuse
from ..claim import RUN_ID

__all__ = ["HALF", "BlobInfo", "BlobStore", "file_of", "is_ours", "open_blob_store", "path_of", "run_of"]


CHUNK = 200  # file systems end names at 255 bytes; the id of a run may be longer
SUFFIX = ".res"
HALF = ".half-"  # how a file is called while it is written


class BlobInfo(Struct, frozen=True):
    """A stored blob."""

    path: str
    changed_at: float  # by the clock of the blob store


class BlobStore(Protocol):
    """Blocking. A path is relative, with slashes. What is put is there as a whole, or not at all."""

    url: str

    def put(self, path: str, source: BinaryIO) -> None: ...

    def copy(self, path: str, target: BinaryIO) -> bool:
        """Copy a blob to a file. False: there is no such blob."""

    def remove(self, path: str) -> None: ...

    def listing(self) -> Iterator[BlobInfo]: ...


def path_of(run: str, key: str) -> str:
    """Return a blob's path. It begins with the run's id, so that the owner can be found from the path alone."""
    parts = [run[start : start + CHUNK] for start in range(0, len(run), CHUNK)]
    return "/".join([*parts, file_of(key)])


def file_of(key: str) -> str:
    return blake2b(key.encode(), digest_size=16).hexdigest() + SUFFIX


def run_of(path: str) -> str:
    """Return the run of a path; "" for a half-written file."""
    *parts, name = path.split("/")
    return "".join(parts) if name.endswith(SUFFIX) else ""


def is_ours(path: str) -> bool:
    """Return whether a path is one of ours: other files, even the ledger, may be in the same directory."""
    name = path.rsplit("/", 1)[-1]
    return path.startswith(RUN_ID) and (name.endswith(SUFFIX) or name.startswith(HALF))


@functools.cache
def open_blob_store(url: str) -> BlobStore:
    """Open the blob store of a URL, `dir:///var/lib/shop` or `s3://bucket/prefix`, once per process."""
    scheme = url.partition("://")[0]
    if scheme == "dir":
        from .directory import DirectoryShelf

        return DirectoryShelf(url)
    if scheme == "s3":
        from .s3 import S3Shelf

        return S3Shelf(url)
    raise Misuse(f'resources="{scheme}://…" is no place for resources; use dir:///path or s3://bucket/prefix.')
