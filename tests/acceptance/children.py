"""Real processes for tests: forked, heard through a pipe, killed and stopped by their id."""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any


class Child:
    """A forked process that runs `work(child)` and can tell its parent things."""

    def __init__(self, work: Callable[[Child], object]) -> None:
        from_child, self._say = os.pipe()
        self._hear, to_child = os.pipe()
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(from_child)
            os.close(to_child)
            self._run(work)
        os.close(self._say)
        os.close(self._hear)
        self._ear = os.fdopen(from_child, "r")
        self._mouth = os.fdopen(to_child, "w", buffering=1)

    def _run(self, work: Callable[[Child], object]) -> None:
        code = 1
        try:
            work(self)
            code = 0
        except BaseException:  # noqa: BLE001 - a child must never return into the parent's test
            traceback.print_exc()
        finally:
            os._exit(code)

    # -- in the child ----------------------------------------------------------------------------

    def tell(self, word: Any) -> None:
        os.write(self._say, (json.dumps(word) + "\n").encode())

    def wait_for_go(self) -> None:
        os.read(self._hear, 1)

    # -- in the parent ---------------------------------------------------------------------------

    def hear(self) -> Any:
        line = self._ear.readline()
        return json.loads(line) if line else None

    def go(self) -> None:
        self._mouth.write("!")
        self._mouth.flush()

    def send(self, sign: signal.Signals) -> None:
        os.kill(self.pid, sign)

    def end(self) -> int:
        """Wait for its end; the exit code, or minus the signal that killed it."""
        _, status = os.waitpid(self.pid, 0)
        self._ear.close()
        self._mouth.close()
        return os.waitstatus_to_exitcode(status)


def die() -> None:
    """As a process dies when the machine kills it: at once, with nothing flushed."""
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


def wake(child: Child) -> Any:
    """One that was stopped goes on to its end. What it had to say."""
    child.send(signal.SIGCONT)
    child.go()
    answer = child.hear()
    assert child.end() == 0
    return answer
