"""Linux: the kernel asks the prover about each connection of a scenario, whichever library or program makes it.

Uses a seccomp filter with user notification: no privileges are needed, and started programs inherit it.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import socket
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from .places import place_in_memory

__all__ = ["Listener", "hand_over", "is_known", "take_over"]


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
KNOWN = b"twiceproof reads the memory of its plays"
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
