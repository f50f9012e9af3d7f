"""What is being measured now, on stderr: the table alone goes to stdout."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Progress"]


class Progress:
    def __init__(self) -> None:
        self._began = time.monotonic()
        self._live = sys.stderr.isatty()

    @contextmanager
    def heat(self, name: str, rounds: int) -> Iterator[Callable[[], None]]:
        """Call what is yielded after each round."""
        done = 0

        def step() -> None:
            nonlocal done
            done += 1
            self._show(f"{name}: round {done} of {rounds}")

        self._show(f"{name}: warming up")
        yield step
        self.say(f"{name}: done")

    def say(self, text: str) -> None:
        end = "\x1b[K\n" if self._live else "\n"
        sys.stderr.write(("\r" if self._live else "") + self._stamped(text) + end)
        sys.stderr.flush()

    def _show(self, text: str) -> None:
        if self._live:
            sys.stderr.write(f"\r{self._stamped(text)}\x1b[K")
            sys.stderr.flush()

    def _stamped(self, text: str) -> str:
        return f"{time.monotonic() - self._began:5.0f} s  {text}"
