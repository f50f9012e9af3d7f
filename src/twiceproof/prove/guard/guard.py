"""The guard of one scenario: its end in the scenario, and the prover's end, which decides and records refusals."""

from __future__ import annotations

import os
import select
import socket
from contextlib import suppress

from . import kernel
from .places import AllowedDestinations
from .sockets import SocketGuard

__all__ = ["NetworkGuard"]


LONGEST_LINE = 1024  # a line this short is written to a pipe atomically
BLOCK = 65_536


class NetworkGuard:
    """Created in the prover before the scenario is forked.

    `learning`: everything is allowed, and stays so from then on.

    `noted` is what was refused; `cut` are inherited connections that the scenario may not use, and name servers that
    a
    client asked by itself: no fault, unless the scenario fails because of it.
    """

    def __init__(self, allowed: AllowedDestinations, *, learning: bool = False) -> None:
        self._allowed = allowed if learning else allowed.copy()  # what one scenario listens on is not open to others
        self._learning = learning
        self._hearing, self._telling = os.pipe()
        self._line, self._plays_line = socket.socketpair()
        self._listener: kernel.Listener | None = None
        self._looking_up: set[int] = set()
        self._rest = b""
        self._noted: dict[str, None] = {}
        self._cut: dict[str, None] = {}

    @property
    def noted(self) -> list[str]:
        return list(self._noted)

    @property
    def cut(self) -> list[str]:
        return list(self._cut)

    @property
    def asks_kernel(self) -> bool:
        return self._listener is not None and self._listener.sees

    # -- in the play -----------------------------------------------------------------------------

    def enter(self) -> None:
        os.close(self._hearing)
        self._line.close()
        sockets = SocketGuard(self._allowed, self._tell, learning=self._learning)
        if not self._learning:
            sockets.cut_earlier()
        asks_kernel = kernel.hand_over(self._plays_line)
        sockets.enter(judges=not asks_kernel)

    def _tell(self, sign: str, place: str) -> None:
        with suppress(OSError):  # the prover has exited
            os.write(self._telling, f"{sign}{place}".replace("\n", "?").encode()[:LONGEST_LINE] + b"\n")

    # -- in the prover ---------------------------------------------------------------------------

    def follow(self, answer: int) -> bytes:
        """Serve until the scenario has given its answer, and ended."""
        os.close(self._telling)
        self._plays_line.close()
        os.set_blocking(self._hearing, False)
        poll = select.poll()
        for one in (answer, self._hearing, self._line.fileno()):
            poll.register(one, select.POLLIN)
        try:
            return self._until_the_end(answer, poll)
        finally:
            self._close()

    def _until_the_end(self, answer: int, poll: select.poll) -> bytes:
        text = b""
        while True:
            for ready, events in poll.poll():
                if ready == answer:
                    block = os.read(answer, BLOCK)
                    if not block:
                        self._hear()
                        return text
                    text += block
                elif ready == self._line.fileno():
                    poll.unregister(ready)
                    self._take_over(poll)
                elif ready == self._hearing:
                    if not self._hear():
                        poll.unregister(ready)
                elif self._listener is not None and events & select.POLLIN:
                    self._listener.answer(self._may)
                else:
                    poll.unregister(ready)

    def _take_over(self, poll: select.poll) -> None:
        self._listener = kernel.take_over(self._line)
        if self._listener is not None:
            poll.register(self._listener.descriptor, select.POLLIN)

    def _may(self, thread: int, place: str) -> bool:
        self._hear()  # messages that the scenario sent before its question
        judged = self._allowed.judge(place)
        if judged == "yes" or thread in self._looking_up:
            return True
        if self._learning:
            self._allowed.add(place)
            return True
        (self._noted if judged == "no" else self._cut)[place] = None
        return False

    def _hear(self) -> bool:
        """Read one message. False: the other end is closed."""
        try:
            while block := os.read(self._hearing, BLOCK):
                *lines, self._rest = (self._rest + block).split(b"\n")
                for line in lines:
                    self._heard(line.decode("utf-8", "replace"))
        except BlockingIOError:
            return True
        return False

    def _heard(self, line: str) -> None:
        sign, place = line[:1], line[1:]
        if sign == "+":
            self._allowed.add(place)
        elif sign == "=":
            self._allowed.add_name(place)
        elif sign == "-":
            self._noted[place] = None
        elif sign == "~":
            self._cut[place] = None
        elif sign == "<":
            self._looking_up.add(int(place))
        elif sign == ">":
            self._looking_up.discard(int(place))

    def _close(self) -> None:
        os.close(self._hearing)
        self._line.close()
        if self._listener is not None:
            self._listener.close()
