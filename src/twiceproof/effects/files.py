"""Files written as a whole, created once, or extended by one record: `files.write`, `files.create`, `files.append`.

A file appears under its name only when its contents are on disk, so a crash or a power cut leaves the whole old file or
the whole new one. This holds on local file systems; network file systems make no such promise.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import tempfile
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar

import msgspec
from msgspec import Struct

from ..errors import Misuse, NotDone, OutcomeUnknown
from .base import Absent, Happened, Look, Unknown
from .repeat import SAFE, Declared, check

__all__ = ["FileAppend", "FileCreate", "FileWrite", "WrittenFile", "append", "create", "write"]

PIECE = 1 << 20
TAIL = 64 << 20
PLACEHOLDER = "{effect_key}"
NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV)


class WrittenFile(Struct, frozen=True):
    """What was written: `size` and `sha256` are those of the data, for `append` of the record."""

    path: str
    size: int
    sha256: str


def write(path: str | Path, data: bytes | str, *, mode: int = 0o644) -> FileWrite:
    """Write a file as a whole, replacing what is there. `mode` is for a new file; an existing one keeps its own."""
    return FileWrite(_absolute(path), _bytes_of(data), mode)


def create(path: str | Path, data: bytes | str, *, mode: int = 0o644) -> FileCreate:
    """Create a file as a whole, and never replace one. An existing file with other contents is a final refusal."""
    return FileCreate(_absolute(path), _bytes_of(data), mode)


def append(path: str | Path, record: Mapping[str, Any] | str, *, tail: int = TAIL) -> FileAppend:
    """Add one line to a file. The line contains the effect key, by which it is found again.

    A mapping becomes a line of JSON with a further member `effect_key`; a text has the place of the key in it:
    `"{effect_key};order 17;paid"`. The last `tail` bytes are searched: if a longer file does not have the line there,
    the outcome is unknown.
    """
    if isinstance(record, str):
        if PLACEHOLDER not in record or "\n" in record:
            raise Misuse(f"A record is one line with {PLACEHOLDER} in it, so that it can be found again; add it.")
        return FileAppend(_absolute(path), record, tail)
    if "effect_key" in record:
        raise Misuse("The member effect_key of a record is written by append; leave it out, or give it another name.")
    text = msgspec.json.encode({**record, "effect_key": PLACEHOLDER}).decode()
    return FileAppend(_absolute(path), text, tail)


class _WholeFile(Struct, frozen=True):
    """What `write` and `create` have in common."""

    path: str
    data: bytes
    mode: int = 0o644

    verb: ClassVar[str]

    @property
    def name(self) -> str:
        return f"{self.verb} {Path(self.path).name}"

    @property
    def repeat(self) -> Declared:
        return SAFE

    @property
    def result_type(self) -> Any:
        return WrittenFile

    def describe(self) -> dict[str, Any]:
        return {self.verb: self.path, "sha256": sha256(self.data).hexdigest()}


class FileWrite(_WholeFile, frozen=True):
    """`files.write(…)`. Writing the same bytes again changes nothing."""

    verb: ClassVar[str] = "write"

    def perform(self, effect_key: str) -> WrittenFile:
        target = Path(os.path.realpath(self.path))  # a symbolic link stays one, and its target is replaced
        with _refusing(self.path), _temporary(target, self.data, _mode_of(target, self.mode)) as half:
            half.replace(target)
        _sync_folder(target)
        return _receipt(self.path, self.data)

    def look(self, effect_key: str) -> Look:
        found = _contents(self.path)
        if isinstance(found, bytes):
            return Happened(_receipt(self.path, self.data)) if found == self.data else Absent()
        return found


class FileCreate(_WholeFile, frozen=True):
    """`files.create(…)`. A file with the same contents counts as created by an earlier attempt."""

    verb: ClassVar[str] = "create"

    def perform(self, effect_key: str) -> WrittenFile:
        target = Path(self.path)
        with _refusing(self.path), _temporary(target, self.data, self.mode) as half:
            try:
                os.link(half, target)
            except FileExistsError:
                self._refuse_foreign()
            except OSError as error:
                if error.errno not in NO_LINKS:
                    raise
                raise NotDone(
                    f"{self.path} cannot be created once: its file system has no hard links ({error.strerror}). Use "
                    "another directory, or files.write.",
                    final=True,
                ) from error
        _sync_folder(target)
        return _receipt(self.path, self.data)

    def _refuse_foreign(self) -> None:
        if _contents(self.path) != self.data:
            raise NotDone(
                f"{self.path} is there already, with other contents; choose another name, or remove it.", final=True
            )

    def look(self, effect_key: str) -> Look:
        found = _contents(self.path)
        if isinstance(found, bytes):
            ours = found == self.data
            return Happened(_receipt(self.path, self.data)) if ours else Unknown("another file has this name")
        return found


class FileAppend(Struct, frozen=True):
    """`files.append(…)`. Holds only if every writer of the file appends whole lines, and it is not rotated."""

    path: str
    record: str
    tail: int = TAIL

    @property
    def name(self) -> str:
        return f"append to {Path(self.path).name}"

    @property
    def repeat(self) -> Declared:
        return check(self.look)

    @property
    def result_type(self) -> Any:
        return WrittenFile

    def describe(self) -> dict[str, Any]:
        return {"append": self.path, "record": self.record}

    def perform(self, effect_key: str) -> WrittenFile:
        line = self._line(effect_key)
        with _refusing(self.path):
            descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            with _refusing(self.path):
                fcntl.flock(descriptor, fcntl.LOCK_EX)  # of two attempts at one step, the second finds the line
                if _find_line(descriptor, line, self.tail) is not True:
                    _append_line(descriptor, line, self.path)
            _sync(descriptor, self.path)
        finally:
            os.close(descriptor)
        _sync_folder(Path(self.path))
        return _receipt(self.path, line)

    def look(self, effect_key: str) -> Look:
        line = self._line(effect_key)
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return _missing(self.path)
        except OSError as error:
            return Unknown(f"{self.path} cannot be read ({error.strerror})", failed=True)
        try:
            found = _find_line(descriptor, line, self.tail)
        except OSError as error:
            return Unknown(f"{self.path} cannot be read ({error.strerror})", failed=True)
        finally:
            os.close(descriptor)
        if found is None:
            return Unknown(f"it is not among the last {self.tail:,} bytes of {self.path}, and the file is longer")
        return Happened(_receipt(self.path, line)) if found else Absent()

    def _line(self, effect_key: str) -> bytes:
        return self.record.replace(PLACEHOLDER, effect_key).encode() + b"\n"


# -- contents ------------------------------------------------------------------------------------------


def _absolute(path: str | Path) -> str:
    """Make the path independent of the process's working directory, which another worker need not share."""
    text = os.fspath(path)
    if not text or "\0" in text:
        raise Misuse("A file needs a name; give its path.")
    return str(Path(text).absolute())


