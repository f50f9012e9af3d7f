"""What a SQLite file can promise here: the file system, the settings, the room that is left."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

from ...clock import Clock
from ...errors import StoreUnsafe
from ...safe_text import quoted
from ..base import Finding
from .rows import PER_SECOND, number_at

__all__ = ["examine", "note_host", "refuse_unsafe"]


NETWORK_FILE_SYSTEMS = ("nfs", "cifs", "smb", "fuse", "9p", "afs", "ceph", "glusterfs", "lustre")
GIGABYTE = 1024**3
AHEAD = 60.0  # seconds by which the numbers of fences may be ahead of the clock
SETS_WAL = "Open the file with twiceproof, which sets WAL."


def refuse_unsafe(path: Path) -> None:
    """The write-ahead log needs memory shared between processes: a network file system has none."""
    found = _file_system(path)
    if found.level == "refuse":
        raise StoreUnsafe(f"{path}: {found.found}. {found.advice}", findings=[found])


def examine(db: sqlite3.Connection, path: Path, clock: Clock) -> list[Finding]:
    return [
        _file_system(path),
        _journal_mode(db),
        _synchronous(db),
        _version(),
        _integrity(db),
        _free_space(path),
        _log_size(path),
        _private(path),
        _numbers(db, clock),
        *_restored(db),
        *_hosts(db, clock),
    ]


def _file_system(path: Path) -> Finding:
    kind = mount_kind(path)
    if kind.startswith(NETWORK_FILE_SYSTEMS):
        return Finding(
            "refuse",
            "file system",
            f"{kind} is a network or user-space file system, where SQLite's log can lose writes",
            "Put the file on a local disk, or use postgresql://.",
        )
    if kind == "overlay":
        return Finding(
            "warn",
            "file system",
            "overlay: the container's own layer, gone when the container is removed",
            "Put the file on a mounted volume.",
        )
    if kind == "tmpfs":
        return Finding("warn", "file system", "tmpfs: memory, gone after a reboot", "Put the file on a disk.")
    return Finding("ok", "file system", kind)


def mount_kind(path: Path, mounts: Path = Path("/proc/mounts")) -> str:
    """The type of the file system that holds the path, as the kernel reports it; "unknown" elsewhere."""
    try:
        lines = mounts.read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return "unknown"
    where = path.resolve()
    best, kind = -1, "unknown"
    for line in lines:
        _, point, name, *_ = line.split(" ")
        point = point.replace("\\040", " ")
        if (where == Path(point) or Path(point) in where.parents) and len(point) >= best:
            best, kind = len(point), name
    return kind


def _journal_mode(db: sqlite3.Connection) -> Finding:
    (mode,) = db.execute("PRAGMA journal_mode").fetchone()
    if mode in ("off", "memory"):
        return Finding("refuse", "journal_mode", f"{mode}: a crash can damage the file", SETS_WAL)
    if mode != "wal":
        return Finding("warn", "journal_mode", f"{mode}: readers and writers wait for each other", SETS_WAL)
    return Finding("ok", "journal_mode", mode)


def _synchronous(db: sqlite3.Connection) -> Finding:
    (level,) = db.execute("PRAGMA synchronous").fetchone()
    if level < 2:
        return Finding(
            "warn",
            "synchronous",
            "below FULL: acknowledged writes survive a crash, not a power cut",
            "Leave out ?durability=process to sync every commit.",
        )
    return Finding("ok", "synchronous", "FULL: acknowledged writes survive a power cut")


def _version() -> Finding:
    level = "ok" if sqlite3.sqlite_version_info >= (3, 35) else "warn"
    return Finding(
        level, "SQLite version", sqlite3.sqlite_version, "" if level == "ok" else "Upgrade SQLite to 3.35 or later."
    )


def _integrity(db: sqlite3.Connection) -> Finding:
    """All of it: quick_check does not compare indexes with rows, and a claim that its index has lost is won twice."""
    try:
        (verdict,) = db.execute("PRAGMA integrity_check(1)").fetchone()
    except sqlite3.DatabaseError as error:  # so damaged that it cannot even be checked
        verdict = str(error)
    if verdict != "ok":
        return Finding("refuse", "integrity", verdict, "Stop writing and restore the file from a backup.")
    return Finding("ok", "integrity", "integrity_check found nothing")


def _free_space(path: Path) -> Finding:
    free = shutil.disk_usage(path.resolve().parent).free
    level = "ok" if free >= GIGABYTE else "warn"
    return Finding(level, "free space", f"{free / GIGABYTE:.1f} GiB", "" if level == "ok" else "Free some disk space.")


def _log_size(path: Path) -> Finding:
    log = path.with_name(path.name + "-wal")
    size = log.stat().st_size if log.exists() else 0
    if size > 100 * 1024**2:
        return Finding(
            "warn",
            "log",
            f"{size / 1024**2:.0f} MiB of write-ahead log: something keeps a read open",
            "Find the process that holds a long read on the file.",
        )
    return Finding("ok", "log", f"{size / 1024**2:.1f} MiB")


def _private(path: Path) -> Finding:
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        return Finding(
            "warn",
            "permissions",
            f"{mode:04o}: others can read the results",
            f"chmod 600 {quoted(str(path.absolute()))}",
        )
    return Finding("ok", "permissions", f"{mode:04o}")


def _numbers(db: sqlite3.Connection, clock: Clock) -> Finding:
    """A file that was copied back cannot tell; its numbers, which follow the time, are not drawn again."""
    (number,) = db.execute("SELECT number FROM twiceproof_counter").fetchone()
    ahead = (number - number_at(clock.now())) / PER_SECOND
    if ahead > AHEAD:
        return Finding(
            "warn",
            "fences",
            f"{ahead / 60:,.0f} minutes ahead of this machine's clock: a file that is copied back before then draws "
            "some of them again",
            "Set the clock right, and restore no older copy of this file until that time has come.",
        )
    return Finding(
        "ok",
        "fences",
        "follow the clock: a file that was copied back draws none again, but lacks what was done since the copy",
    )


def _restored(db: sqlite3.Connection) -> Iterator[Finding]:
    for (noticed,) in db.execute("SELECT value FROM twiceproof_facts WHERE name='restored'"):
        yield Finding(
            "warn",
            "restored",
            f"the file was copied or restored, noticed {noticed}",
            "What was done since the backup may be done again: settle it, then run twiceproof doctor --accept-server",
        )


def host_id() -> str:
    for name in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        try:
            return Path(name).read_text().strip()
        except OSError:
            continue
    return os.uname().nodename


def note_host(db: sqlite3.Connection, now: float) -> None:
    """Leave a trace of this machine, so that a second one can be noticed."""
    name = f"host:{host_id()}"
    known = db.execute("SELECT value FROM twiceproof_facts WHERE name=?", (name,)).fetchone()
    if known is None or now - float(known[0]) > 60:
        db.execute("INSERT OR REPLACE INTO twiceproof_facts VALUES (?, ?)", (name, repr(now)))


def _hosts(db: sqlite3.Connection, clock: Clock) -> Iterator[Finding]:
    """One file, two machines: their locks do not see each other."""
    me, now = host_id(), clock.now()
    for name, seen in db.execute("SELECT name, value FROM twiceproof_facts WHERE name LIKE 'host:%'"):
        if name == f"host:{me}":
            continue
        recent = now - float(seen) < 600
        yield Finding(
            "refuse" if recent else "warn",
            "hosts",
            f"another machine opened this file {'just now' if recent else 'before'}",
            "Let one machine use the file, or use postgresql://.",
        )
