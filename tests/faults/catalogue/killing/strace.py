"""Faults at the n-th system call of a process, by strace attached from outside."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

from tests.faults.catalogue.killing.round import forked_off

__all__ = ["Traced", "why_not"]

PATIENCE = 20.0  # seconds, for strace to attach


class Traced:
    """Work in a forked process that waits until strace has taken hold of it."""

    def __init__(self, work: Callable[[], object], *expressions: str, output: str = "/dev/null") -> None:
        def waiting() -> None:
            os.kill(os.getpid(), signal.SIGSTOP)
            work()

        self.pid = forked_off(waiting)
        os.waitpid(self.pid, os.WUNTRACED)
        told = [part for expression in expressions for part in ("-e", expression)]
        self._strace = subprocess.Popen(
            ["strace", "-qq", "-f", "-o", output, *told, "-p", str(self.pid)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.attached = self._wait_attached()
        os.kill(self.pid, signal.SIGCONT)

    def _wait_attached(self) -> bool:
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until and self._strace.poll() is None:
            if "TracerPid:\t0\n" not in Path(f"/proc/{self.pid}/status").read_text():
                return True
            time.sleep(0.001)
        return False

    def end(self) -> int:
        """Return the work's exit code, as `os.waitstatus_to_exitcode` gives it."""
        status = os.waitpid(self.pid, 0)[1]
        self.complaint = self._strace.communicate()[1].strip()
        return os.waitstatus_to_exitcode(status)


def counted(work: Callable[[], object], calls: str, directory: Path) -> Counter[str]:
    """Count how often a clean run makes each of these calls, in the thread that makes the most of them."""
    output = directory / "strace"
    Traced(work, f"trace={calls}", output=str(output)).end()
    made: Counter[tuple[str, str]] = Counter()
    for line in output.read_text().splitlines():
        thread, _, rest = line.partition(" ")
        if "(" in rest and "resumed>" not in rest:
            made[thread, rest.strip().partition("(")[0]] += 1
    most: Counter[str] = Counter()
    for (_, call), times in made.items():
        most[call] = max(most[call], times)
    return most


@cache
def why_not() -> str:
    """Return why this machine cannot do it; "" if it can."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    traced = Traced(os.getppid, "inject=getppid:signal=SIGKILL:when=1", "trace=getppid")
    ended = traced.end()
    return "" if ended == -signal.SIGKILL else f"strace may not trace here: {traced.complaint[:200] or ended}"
