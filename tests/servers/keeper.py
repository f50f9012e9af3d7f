"""Keeps the list of processes and directories that we made, so that none outlives us."""

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import IO

from tests.servers import guard
from tests.servers.account import give, reachable_by_servers

MEMORY = Path("/dev/shm")
ENOUGH_MEMORY = 4 << 30


class Keeper:
    """Ends what we started: at exit by itself, and after a `kill -9` of us through the guard process.

    Not PR_SET_PDEATHSIG: it fires when the *thread* that started the server ends, needs a preexec_fn
    (unsafe beside the proxy's thread), exists on Linux only, and leaves the directories.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._guard: subprocess.Popen[bytes] | None = None
        self._processes: dict[int, int] = {}
        self._directories: set[str] = set()

    def watch(self, pid: int, polite: int = signal.SIGKILL) -> None:
        self._processes[pid] = polite
        self._tell("watch", pid, guard.born(pid), int(polite))

    def forget(self, pid: int) -> None:
        if self._processes.pop(pid, None) is not None:
            self._tell("forget", pid)

    def directory(self, kind: str, *, disk: bool = False) -> Path:
        """A new private directory, owned by the account the servers run under."""
        path = Path(tempfile.mkdtemp(prefix=f"twiceproof-{kind}-", dir=scratch(disk)))
        self._directories.add(str(path))
        self._tell("own", str(path))
        give(path)
        return path

    def remove(self, path: Path) -> None:
        guard.remove(str(path))
        self._directories.discard(str(path))
        self._tell("disown", str(path))

    def close(self) -> None:
        if os.getpid() != self._pid:
            return  # a fork of us: the servers are not its own
        for pid, polite in list(self._processes.items()):
            guard.end(pid, polite)
        for path in list(self._directories):
            guard.remove(path)
        self._processes.clear()
        self._directories.clear()
        self._dismiss_guard()

    def _tell(self, *order: object) -> None:
        with self._lock:
            pipe = self._guard_pipe()
            with contextlib.suppress(BrokenPipeError):  # someone killed the guard; atexit is left
                pipe.write(json.dumps(order).encode() + b"\n")
                pipe.flush()

    def _guard_pipe(self) -> IO[bytes]:
        if self._guard is None:
            # Its own session, so that Ctrl-C or a kill of our process group does not reach it.
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", guard.__file__, str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            atexit.register(self.close)
        assert self._guard.stdin is not None
        return self._guard.stdin

    def _dismiss_guard(self) -> None:
        if self._guard is not None and self._guard.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._guard.stdin.close()
            self._guard.wait(10)
            self._guard = None


def scratch(disk: bool = False) -> Path:
    """In memory where there is room: a process that is killed loses nothing by it, a power cut is not tested.

    A directory given as TMPDIR has precedence, and `disk` asks for a real fsync, as benches must.
    """
    usual = Path(tempfile.gettempdir())
    if not disk and "TMPDIR" not in os.environ and os.access(MEMORY, os.W_OK | os.X_OK):
        room = os.statvfs(MEMORY)
        if room.f_bavail * room.f_frsize >= ENOUGH_MEMORY:
            return MEMORY
    return usual if reachable_by_servers(usual) else Path("/tmp")


keeper = Keeper()
