"""Facts about the machine and the software: ratios travel, but not everywhere."""

from __future__ import annotations

import os
import platform
import sqlite3
import sys
import tempfile
import timeit
from importlib import metadata
from pathlib import Path

__all__ = ["facts"]

TURNS = 100_000

PACKAGES = (
    "twiceproof",
    "msgspec",
    "psycopg",
    "redis",
    "hiredis",
    "aws-lambda-powertools",
    "dbos",
    "restate-sdk",
    "temporalio",
)


def facts() -> dict[str, str]:
    return {
        "cpu": f"{os.cpu_count()} × {_processor()}",
        "memory": _memory(),
        "system": f"{platform.system()} {platform.release()}",
        "file system": _file_system(),
        "load before": " ".join(f"{load:.1f}" for load in os.getloadavg()),
        "python": f"{platform.python_implementation()} {sys.version.split()[0]}",
        "python's pace": f"{_pace():.1f} million plain turns a second",
        "sqlite": sqlite3.sqlite_version,
        **{name: version for name in PACKAGES if (version := _version(name))},
    }


def _pace() -> float:
    """Builds of one version differ by half, and so does what is Python in these figures beside what is not."""
    return TURNS / min(timeit.repeat(_turns, number=1, repeat=5)) / 1e6


def _turns() -> None:
    kept: dict[int, tuple[int, str]] = {}
    for turn in range(TURNS):
        kept[turn % 256] = (turn, str(turn))


def _processor() -> str:
    lines = _lines("/proc/cpuinfo")
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _memory() -> str:
    try:
        size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return "unknown"
    return f"{size / 2**30:.1f} GB"


def _file_system() -> str:
    """The kind of file system that the temporary files are on: an fsync to memory would cost nothing."""
    here = Path(tempfile.gettempdir()).resolve()
    mounts = [line.split()[1:3] for line in _lines("/proc/mounts")]
    fitting = [(place, kind) for place, kind in mounts if here.is_relative_to(place)]
    return max(fitting, key=lambda mount: len(mount[0]))[1] if fitting else "unknown"


def _lines(path: str) -> list[str]:
    file = Path(path)
    return file.read_text().splitlines() if file.exists() else []


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
