"""Ways in which a disk fails: calls that return an error, short writes, a full file system."""

from __future__ import annotations

import contextlib
import resource
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from tests.faults.catalogue.killing.round import forked
from tests.faults.catalogue.killing.strace import Traced

__all__ = ["DiskFault", "Injected", "Short", "Small", "small_disk"]

Work = Callable[[], object]


class DiskFault(Protocol):
    @property
    def name(self) -> str: ...

    def around(self, work: Work, database: Path) -> int:
        """Do the work under the fault, in a process of its own; return how it ended."""

    def is_sure(self, database: Path) -> bool:
        """Whether the fault is known to have happened even if no call was refused."""


class Injected(Struct, frozen=True):
    """The n-th call of a kind fails, and all later ones if the fault is lasting."""

    call: str
    error: str
    nth: int
    lasting: bool

    @property
    def name(self) -> str:
        return f"{self.error} at {self.call}"

    def around(self, work: Work, database: Path) -> int:
        when = f"{self.nth}+" if self.lasting else str(self.nth)
        traced = Traced(
            work,
            f"trace={self.call}",
            f"inject={self.call}:error={self.error}:when={when}",
            output=str(database.with_name("strace")),
        )
        return traced.end() if traced.attached else 1

    def is_sure(self, database: Path) -> bool:
        return "(INJECTED)" in database.with_name("strace").read_text()


class Short(Struct, frozen=True):
    """The log may grow by a number of bytes: the write that crosses the limit is short, and the next one fails."""

    room: int
    name: str = "short write"

    def around(self, work: Work, database: Path) -> int:
        def limited() -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            log = database.with_name(database.name + "-wal")  # gone, if the fork closed the last connection
            most = (log.stat().st_size if log.exists() else 0) + self.room
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
            work()

        return forked(limited)

    def is_sure(self, database: Path) -> bool:
        return False


class Small(Struct, frozen=True):
    """A file system with little free space, until some is freed."""

    room: int
    name: str = "no room on the file system"

    def around(self, work: Work, database: Path) -> int:
        filler = database.with_name("filler")
        try:
            fill(filler, self.room)
            return forked(work)
        finally:
            filler.unlink()

    def is_sure(self, database: Path) -> bool:
        return False


def fill(path: Path, room: int) -> None:
    with path.open("wb", buffering=0) as file:
        with contextlib.suppress(OSError):
            while True:
                file.write(b"\0" * 4_096)
        file.truncate(max(0, path.stat().st_size - room))


@contextlib.contextmanager
def small_disk(directory: Path, size: str) -> Iterator[str]:
    """Mount a file system of that size there. Yields "", or why that is not possible."""
    directory.mkdir()
    try:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(directory)], capture_output=True, text=True
        )
    except FileNotFoundError:
        yield "there is no mount command"
        return
    if done.returncode:
        yield f"a small file system cannot be mounted: {done.stderr.strip()[:200]}"
        return
    try:
        yield ""
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)
