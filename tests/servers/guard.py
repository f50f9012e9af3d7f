"""Ends our servers when the process that started them is gone, however it went (run as a script).

Also the one place that knows how to end a server with everything under it. Standard library only: it is
started with `python -I`, and must outlive a `kill -9` of its parent.
"""

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple


class Entry(NamedTuple):
    """One line of the process table. `born` tells a process from a later one that got the same id."""

    parent: int
    state: str
    born: str


def process_table() -> dict[int, Entry]:
    return _from_proc() if Path("/proc/self/stat").exists() else _from_ps()


def _from_proc() -> dict[int, Entry]:
    table = {}
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit():
            with contextlib.suppress(OSError):  # it ended while we looked
                fields = Path("/proc", name, "stat").read_text(errors="replace").rpartition(")")[2].split()
                table[int(name)] = Entry(int(fields[1]), fields[0], fields[19])
    return table


def _from_ps() -> dict[int, Entry]:
    command = ["ps", "-A", "-o", "pid=,ppid=,state=,lstart="]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = (line.split(None, 3) for line in listing.splitlines())
    return {int(pid): Entry(int(parent), state[0], born) for pid, parent, state, born in rows}


def born(pid: int) -> str:
    entry = process_table().get(pid)
    return entry.born if entry else ""


def living(pids: list[int]) -> list[int]:
    """Those still running; a zombie holds no port, file or shared memory, and counts as ended."""
    table = process_table()
    return [pid for pid in pids if pid in table and table[pid].state not in "ZX"]


def descendants(pid: int) -> list[int]:
    table, found = process_table(), [pid]
    for parent in found:  # grows while it is walked
        found += [child for child, entry in table.items() if entry.parent == parent]
    return found[1:]


def send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def kill_tree(pid: int) -> list[int]:
    """SIGKILL a server and all under it, and say which they were.

    Not `killpg`: each PostgreSQL backend calls setsid(), so the postmaster's group holds the postmaster
    alone. It is stopped first, or it could fork another child while we list them.
    """
    send(pid, signal.SIGSTOP)
    until(lambda: process_table().get(pid, Entry(0, "X", "")).state in "TZX", 1.0)
    family = [*descendants(pid), pid]
    for member in family:
        send(member, signal.SIGKILL)
    return family


def wait_gone(pids: list[int], seconds: float) -> bool:
    return until(lambda: not living(pids), seconds)


def until(condition: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def remove(directory: str) -> None:
    shutil.rmtree(directory, ignore_errors=True)


def end(pid: int, polite: int) -> None:
    """Ask first: a killed PostgreSQL leaves a System V shared memory segment behind."""
    send(pid, polite)
    if not wait_gone([pid], 3.0):
        wait_gone(kill_tree(pid), 3.0)


def orders(parent: int) -> Iterator[list[Any]]:
    """Read orders until the pipe closes or the parent changes (a fork of it may hold the pipe open)."""
    rest = b""
    while os.getppid() == parent:
        if select.select([0], [], [], 0.5)[0]:
            chunk = os.read(0, 65536)
            if not chunk:
                return
            *lines, rest = (rest + chunk).split(b"\n")
            yield from map(json.loads, lines)


def main() -> None:
    processes: dict[int, tuple[str, int]] = {}
    directories: set[str] = set()
    for verb, subject, *details in orders(int(sys.argv[1])):
        if verb == "watch":
            processes[subject] = (details[0], details[1])
        elif verb == "forget":
            processes.pop(subject, None)
        elif verb == "own":
            directories.add(subject)
        elif verb == "disown":
            directories.discard(subject)
    for pid, (birth, polite) in processes.items():
        if birth == born(pid):
            end(pid, polite)
    for directory in directories:
        remove(directory)


if __name__ == "__main__":
    main()
