"""The life of a real process: what it tells is heard as it happens, so that a SIGKILL takes nothing back."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator

import msgspec
from msgspec import Struct

from .outcome import Beat, Outcome

__all__ = ["Ended", "Gate", "Life", "Message", "Paused", "Told", "Voice"]

LONGEST = 60.0


class Told(Struct, frozen=True, tag="told"):
    """A moment, the process' clock at it, and how many of its faults had come about."""

    beat: Beat
    wall: float
    fired: int


class Paused(Struct, frozen=True, tag="paused"):
    """It stands still until it is told the time."""


class Ended(Struct, frozen=True, tag="ended"):
    outcome: Outcome
    wall: float


Message = Told | Paused | Ended


class Voice:
    """The process' own end of the lines."""

    def __init__(self, saying: int, hearing: int) -> None:
        self._saying = saying
        self._hearing = hearing
        self._mutex = threading.Lock()

    def say(self, message: Message) -> None:
        line = msgspec.json.encode(message) + b"\n"
        with self._mutex:
            while line:
                line = line[os.write(self._saying, line) :]

    def pause(self) -> float:
        """Until somebody says what time it is."""
        self.say(Paused())
        return float(os.read(self._hearing, 100))


class Gate:
    """Processes wait at it until all of them are there: whoever is forked first would be done before the last."""

    def __init__(self) -> None:
        self._arrived, self._arriving = os.pipe()
        self._opened, self._opening = os.pipe()

    def wait(self) -> None:
        os.close(self._opening)
        os.write(self._arriving, b".")
        os.close(self._arriving)
        os.read(self._opened, 1)

    def open(self, many: int) -> None:
        os.close(self._arriving)
        while many > 0 and (there := os.read(self._arrived, many)):  # nothing: the others have died
            many -= len(there)
        for end in (self._opening, self._opened, self._arrived):
            os.close(end)


class Life:
    """Begins with a fork. `messages` ends when the process does, however that comes."""

    def __init__(self, work: Callable[[Voice], None]) -> None:
        self._heard, saying = os.pipe()
        hearing, self._telling = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads of the parent are not needed in the child
            self._child = os.fork()
        if self._child == 0:
            _live(work, Voice(saying, hearing))
        os.close(saying)
        os.close(hearing)

    def messages(self) -> Iterator[Message]:
        with os.fdopen(self._heard, "rb") as lines:
            for line in lines:
                yield msgspec.json.decode(line, type=Message)
        os.close(self._telling)
        os.waitpid(self._child, 0)

    def wake(self, wall: float) -> None:
        os.write(self._telling, repr(wall).encode())


def _live(work: Callable[[Voice], None], voice: Voice) -> None:
    """Never returns: the parent's stack is not the child's to unwind."""
    gc.freeze()
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, LONGEST)
        work(voice)
    except BaseException:  # noqa: BLE001 - whatever it is, it is told here or nowhere
        traceback.print_exc(file=sys.stderr)
    finally:
        sys.stderr.flush()
        os._exit(0)
