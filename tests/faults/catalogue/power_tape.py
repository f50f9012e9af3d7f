"""What a real process asked of the disk, in order: recorded by strace, with the bytes that it wrote."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import Struct

__all__ = ["CALLS", "Op", "read_tape", "record"]

CALLS = "openat,pwrite64,write,ftruncate,fdatasync,fsync,unlink,rename,link"
ROOT = Path(__file__).parents[3]

_FD = r"\d+<(?P<path>[^>]*)>"
_BYTES = r'"(?P<data>(?:\\x[0-9a-f]{2})*)"'
_LINE = re.compile(
    rf"(?:(?P<write>p?write(?:64)?)\({_FD}, {_BYTES}, \d+(?:, (?P<offset>\d+))?\) += (?P<wrote>\d+)"
    rf"|(?P<truncate>ftruncate)\({_FD.replace('path', 'cut')}, (?P<size>\d+)\) += 0"
    rf"|(?P<sync>f(?:data)?sync)\({_FD.replace('path', 'synced')}\) += 0"
    rf"|(?P<create>openat)\([^)]*O_CREAT[^)]*\) += {_FD.replace('path', 'opened')}"
    rf"|(?P<remove>unlink)\({_BYTES.replace('data', 'gone')}\) += 0"
    rf"|(?P<name>rename|link)\({_BYTES.replace('data', 'old')}, {_BYTES.replace('data', 'new')}\) += 0)"
)
_UNFINISHED, _RESUMED = " <unfinished ...>", re.compile(r"<\.\.\. \w+ resumed>")


class Op(Struct, frozen=True):
    """One act on one file (or on its directory, for `sync`): create, write, truncate, sync, remove, rename or link."""

    kind: str
    path: str
    offset: int = 0  # of a write; the length of a truncation
    data: bytes = b""  # of a write; the other name of a file that is renamed or linked


def record(directory: Path, durability: str, calls: int) -> list[Op]:
    """Run the work under strace."""
    (directory / "disk").mkdir()
    strace = ["strace", "-f", "-qq", "-y", "-xx", "-s", "9999999", "-e", f"trace={CALLS}", "-o", directory / "tape"]
    work = [sys.executable, "-m", "tests.faults.catalogue.power_work", directory, durability, str(calls)]
    subprocess.run([*strace, *work], cwd=ROOT, env=os.environ, check=True, timeout=300)
    with (directory / "tape").open() as tape:
        return [op for op in read_tape(tape) if Path(op.path).is_relative_to(directory)]


def read_tape(lines: Iterable[str]) -> Iterator[Op]:
    for line in _whole(lines):
        if found := _LINE.match(line):
            yield _op(found)


def _whole(lines: Iterable[str]) -> Iterator[str]:
    """Join calls that strace splits at another thread's call. They count when they return, not before."""
    begun: dict[str, str] = {}
    for line in lines:
        process, _, call = line.rstrip("\n").partition(" ")
        call = call.lstrip()
        if call.endswith(_UNFINISHED):
            begun[process] = call.removesuffix(_UNFINISHED)
        elif found := _RESUMED.match(call):
            yield begun.pop(process, "") + call[found.end() :]
        else:
            yield call


def _op(found: re.Match[str]) -> Op:
    if found["write"]:
        data = _bytes(found["data"])[: int(found["wrote"])]
        return Op("write", _text(found["path"]), int(found["offset"] or -1), data)
    if found["truncate"]:
        return Op("truncate", _text(found["cut"]), int(found["size"]))
    if found["sync"]:
        return Op("sync", _text(found["synced"]))
    if found["create"]:
        return Op("create", _text(found["opened"]))
    if found["name"]:
        return Op(found["name"], _bytes(found["old"]).decode(), data=_bytes(found["new"]))
    return Op("remove", _bytes(found["gone"]).decode())


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))


def _text(path: str) -> str:
    """With -xx, strace writes the paths of descriptors that way too."""
    return _bytes(path).decode() if path.startswith("\\x") else path