def _bytes_of(data: bytes | str) -> bytes:
    if isinstance(data, str):
        return data.encode()
    if isinstance(data, bytes):
        return data
    raise Misuse(f"A file's contents are bytes or text, not {type(data).__name__}; convert them first.")


def _receipt(path: str, data: bytes) -> WrittenFile:
    return WrittenFile(path, len(data), sha256(data).hexdigest())


def _contents(path: str) -> bytes | Look:
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        return _missing(path)
    except OSError as error:
        return Unknown(f"{path} cannot be read ({error.strerror})", failed=True)


def _missing(path: str) -> Look:
    """If the folder is missing too, the outcome is unknown: the file system may not be mounted."""
    folder = Path(path).parent
    return Absent() if folder.is_dir() else Unknown(f"{folder} is not there", failed=True)


# -- writing -------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _temporary(target: Path, data: bytes, mode: int) -> Iterator[Path]:
    """A temporary file beside the target, flushed to disk; removed afterwards if it still has this name."""
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name[:100]}.", suffix=".tmp", dir=target.parent)
    half = Path(name)
    try:
        try:
            os.fchmod(descriptor, mode)
            _write_all(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        yield half
    finally:
        with contextlib.suppress(OSError):
            half.unlink()


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _mode_of(target: Path, mode: int) -> int:
    try:
        return target.stat().st_mode & 0o7777
    except FileNotFoundError:
        return mode


def _append_line(descriptor: int, line: bytes, path: str) -> None:
    """Write the line in one call, preceded by a line break if the last writer died within a line."""
    size = os.fstat(descriptor).st_size
    torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
    whole = b"\n" + line if torn else line
    written = os.write(descriptor, whole)
    if written < len(whole):
        _take_back(descriptor, size, written, path)


def _take_back(descriptor: int, size: int, written: int, path: str) -> None:
    """Remove the beginning of a line that did not fit on the disk, unless another writer has appended to it."""
    if os.fstat(descriptor).st_size != size + written:
        raise NotDone(f"{path} has no room: the beginning of a record is in it, and the record is not; free some.")
    os.ftruncate(descriptor, size)
    raise NotDone(f"{path} has no room for the record; free some, then try again.")


def _find_line(descriptor: int, line: bytes, tail: int) -> bool | None:
    """Whether this exact line is in the file; None: it is not in the part that was searched."""
    size = os.fstat(descriptor).st_size
    start = max(0, size - tail)
    at, before = start, b"" if start else b"\n"
    wanted = b"\n" + line
    while piece := os.pread(descriptor, PIECE, at):
        window = before + piece
        if wanted in window:
            return True
        before, at = window[-len(wanted) :], at + len(piece)
    return None if start else False


@contextlib.contextmanager
def _refusing(path: str) -> Iterator[None]:
    """Raise NotDone for errors before the file has its name: nothing has happened until then."""
    try:
        yield
    except OSError as error:
        raise NotDone(
            f"{path} cannot be written ({error.strerror or error}); nothing was changed. See that its folder is there "
            "and may be written to."
        ) from error


def _sync(descriptor: int, path: str) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise OutcomeUnknown(f"{path} is written, and may not survive a power cut ({error.strerror}).") from error


def _sync_folder(target: Path) -> None:
    """Flush the folder, without which a new name may not survive a power cut."""
    try:
        descriptor = os.open(target.parent, os.O_RDONLY)
    except OSError as error:
        raise OutcomeUnknown(f"{target} is written, and its folder cannot be opened ({error.strerror}).") from error
    try:
        _sync(descriptor, str(target))
    finally:
        os.close(descriptor)
