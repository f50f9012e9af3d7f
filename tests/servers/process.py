"""One server process of ours: a directory, a port, and the verbs start, stop, kill, restart, close."""

import os
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from tests.servers import guard
from tests.servers.account import Account, server_account
from tests.servers.address import free_port
from tests.servers.keeper import MEMORY, keeper

START_SECONDS = 30.0
STOP_SECONDS = 20.0


class Unavailable(Exception):
    """This machine has no such server; the message says what was tried. Fixtures turn it into a skip."""


class StartFailed(Exception):
    """The server is there but did not come up; carries the end of its log."""


class NotOurs(Exception):
    """The server came from the environment: we did not start it, so we may not stop it."""


def clean_environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return kept | {"TZ": "UTC", "LC_ALL": "C"}


def run(command: list[str], directory: Path) -> None:
    """Run a short command as the servers' account, its output kept for the error."""
    process = subprocess.Popen(
        command,
        cwd=directory,
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        **server_account(),
    )
    keeper.watch(process.pid)
    try:
        output = process.communicate(timeout=60)[0].decode(errors="replace")
    finally:
        if process.poll() is None:
            guard.kill_tree(process.pid)
            process.communicate()
        keeper.forget(process.pid)
    if process.returncode:
        raise StartFailed(f"{command[0]} exited with {process.returncode}: {output[-1000:]}")


class ServerProcess:
    """What PostgreSQL, Valkey and PgBouncer have in common; a server says `prepare`, `command`, `ready`.

    `disk=True` keeps its data off a memory file system, so that an fsync costs what it costs (benches).
    """

    kind: ClassVar[str]
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    end_signal: ClassVar[signal.Signals] = signal.SIGKILL
    start_seconds: ClassVar[float] = START_SECONDS

    host = "127.0.0.1"

    def __init__(self, *, disk: bool = False) -> None:
        self.port = 0
        self.disk = disk
        self._directory: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def prepare(self) -> None:
        """Fill the new directory, once."""

    def command(self) -> list[str]:
        raise NotImplementedError

    def ready(self) -> bool:
        raise NotImplementedError

    def account(self) -> Account:
        """The account it runs under; a program out of a virtualenv may be out of another's reach."""
        return server_account()

    @property
    def directory(self) -> Path:
        if self._directory is None:
            raise NotOurs(f"{self.kind} has not been started here; call start() first")
        return self._directory

    @property
    def in_memory(self) -> bool:
        return self._directory is not None and self._directory.parent == MEMORY

    @property
    def pid(self) -> int:
        if self._process is None:
            raise NotOurs(f"{self.kind} is not running here; call start() first")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Start, or start again on the same port and data; returns when clients may connect."""
        if self.running:
            return self
        self._discard()
        if self._directory is None:
            self._directory = keeper.directory(self.kind, disk=self.disk)
            self.prepare()
        fixed = self.port
        for _ in range(1 if fixed else 5):
            self.port = fixed or free_port()
            self._launch()
            if self._came_up():
                return self
        self.port = fixed
        raise StartFailed(f"{self.kind} did not come up on port {self.port or 'any'}:\n{self.log()[-2000:]}")

    def stop(self) -> None:
        """Shut down in good order, keeping the data."""
        self._leave(self.stop_signal)

    def kill(self) -> None:
        """SIGKILL to the server and all its children, as in a crash; `start()` brings it back."""
        if self._process is not None:
            family = guard.kill_tree(self._process.pid)
            self._process.wait(STOP_SECONDS)
            guard.wait_gone(family, STOP_SECONDS)
            self._discard()

    def restart(self) -> Self:
        self.stop()
        return self.start()

    def close(self) -> None:
        """End it at once and remove the directory: what a shutdown in good order would still write is not needed.

        A Valkey that has just been promoted even refuses one, until it has written its first file.
        """
        if self.end_signal is signal.SIGKILL:
            self.kill()
        else:
            self._leave(self.end_signal)
        if self._directory is not None:
            keeper.remove(self._directory)
            self._directory, self.port = None, 0

    def log(self) -> str:
        path = self.directory / "server.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _leave(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()
            self._discard()

    def _launch(self) -> None:
        with (self.directory / "server.log").open("wb") as log:
            self._process = subprocess.Popen(
                self.command(),
                cwd=self.directory,
                env=clean_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **self.account(),
            )
        keeper.watch(self._process.pid, self.end_signal)

    def _came_up(self) -> bool:
        """True when ready; False when the port was taken in between; else the log as an error."""
        end = time.monotonic() + self.start_seconds
        while self.running:
            if self.ready():
                return True
            if time.monotonic() > end:
                self.kill()
                break
            time.sleep(0.005)
        self._discard()
        if "address already in use" in self.log().lower():
            return False
        raise StartFailed(f"{self.kind} did not come up:\n{self.log()[-2000:]}")

    def _discard(self) -> None:
        """Let go of an ended process; it has been waited for, so its id may belong to another soon."""
        if self._process is not None:
            self._process.wait(STOP_SECONDS)
            keeper.forget(self._process.pid)
            self._process = None
