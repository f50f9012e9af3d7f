"""A child that has nothing but loopback: servers that look for news of themselves outside get no answer.

The bench sends it lines of callers, steps and acts; it answers with seconds. It ends, with all it started, when its
input does.
"""

from __future__ import annotations

import fcntl
import importlib.util
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from tests.servers import StartFailed, Unavailable

from .callers import Callers, count_in
from .rounds import Contender

__all__ = ["ConfinedEngine", "program", "raise_loopback", "serve"]

ROOT = Path(__file__).parents[1]
ALONE = ("unshare", "--user", "--map-root-user", "--net", "--pid", "--fork", "--kill-child")
READY, MARK = "ready", "answer: "
SET_FLAGS, UP = 0x8914, 0x1  # SIOCSIFFLAGS, IFF_UP


def program(name: str) -> Path | None:
    """On the path, or where `npm install --prefix` and pip put it beside this Python."""
    beside = [Path(sys.prefix) / "bin" / name, Path(sys.prefix) / "node_modules" / ".bin" / name]
    found = shutil.which(name)
    return Path(found) if found else next((path for path in beside if path.exists()), None)


# -- in the bench --------------------------------------------------------------------------------


class ConfinedEngine:
    """An engine in such a child, left out without its packages, its server, or a way to confine them."""

    def __init__(self, name: str, module: str, kinds: Sequence[str], *, packages: Sequence[str], server: str) -> None:
        missing = [package for package in packages if importlib.util.find_spec(package) is None]
        missing += [tool for tool in (server, ALONE[0]) if program(tool) is None]
        if missing:
            raise Unavailable(f"not installed: {', '.join(missing)}")
        self.name = name
        self.kinds = kinds
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - lives as long as the child
        self._child = _start(module, self._errors)
        if self._answer() != READY:
            complaint = self.complaint()
            self.close()
            raise StartFailed(f"{name} did not start: {complaint}")

    def running(self, steps: int, callers: str) -> Contender:
        return Contender(f"{self.name}, {steps} steps", _Asked(self, callers, steps))

    def ask(self, callers: str, steps: int, each: int) -> float:
        assert self._child.stdin is not None
        self._child.stdin.write(f"{callers}\t{steps}\t{each}\n")
        self._child.stdin.flush()
        answer = self._answer()
        if not answer:
            raise StartFailed(f"{self.name} ended: {self.complaint()}")
        return float(answer)

    def complaint(self) -> str:
        self._errors.seek(0)
        return self._errors.read()[-500:].strip()

    def _answer(self) -> str:
        """The next line that is meant for us: servers write to the same place. Empty when there are no more."""
        assert self._child.stdout is not None
        return next((line[len(MARK) :].strip() for line in self._child.stdout if line.startswith(MARK)), "")

    def close(self) -> None:
        self._child.kill()  # and the kernel ends whatever it started
        self._child.communicate()
        self._errors.close()


def _start(module: str, errors: IO[str]) -> subprocess.Popen[str]:
    command = [*ALONE, sys.executable, "-m", module]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True)


class _Asked:
    """Callers in the child. The child's own clock counts: no time is lost on the way."""

    def __init__(self, engine: ConfinedEngine, callers: str, steps: int) -> None:
        self.label = callers
        self.count = count_in(callers)
        self._engine = engine
        self._steps = steps

    def time(self, each: int) -> float:
        return self._engine.ask(self.label, self._steps, each)

    def close(self) -> None:
        """The child is asked again later."""


# -- in the child --------------------------------------------------------------------------------


def raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as door:
        fcntl.ioctl(door, SET_FLAGS, struct.pack("16sh", b"lo", UP))


def serve(callers_for: Callable[[str, int], Callers]) -> None:
    """Answer until there is no more to answer. Callers are made once: their connections stay."""
    known: dict[tuple[str, int], Callers] = {}
    print(MARK + READY, flush=True)
    for line in sys.stdin:
        callers, steps, each = line.rstrip("\n").split("\t")
        asked = (callers, int(steps))
        if asked not in known:
            known[asked] = callers_for(*asked)
        print(f"{MARK}{known[asked].time(int(each))}", flush=True)
