"""The processes of the demo: how they are started and killed, and the messages they send to their parent."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from base64 import b64encode
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

from .scenario import SIDES

__all__ = ["DemoProcess", "DemoProcesses", "EffectLog", "Messages", "report", "wait_for_parent"]


_stdout = threading.Lock()


def report(**message: Any) -> None:
    """Send one line of JSON to the parent."""
    with _stdout:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


def wait_for_parent() -> None:
    """Wait until the parent closes this process's input, or dies: no process is left behind."""
    sys.stdin.buffer.read()


class EffectLog:
    """The effects that a service recorded: a file that it alone writes, one line per effect."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8", buffering=1)
        self._writing = threading.Lock()
        self.lines: list[dict[str, Any]] = []

    def write(self, **line: Any) -> None:
        with self._writing:
            self.lines.append(line)
            self._file.write(json.dumps(line) + "\n")

    def close(self) -> None:
        self._file.close()

    @staticmethod
    def read(path: Path) -> list[dict[str, Any]]:
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        return [json.loads(line) for line in lines]


Messages: TypeAlias = "queue.Queue[tuple[DemoProcess, dict[str, Any] | None]]"
LOG_TAIL = 2_000  # characters


class DemoProcess:
    """A child process. Its messages go to `messages`; None means that it has ended by itself.

    When this process dies, the child's input ends, and the child ends, too.
    """

    def __init__(self, name: str, module: str, arguments: list[str], log: Path, messages: Messages) -> None:
        self.name = name
        self.port = 0
        self._command = [sys.executable, "-m", f"twiceproof.demo.{module}"]
        self._arguments = arguments
        self._log = log
        self._messages = messages
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, environment: Mapping[str, str]) -> None:
        """Start it. A second start uses the same port, so that its clients find it again."""
        arguments = [str(self.port)] if self.port else self._arguments
        with self._log.open("ab") as log:
            # In a session of its own: Ctrl-C reaches only the parent, which ends its children itself.
            self._process = subprocess.Popen(  # noqa: S603 - a module of this package, with fixed arguments
                [*self._command, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        threading.Thread(target=self._receive, args=(self._process,), daemon=True).start()

    def _receive(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout  # noqa: S101 - a pipe
        for line in process.stdout:
            with contextlib.suppress(ValueError):  # killed while it was writing the line
                self._messages.put((self, json.loads(line)))
        process.stdout.close()
        if self._process is process:  # otherwise the demo killed it, and has started another in its place
            self._messages.put((self, None))

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    def kill(self) -> None:
        """Kill it with SIGKILL: no signal handler and no clean-up runs."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            assert process.stdin  # noqa: S101 - a pipe
            process.stdin.close()

    def end(self, timeout: float) -> None:
        """Let it end by itself; kill it after the timeout."""
        process = self._process
        if process is None:
            return
        self._process = None
        assert process.stdin  # noqa: S101 - a pipe
        process.stdin.close()
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def log_tail(self) -> str:
        return self._log.read_text("utf-8", "replace")[-LOG_TAIL:] if self._log.exists() else ""


MODULES = {"naive": "naive", "twiceproof": "guarded"}
EACH = 2  # processes of each program
START_TIMEOUT = 60.0  # seconds without a message from any process
END_TIMEOUT = 5.0  # seconds


class DemoProcesses:
    """All processes: the services are started first, then both programs, then the shop that sends to them."""

    def __init__(self, place: Path, ledger: str) -> None:
        self._place = place
        self._messages: Messages = queue.Queue()
        self._processes: list[DemoProcess] = []
        self._environment = {
            "DEMO_LEDGER": ledger,
            "DEMO_NAIVE_DATABASE": str(place / "naive.db"),
            "DEMO_SECRET": "whsec_" + b64encode(os.urandom(24)).decode(),
        }
        self.kills: Counter[str] = Counter()
        self.lost: Counter[str] = Counter()
        self.shop: dict[str, dict[str, int]] = {}
        self.finished = False

    def __enter__(self) -> DemoProcesses:
        return self

    def open_services(self) -> dict[str, str]:
        """Start the services alone. Return what a program must find in its environment to call them."""
        services = {name: self._start(name, "services", [name, str(self._place)]) for name in ("accounting", "mail")}
        self._wait_for(list(services.values()))
        self._environment["DEMO_ACCOUNTING_PORT"] = str(services["accounting"].port)
        self._environment["DEMO_MAIL_PORT"] = str(services["mail"].port)
        return self._environment

    def open(self) -> None:
        self.open_services()
        programs = {
            side: [self._start(f"{side}-{number}", MODULES[side], ["0"]) for number in range(1, EACH + 1)]
            for side in SIDES
        }
        self._wait_for([process for processes in programs.values() for process in processes])
        ports = {side: [process.port for process in processes] for side, processes in programs.items()}
        self._start("shop", "shop", [str(self._place), json.dumps(ports)])

    def _start(self, name: str, module: str, arguments: list[str]) -> DemoProcess:
        process = DemoProcess(name, module, arguments, self._place / f"{name}.log", self._messages)
        self._processes.append(process)
        process.start(self._environment)
        return process

    def _wait_for(self, processes: list[DemoProcess]) -> None:
        while not all(process.port for process in processes):
            if not self.receive(START_TIMEOUT):
                missing = ", ".join(process.name for process in processes if not process.port)
                raise RuntimeError(f"{missing} of the demo did not start within {START_TIMEOUT:g} s")

    def close(self, timeout: float = END_TIMEOUT) -> None:
        for process in reversed(self._processes):
            process.end(timeout)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(END_TIMEOUT if error is None else 0.0)

    def receive(self, timeout: float) -> bool:
        """Handle one message of any process; return False if none came in time."""
        try:
            process, message = self._messages.get(timeout=timeout)
        except queue.Empty:
            return False
        if message is None:
            raise RuntimeError(f"{process.name} of the demo ended by itself:\n{process.log_tail()}")
        self._handle(process, message)
        return True

    def _handle(self, process: DemoProcess, message: dict[str, Any]) -> None:
        if "port" in message:
            process.port = message["port"]
        elif "kill" in message:
            self._kill(message["kill"], message["side"])
        elif "lost" in message:
            self.lost[message["lost"]] += 1
        else:
            self.shop = message["shop"]
            self.finished = message.get("finished", False)

    def _kill(self, pid: int, side: str) -> None:
        """Kill the process, and start it again."""
        for process in self._processes:
            if process.pid == pid:
                process.kill()
                self.kills[side] += 1
                process.start(self._environment)
