"""Large values as files of a directory that all processes share. Written as a whole, readable by their owner only."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote, urlsplit

from ...errors import Misuse, StoreUnavailable
from . import HALF, BlobInfo

__all__ = ["DirectoryShelf"]


TRIES = 3


class DirectoryShelf:
    def __init__(self, url: str) -> None:
        self.url = url
        split = urlsplit(url)
        if split.netloc or not split.path.strip("/"):
            raise Misuse(f"{url} names no directory; write it with three slashes: dir:///var/lib/shop/resources")
        self.root = Path(unquote(split.path))

    def put(self, path: str, source: BinaryIO) -> None:
        target = self.root / path
        with _telling(self.url):
            descriptor, half = self._half_file(target.parent)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    shutil.copyfileobj(source, file)
                    file.flush()
                    os.fsync(file.fileno())
                Path(half).replace(target)
            except BaseException:
                with contextlib.suppress(OSError):
                    Path(half).unlink()
                raise
            _sync(target.parent)

    def _half_file(self, folder: Path) -> tuple[int, str]:
        """Create a temporary file; again, if another process removes the empty folder meanwhile."""
        for _ in range(TRIES):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                return tempfile.mkstemp(prefix=HALF, dir=folder)
        raise FileNotFoundError(f"{folder} does not stay")

    def copy(self, path: str, target: BinaryIO) -> bool:
        with _telling(self.url):
            try:
                source = (self.root / path).open("rb")
            except FileNotFoundError:
                if self.root.is_dir():
                    return False
                raise  # not mounted: nothing can be said about what is in it
            with source:
                shutil.copyfileobj(source, target)
            return True

    def remove(self, path: str) -> None:
        """Remove a blob, and the folders around it that are empty then."""
        target = self.root / path
        with _telling(self.url):
            target.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                for folder in target.parents:
                    if folder == self.root:
                        break
                    folder.rmdir()

    def listing(self) -> Iterator[BlobInfo]:
        with _telling(self.url):
            for path in self.root.rglob("*"):
                with contextlib.suppress(FileNotFoundError):
                    if path.is_file():
                        yield BlobInfo(path.relative_to(self.root).as_posix(), path.stat().st_mtime)


def _sync(folder: Path) -> None:
    """Flush a folder to disk: only then does a new name survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _telling(url: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreUnavailable(
            f"The resources in {url} cannot be reached ({error.strerror or error}); check that the directory is there "
            "and writable, then try again.",
            unsure=False,
        ) from error
