"""Processes that need not start an interpreter each: one helper without threads imports everything, and forks.

    python -m tests.faults.histories.nursery FD

A request is a line of arguments and two ends of pipes, which become the child's input and output; the answer is its id.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import traceback

from tests.faults.histories.member import main

LONGEST = 4096


class Nursery:
    """The helper's client. Its children end with it: each one ends with its input."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "tests.faults.histories.nursery", str(theirs.fileno())]
        self._helper = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        theirs.close()

    def bear(self, arguments: list[str]) -> tuple[int, int, int]:
        """Return a new member: its id, and the pipes to write to it and read from it."""
        its_input, to_it = os.pipe()
        from_it, its_output = os.pipe()
        socket.send_fds(self._socket, [json.dumps(arguments).encode()], [its_input, its_output])
        os.close(its_input)
        os.close(its_output)
        return int(self._socket.recv(LONGEST)), to_it, from_it

    def close(self) -> None:
        self._socket.close()
        self._helper.wait(10)


def serve(connection: socket.socket) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps ended children
    while True:
        request, ends, _, _ = socket.recv_fds(connection, LONGEST, 2)
        if not request:
            return
        its_input, its_output = ends
        pid = os.fork()
        if pid == 0:
            connection.close()
            _become(json.loads(request), its_input, its_output)
        os.close(its_input)
        os.close(its_output)
        connection.send(str(pid).encode())


def _become(arguments: list[str], its_input: int, its_output: int) -> None:
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(its_input, 0)
        os.dup2(its_output, 1)
        os.close(its_input)
        os.close(its_output)
        main(*arguments)
    except BaseException:  # noqa: BLE001 - a child must never return into its parent's work
        traceback.print_exc()
    finally:
        os._exit(1)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
