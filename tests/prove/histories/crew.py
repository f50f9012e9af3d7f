"""The processes that make real histories: started, heard, stopped, continued, killed and replaced by their id."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from queue import Empty, SimpleQueue

from msgspec import json

from tests.prove.histories.member import Line, Part


class Process:
    """One member. What it says ends up in the crew's queue, with the member's number."""

    def __init__(self, nth: int, name: str, arguments: list[str], heard: SimpleQueue[tuple[Process, Line | None]]) -> None:
        self.nth = nth
        self.name = name
        self.stopped = False
        self._heard = heard
        self._child = subprocess.Popen(
            [sys.executable, "-m", "tests.prove.histories.member", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._ear = threading.Thread(target=self._listen, daemon=True)
        self._ear.start()

    def _listen(self) -> None:
        for line in self._child.stdout:
            if line.endswith(b"\n"):  # or it was killed in the middle of it
                self._heard.put((self, json.decode(line, type=Line)))
        self._heard.put((self, None))

    def give(self, part: Part) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._child.stdin.write(json.encode(part) + b"\n")
            self._child.stdin.flush()

    def stop(self) -> None:
        self.stopped = True
        self._child.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.stopped = False
        self._child.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._child.kill()

    def end(self) -> None:
        self.kill()
        self._child.wait(10)
        self._ear.join(10)
        self._child.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            self._child.stdin.close()


class Crew:
    """A number of processes; a killed one is replaced by another with a name of its own."""

    def __init__(self, url: str, seed: int, size: int, lanes: int, *, blind: bool = False) -> None:
        self.heard: SimpleQueue[tuple[Process, Line | None]] = SimpleQueue()
        self._url = url
        self._seed = seed
        self._rest = [str(lanes), *(["blind"] if blind else [])]
        self._made = 0
        self.processes: dict[int, Process] = {nth: self._make(nth) for nth in range(size)}
        self.ready: set[Process] = set()

    def _make(self, nth: int) -> Process:
        self._made += 1
        name = f"p{self._made}"
        return Process(nth, name, [self._url, name, str(self._seed + self._made), *self._rest], self.heard)

    def next_line(self, seconds: float) -> tuple[Process, Line | None] | None:
        try:
            return self.heard.get(timeout=seconds)
        except Empty:
            return None

    def replace(self, process: Process) -> None:
        self.ready.discard(process)
        process.end()
        self.processes[process.nth] = self._make(process.nth)

    def close(self) -> None:
        for process in self.processes.values():
            process.end()
