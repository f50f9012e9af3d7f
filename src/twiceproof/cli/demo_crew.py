"""The demo's worker processes: started, given deliveries, killed, replaced, and never left behind."""

from __future__ import annotations

import contextlib
import selectors
import subprocess
import sys
from collections.abc import Iterator
from types import TracebackType

import msgspec

from .demo_worker import Answer, Delivery

__all__ = ["Crew", "Member"]

PATIENCE = 30.0  # seconds without a word from anybody


class Member:
    """One worker process. It reads the end of its stdin when we die, and ends too."""

    def __init__(self, store: str, book: str) -> None:
        # A session of its own: Ctrl-C is for us, and we end our children ourselves.
        self.process = subprocess.Popen(  # noqa: S603 - our own module, with our own paths
            [sys.executable, "-m", "twiceproof.cli.demo_worker", store, book],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self.process.stdin and self.process.stdout  # noqa: S101 - both are pipes
        self.stdin, self.stdout = self.process.stdin, self.process.stdout
        self.delivery: Delivery | None = None

    def give(self, delivery: Delivery) -> None:
        self.delivery = delivery
        self.stdin.write(msgspec.json.encode(delivery) + b"\n")
        self.stdin.flush()

    def hear(self) -> Answer:
        line = self.stdout.readline()
        if not line:
            raise RuntimeError(f"a demo worker ended by itself, with status {self.process.wait()}")
        return msgspec.json.decode(line, type=Answer)

    def kill(self) -> None:
        """SIGKILL: no handler, no clean-up, no last word."""
        self.process.kill()
        self.process.wait()
        with contextlib.suppress(BrokenPipeError):
            self.stdin.close()
        self.stdout.close()


class Crew:
    """So many workers at a time; a killed one is replaced at once."""

    def __init__(self, size: int, store: str, book: str) -> None:
        self._where = (store, book)
        self._ears = selectors.DefaultSelector()
        self.members: list[Member] = []
        self._size = size

    def __enter__(self) -> Crew:
        try:
            for _ in range(self._size):
                self._hire()
        except BaseException:
            self.close()
            raise
        return self

    def _hire(self) -> None:
        member = Member(*self._where)
        self.members.append(member)
        self._ears.register(member.stdout, selectors.EVENT_READ, member)

    def idle(self) -> Iterator[Member]:
        return (member for member in self.members if member.delivery is None)

    def hear(self, timeout: float | None) -> Iterator[tuple[Member, Answer]]:
        """What was said. A worker says one line for one delivery, so no line can hide behind another."""
        heard = self._ears.select(PATIENCE if timeout is None else timeout)
        if not heard and timeout is None:
            raise RuntimeError(f"no demo worker has said anything for {PATIENCE:g} s")
        for key, _ in heard:
            yield key.data, key.data.hear()

    def replace(self, member: Member) -> None:
        self._dismiss(member)
        self._hire()

    def _dismiss(self, member: Member) -> None:
        self._ears.unregister(member.stdout)
        self.members.remove(member)
        member.kill()

    def close(self) -> None:
        for member in list(self.members):
            self._dismiss(member)
        self._ears.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
