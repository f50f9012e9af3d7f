"""The network guard: a scenario's processes connect to worlds, and to nothing else.

On Linux the kernel asks the prover about each connection, whichever library or program makes it. This uses a seccomp
filter with user notification: no privileges are needed, and started programs inherit it.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import select
import socket
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from .socket_guard import AllowedDestinations, SocketGuard, place_in_memory

__all__ = ["Listener", "NetworkGuard", "hand_over", "is_known", "take_over"]


class Machine(Struct, frozen=True):
    """Numbers of system calls."""

    audit: int
    seccomp: int
    connect: int
    sendto: int
    sendmsg: int
    sendmmsg: int
    io_uring_setup: int = 425


MACHINES = {
    "x86_64": Machine(0xC000003E, 317, 42, 44, 46, 307),
    "aarch64": Machine(0xC00000B7, 277, 203, 206, 211, 269),
}
NO_NEW_PRIVILEGES, SET_FILTER, NEW_LISTENER = 38, 1, 8
ALLOW, NOTIFY, REFUSE = 0x7FFF0000, 0x7FC00000, 0x00050000
LOAD, EQUALS, RETURN = 0x20, 0x15, 0x06
RECEIVE, ANSWER = 0xC0502100, 0xC0182101
GO_ON = 1
HANDING_OVER = socket.MSG_DONTROUTE | 0x800  # with MSG_CONFIRM: flags that no other program uses
KNOWN = b"twiceproof reads the memory of its scenarios"
LONGEST = 128  # bytes of an address
MOST_MESSAGES = 64
TOLD = ctypes.create_string_buffer(KNOWN)


def is_known() -> bool:
    """Whether the numbers of this machine are known."""
    return sys.platform == "linux" and sys.byteorder == "little" and platform.machine() in MACHINES


def _filter(machine: Machine) -> bytes:
    """Notifies about calls that carry an address. Jumps are (skip if true, skip if false)."""
    number, flags, low, high = 0, 16 + 8 * 2, 16 + 8 * 4, 16 + 8 * 4 + 4

    def line(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
        return struct.pack("HBBI", code, yes, no, value)

    return b"".join(
        [
            line(LOAD, 4),
            line(EQUALS, machine.audit, 0, 13),
            line(LOAD, number),
            line(EQUALS, machine.connect, 12, 0),
            line(EQUALS, machine.sendmmsg, 11, 0),
            line(EQUALS, machine.sendmsg, 2, 0),
            line(EQUALS, machine.sendto, 3, 0),
            line(
                EQUALS, machine.io_uring_setup, 6, 7
            ),  # io_uring requests are not visible here: programs do without it
            line(LOAD, flags),
            line(EQUALS, HANDING_OVER, 5, 6),
            line(LOAD, low),
            line(EQUALS, 0, 0, 4),  # most sends carry no address
            line(LOAD, high),
            line(EQUALS, 0, 1, 2),
            line(RETURN, REFUSE | errno.ENOSYS),
            line(RETURN, ALLOW),
            line(RETURN, NOTIFY),
        ]
    )


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("lines", ctypes.c_void_p))


def hand_over(line: socket.socket) -> bool:
    """In the scenario, before anything else: False if the kernel refuses, or the prover may not read this memory."""
    if not is_known():
        line.close()
        return False
    machine = MACHINES[platform.machine()]
    libc = ctypes.CDLL(None, use_errno=True)
    lines = _filter(machine)
    buffer = ctypes.create_string_buffer(lines, len(lines))
    program = _Program(len(lines) // 8, ctypes.addressof(buffer))
    with line:
        if libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0) != 0:
            return False
        listener = libc.syscall(machine.seccomp, SET_FILTER, NEW_LISTENER, ctypes.byref(program))
        if listener < 0:
            return False
        mine = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", listener))]
        line.sendmsg([struct.pack("QQ", os.getpid(), ctypes.addressof(TOLD))], mine, HANDING_OVER)
        os.close(listener)
        return line.recv(1) == b"y"


def take_over(line: socket.socket) -> Listener | None:
    """In the prover: None if the scenario has no filter."""
    told, found, _, _ = socket.recv_fds(line, 16, 1)
    if not found:
        return None
    pid, at = struct.unpack("QQ", told)
    sees = _read(pid, at, len(KNOWN)) == KNOWN
    line.sendall(b"y" if sees else b"n")
    return Listener(found[0], MACHINES[platform.machine()], sees)


class Listener:
    """The prover's end. If it cannot read memory, everything continues, and the scenario's own guard decides."""

    def __init__(self, descriptor: int, machine: Machine, sees: bool) -> None:
        self.descriptor = descriptor
        self.sees = sees
        self._machine = machine

    def answer(self, may: Callable[[int, str], bool]) -> None:
        """Answer one question; `may` is called with the thread and the place."""
        asked = bytearray(80)
        with suppress(OSError):  # the thread has died meanwhile
            fcntl.ioctl(self.descriptor, RECEIVE, asked)
            number, thread, _, call = struct.unpack_from("QIIi", asked)
            arguments = struct.unpack_from("6Q", asked, 32)
            ok = not self.sees or all(may(thread, place) for place in self._places(thread, call, arguments))
            error, flags = (0, GO_ON) if ok else (-errno.ECONNREFUSED, 0)
            fcntl.ioctl(self.descriptor, ANSWER, struct.pack("QqiI", number, 0, error, flags))

    def close(self) -> None:
        os.close(self.descriptor)

    def _places(self, thread: int, call: int, arguments: tuple[int, ...]) -> list[str]:
        machine = self._machine
        if call == machine.connect:
            where = [(arguments[1], arguments[2])]
        elif call == machine.sendto:
            where = [(arguments[4], arguments[5])]
        else:
            many = 1 if call == machine.sendmsg else min(arguments[2], MOST_MESSAGES)
            heads = [_read(thread, arguments[1] + 64 * number, 12) for number in range(many)]
            where = [struct.unpack("QI", head) for head in heads if len(head) == 12]
        raw = [_read(thread, at, min(size & 0xFFFFFFFF, LONGEST)) for at, size in where if at]
        return [place for place in map(place_in_memory, raw) if place]


def _read(thread: int, at: int, size: int) -> bytes:
    with suppress(OSError, OverflowError), Path(f"/proc/{thread}/mem").open("rb", buffering=0) as memory:
        memory.seek(at)
        return memory.read(size)
    return b""


LONGEST_LINE = 1024  # a line this short is written to a pipe atomically
BLOCK = 65_536


class NetworkGuard:
    """Created in the prover before the scenario is forked.

    `learning`: everything is allowed, and stays so from then on.

    `noted` is what was refused; `cut` are inherited connections that the scenario may not use, and name servers that
    a client asked by itself: no fault, unless the scenario fails because of it.
    """

    def __init__(self, allowed: AllowedDestinations, *, learning: bool = False) -> None:
        self._allowed = allowed if learning else allowed.copy()  # what one scenario listens on is not open to others
        self._learning = learning
        self._hearing, self._telling = os.pipe()
        self._line, self._scenario_line = socket.socketpair()
        self._listener: Listener | None = None
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

    # -- in the scenario -----------------------------------------------------------------------------

    def enter(self) -> None:
        os.close(self._hearing)
        self._line.close()
        sockets = SocketGuard(self._allowed, self._tell, learning=self._learning)
        if not self._learning:
            sockets.cut_earlier()
        asks_kernel = hand_over(self._scenario_line)
        sockets.enter(judges=not asks_kernel)

    def _tell(self, sign: str, place: str) -> None:
        with suppress(OSError):  # the prover has exited
            os.write(self._telling, f"{sign}{place}".replace("\n", "?").encode()[:LONGEST_LINE] + b"\n")

    # -- in the prover ---------------------------------------------------------------------------

    def follow(self, answer: int) -> bytes:
        """Serve until the scenario has given its answer, and ended."""
        os.close(self._telling)
        self._scenario_line.close()
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
        self._listener = take_over(self._line)
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
