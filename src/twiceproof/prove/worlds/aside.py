"""A service in a process of its own, which outlives the plays: they talk to it, and are told what it saw."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import warnings
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgspec

__all__ = ["Aside", "Service"]

READING = 60.0  # seconds that a client may take
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Service(Protocol):
    """What runs aside. `talk` serves one client, `command` answers the prover."""

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None: ...

    def command(self, word: str, value: Any) -> Any: ...


class Aside:
    """Two loopback ports: one for the plays' clients, one for questions about what was seen."""

    def __init__(self, service: Service) -> None:
        clients, questions = _listening(), _listening()
        self.port: int = clients.getsockname()[1]
        self._questions: tuple[str, int] = questions.getsockname()
        watched, self._held = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads of the parent are not needed in the child
            self._child = os.fork()
        if self._child == 0:
            os.close(self._held)
            _serve(service, clients, questions, watched)
        for end in (clients, questions):
            end.close()
        os.close(watched)

    def ask(self, word: str, value: Any = None) -> Any:
        """From any process; a connection each, because a forked one must not share its parent's."""
        with socket.socket() as link:
            link.settimeout(READING)
            link.connect(self._questions)
            link.sendall(msgspec.json.encode((word, value)) + b"\n")
            with link.makefile("rb") as answer:
                return msgspec.json.decode(answer.read())

    def close(self) -> None:
        os.close(self._held)
        os.kill(self._child, signal.SIGKILL)
        os.waitpid(self._child, 0)


def _listening() -> socket.socket:
    found = socket.socket()
    found.bind(("127.0.0.1", 0))
    found.listen(128)
    return found


def _serve(service: Service, clients: socket.socket, questions: socket.socket, watched: int) -> None:
    """Never returns. A parent that is gone takes this process with it: nobody else holds the other end for long."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # whoever interrupts the proof, the parent ends it in good order
    try:
        asyncio.run(_listen(service, clients, questions, watched))
    finally:
        os._exit(0)


async def _listen(service: Service, clients: socket.socket, questions: socket.socket, watched: int) -> None:
    gone = asyncio.Event()
    asyncio.get_running_loop().add_reader(watched, gone.set)
    await asyncio.start_server(_bounded(service.talk), sock=clients)
    await asyncio.start_server(_bounded(lambda reader, writer: _answer(service, reader, writer)), sock=questions)
    await gone.wait()
    os._exit(0)  # in mid-sentence, without a word about those who are still talking


def _bounded(talk: Talk) -> Talk:
    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, EOFError, TimeoutError, ValueError):  # a client may die in mid-sentence
            await asyncio.wait_for(talk(reader, writer), READING)
        with contextlib.suppress(OSError):
            writer.close()

    return one


async def _answer(service: Service, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    word, value = msgspec.json.decode(await reader.readline(), type=tuple[str, Any])
    writer.write(msgspec.json.encode(service.command(word, value)))
    await writer.drain()
