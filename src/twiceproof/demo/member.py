"""One process of the demo: started, heard, killed, started again, and never left behind."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

__all__ = ["Heard", "Member"]

Heard: TypeAlias = "queue.Queue[tuple[Member, dict[str, Any] | None]]"
LAST_WORDS = 2_000  # letters of a log


class Member:
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
                [*self._command, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                env={**os.environ, **environment}, start_new_session=True,
            )  # fmt: skip
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
