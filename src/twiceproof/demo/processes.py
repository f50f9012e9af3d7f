"""Processes of the demo: started, killed, heard."""

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

__all__ = ["Book", "DemoProcess", "DemoProcesses", "Heard", "stay", "tell"]


_speaking = threading.Lock()


def tell(**what: Any) -> None:
    """One line to the parent."""
    with _speaking:
        sys.stdout.write(json.dumps(what) + "\n")
        sys.stdout.flush()


def stay() -> None:
    """Until the parent closes our input, or is gone: nobody is left behind, whatever it died of."""
    sys.stdin.buffer.read()


class Book:
    """What a service of the outside world remembers: a file that it alone writes, a line for each thing done."""

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


Heard: TypeAlias = "queue.Queue[tuple[DemoProcess, dict[str, Any] | None]]"
LAST_WORDS = 2_000  # letters of a log


class DemoProcess:
    """It reads the end of its input when we die, and ends too. What it says goes to `heard`; None is its end."""

    def __init__(self, name: str, module: str, words: list[str], log: Path, heard: Heard) -> None:
        self.name = name
        self.port = 0
        self._command = [sys.executable, "-m", f"twiceproof.demo.{module}"]
        self._words = words
        self._log = log
        self._heard = heard
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, environment: Mapping[str, str]) -> None:
        """Again: where it was before, for those who call it."""
        words = [str(self.port)] if self.port else self._words
        with self._log.open("ab") as log:
            # A session of its own: Ctrl-C is for us, and we end our children ourselves.
            self._process = subprocess.Popen(  # noqa: S603 - our own module, with our own words
                [*self._command, *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        threading.Thread(target=self._hear, args=(self._process,), daemon=True).start()

    def _hear(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout  # noqa: S101 - a pipe
        for line in process.stdout:
            with contextlib.suppress(ValueError):  # killed while it was speaking
                self._heard.put((self, json.loads(line)))
        process.stdout.close()
        if self._process is process:  # otherwise it was killed by us, and another has taken its place
            self._heard.put((self, None))

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    def kill(self) -> None:
        """SIGKILL: no handler, no clean-up, no last word."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            assert process.stdin  # noqa: S101 - a pipe
            process.stdin.close()

    def end(self, patience: float) -> None:
        """Let it come to its end by itself; if it does not, kill it."""
        process = self._process
        if process is None:
            return
        self._process = None
        assert process.stdin  # noqa: S101 - a pipe
        process.stdin.close()
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def last_words(self) -> str:
        return self._log.read_text("utf-8", "replace")[-LAST_WORDS:] if self._log.exists() else ""


MODULES = {"naive": "naive", "twiceproof": "guarded"}
EACH = 2  # processes of each program
PATIENCE = 60.0  # seconds without a word from anybody
LAST = 5.0  # seconds to come to an end


class DemoProcesses:
    """The outside world first, then both programs, then the shop that sends to them."""

    def __init__(self, place: Path, ledger: str) -> None:
        self._place = place
        self._heard: Heard = queue.Queue()
        self._members: list[DemoProcess] = []
        self._environment = {
            "DEMO_LEDGER": ledger,
            "DEMO_NAIVE_DATABASE": str(place / "naive.db"),
            "DEMO_SECRET": "whsec_" + b64encode(os.urandom(24)).decode(),
        }
        self.kills: Counter[str] = Counter()
        self.lost: Counter[str] = Counter()
        self.shop: dict[str, dict[str, int]] = {}
        self.finished = False

    # -- life ------------------------------------------------------------------------------------

    def __enter__(self) -> DemoProcesses:
        return self

    def open(self) -> None:
        services = {name: self._start(name, "services", [name, str(self._place)]) for name in ("accounting", "mail")}
        self._wait_for(list(services.values()))
        self._environment["DEMO_ACCOUNTING_PORT"] = str(services["accounting"].port)
        self._environment["DEMO_MAIL_PORT"] = str(services["mail"].port)
        programs = {
            side: [self._start(f"{side}-{number}", MODULES[side], ["0"]) for number in range(1, EACH + 1)]
            for side in SIDES
        }
        self._wait_for([member for members in programs.values() for member in members])
        ports = {side: [member.port for member in members] for side, members in programs.items()}
        self._start("shop", "shop", [str(self._place), json.dumps(ports)])

    def _start(self, name: str, module: str, words: list[str]) -> DemoProcess:
        member = DemoProcess(name, module, words, self._place / f"{name}.log", self._heard)
        self._members.append(member)
        member.start(self._environment)
        return member

    def _wait_for(self, members: list[DemoProcess]) -> None:
        while not all(member.port for member in members):
            if not self.hear(PATIENCE):
                silent = ", ".join(member.name for member in members if not member.port)
                raise RuntimeError(f"{silent} of the demo did not start within {PATIENCE:g} s")

    def close(self, patience: float = LAST) -> None:
        for member in reversed(self._members):
            member.end(patience)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(LAST if error is None else 0.0)

    # -- what is said ----------------------------------------------------------------------------

    def hear(self, timeout: float) -> bool:
        """One thing that somebody says; False: nobody did."""
        try:
            member, said = self._heard.get(timeout=timeout)
        except queue.Empty:
            return False
        if said is None:
            raise RuntimeError(f"{member.name} of the demo ended by itself:\n{member.last_words()}")
        self._take(member, said)
        return True

    def _take(self, member: DemoProcess, said: dict[str, Any]) -> None:
        if "port" in said:
            member.port = said["port"]
        elif "kill" in said:
            self._kill(said["kill"], said["side"])
        elif "lost" in said:
            self.lost[said["lost"]] += 1
        else:
            self.shop = said["shop"]
            self.finished = said.get("finished", False)

    def _kill(self, pid: int, side: str) -> None:
        for member in self._members:
            if member.pid == pid:
                member.kill()
                self.kills[side] += 1
                member.start(self._environment)
