"""Says to other processes that a SQLite file is open here, by locks that no close of another descriptor drops.

SQLite locks with POSIX locks. They belong to a process, and the close of *any* descriptor of the file drops all of
them: of a copy that is made in this process, or of another SQLite library in it. The next process that ends then takes
itself for the file's last user and removes the log: what is acknowledged here from then on is lost. Locks of an open
file description (OFD) last as long as their own descriptor; they lie where SQLite looks for other users.

Nor does SQLite know of forks: a child finds its parent's files in SQLite's own memory, believes that their locks are
its own, and takes none. Connections are therefore closed before a fork. Where one was in use then, the file is refused
in the child.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import threading
from pathlib import Path
from typing import NamedTuple

from ...errors import StoreUnsafe
from ...threads import at_fork
from ..base import Finding

__all__ = ["OpenFile", "carried_over", "opening"]


Inode = tuple[int, int]
SET_LOCK = getattr(fcntl, "F_OFD_SETLK", None)  # Linux; elsewhere SQLite's own locks must do
GET_LOCK = getattr(fcntl, "F_OFD_GETLK", None)
FLOCK = "@hhqqi0q"  # struct flock: kind, whence, start, length, process; padded to its own size


class _Span(NamedTuple):
    """Bytes that SQLite's processes lock, of the file itself or of one beside it."""

    suffix: str
    start: int
    length: int


IN_USE = (
    _Span("", 0x4000_0002, 510),  # shared by all users; the last one to close asks for it alone, then removes the log
    _Span("-shm", 128, 1),  # likewise; a process that finds it free initialises the shared memory
)
ANY_USE = (IN_USE[0], _Span("-shm", 120, 9))  # every lock that a connection can have in a file with a log


class OpenFile:
    """A SQLite file as this process has it open, by however many connections."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptors: dict[str, tuple[int, Inode]] = {}
        self.connections = 0
        self._held = False

    @property
    def held(self) -> bool:
        return self._held

    def hold(self) -> None:
        """Once a connection has read from it, and so has SQLite's own locks: until then no process is locked out."""
        with _files.mutex:
            if SET_LOCK is not None and not self._held:
                for span in IN_USE:
                    with contextlib.suppress(OSError):  # a file system without such locks
                        _lock(self._descriptor(span.suffix), fcntl.F_RDLCK, span)
            self._held = True

    def leave(self) -> None:
        """Before a connection is closed: SQLite tidies up after the last one only if it finds no lock of ours."""
        with _files.mutex:
            self.connections -= 1
            if self.connections == 0 and self._held:
                self._held = False
                for span in IN_USE:
                    if span.suffix in self._descriptors:
                        with contextlib.suppress(OSError):
                            _lock(self._descriptors[span.suffix][0], fcntl.F_UNLCK, span)

    def put_away(self) -> None:
        """After a connection was closed. To close our descriptors would drop the locks of others in this process."""
        with _files.mutex:
            if self.connections == 0 and not any(self._is_used(span) for span in ANY_USE):
                self.close_descriptors()

    def close_descriptors(self) -> None:
        while self._descriptors:
            _close(*self._descriptors.popitem()[1])

    @property
    def is_put_away(self) -> bool:
        return self.connections == 0 and not self._descriptors

    def _is_used(self, span: _Span) -> bool:
        if span.suffix not in self._descriptors or GET_LOCK is None:
            return False
        asked = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, span.start, span.length, 0)
        try:
            answer = fcntl.fcntl(self._descriptors[span.suffix][0], GET_LOCK, asked)
        except OSError:
            return False
        return bool(struct.unpack(FLOCK, answer)[0] != fcntl.F_UNLCK)

    def _descriptor(self, suffix: str) -> int:
        """Ours, if it still is of the file by that name."""
        name = f"{self._path}{suffix}"
        if suffix in self._descriptors:
            descriptor, known = self._descriptors[suffix]
            if _inode(os.stat(name)) == known == _inode_of(descriptor):  # noqa: PTH116
                return descriptor
            _close(*self._descriptors.pop(suffix))
        descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
        self._descriptors[suffix] = descriptor, _inode(os.fstat(descriptor))
        return descriptor


class _Files:
    """Those that this process has open."""

    def __init__(self) -> None:
        self.known: dict[Inode, OpenFile] = {}
        self.refused: set[Inode] = set()  # in use by the parent when this process was forked
        self.mutex = threading.RLock()  # a collection may close a connection anywhere, also in here
        self.process = os.getpid()
        at_fork(self, in_child=_Files.reset)

    def reset(self) -> None:
        """In a forked child, which has no locks yet that the close of a descriptor could drop."""
        self.mutex = threading.RLock()
        self.process = os.getpid()
        known, self.known = self.known, {}
        self.refused |= {inode for inode, file in known.items() if file.connections}
        for file in known.values():
            file.close_descriptors()

    def tidy(self) -> None:
        for inode in list(self.known):
            file = self.known.get(inode)
            if file is not None and file.connections == 0:
                file.put_away()
                if file.is_put_away:
                    self.known.pop(inode, None)


_files = _Files()


def opening(path: Path) -> OpenFile | None:
    """Before a connection to it is opened; None where there is no such file yet."""
    if _files.process != os.getpid():
        _files.reset()  # a fork that did not run Python's hooks, as in some servers
    try:
        inode = _inode(path.stat())
    except OSError:
        return None
    with _files.mutex:
        if inode in _files.refused:
            raise _forked(path)
        _files.tidy()
        file = _files.known.setdefault(inode, OpenFile(path.resolve()))
        file.connections += 1
        return file


def carried_over(path: Path) -> None:
    """In a forked child: the parent was in the middle of a transaction on this file."""
    with contextlib.suppress(OSError):
        _files.refused.add(_inode(path.stat()))


def _forked(path: Path) -> StoreUnsafe:
    finding = Finding(
        "refuse",
        "fork",
        f"this process was forked while its parent was at work on {path}",
        "Fork when no call is under way, or open the app only in the children (multiprocessing: the start method "
        '"spawn"; uWSGI: lazy-apps), or use postgresql://.',
    )
    return StoreUnsafe(
        f"This process was forked while its parent was at work on {path}; SQLite would take the parent's locks for its "
        f"own, and lose what is written. {finding.advice}",
        findings=[finding],
    )


def _lock(descriptor: int, kind: int, span: _Span) -> None:
    if SET_LOCK is not None:
        fcntl.fcntl(descriptor, SET_LOCK, struct.pack(FLOCK, kind, os.SEEK_SET, span.start, span.length, 0))


def _close(descriptor: int, known: Inode) -> None:
    """Unless other code closed it, and its number belongs to another file by now."""
    if _inode_of(descriptor) == known:
        with contextlib.suppress(OSError):
            os.close(descriptor)


def _inode_of(descriptor: int) -> Inode | None:
    try:
        return _inode(os.fstat(descriptor))
    except OSError:
        return None


def _inode(found: os.stat_result) -> Inode:
    return found.st_dev, found.st_ino
