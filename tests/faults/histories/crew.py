"""The processes that make real histories: started, read from, stopped, continued, killed and replaced by their ids."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Sequence
from queue import Empty, SimpleQueue

from msgspec import json

from tests.faults.histories.member import Line, Part
from tests.faults.histories.nursery import Nursery

Heard = SimpleQueue["tuple[Process, Line | None]"]


class Process:
    """One member. Its output is put into the crew's queue."""

    def __init__(self, nth: int, born: tuple[int, int, int], heard: Heard) -> None:
        self.nth = nth
        self.stopped = False
        self._heard = heard
        self._pid, mouth, ear = born
        self._mouth, self._ear = os.fdopen(mouth, "wb", buffering=0), os.fdopen(ear, "rb")
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        for line in self._ear:
            if line.endswith(b"\n"):  # or it was killed in the middle of it
                self._heard.put((self, json.decode(line, type=Line)))
        self._heard.put((self, None))

    def give(self, part: Part) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._mouth.write(json.encode(part) + b"\n")

    def stop(self) -> None:
        self.stopped = True
        self._send(signal.SIGSTOP)

    def go_on(self) -> None:
        self.stopped = False
        self._send(signal.SIGCONT)

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def _send(self, sign: signal.Signals) -> None:
        """Send a signal only while it lives: afterwards its id may belong to another process."""
        if self._listener.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, sign)

    def end(self) -> None:
        self.kill()
        self._listener.join(10)
        self._ear.close()
        self._mouth.close()


class Crew:
    """A number of processes; a killed one is replaced by another with a name of its own."""

    def __init__(self, urls: Sequence[str], seed: int, size: int, lanes: int, *, blind: bool = False) -> None:
        self.heard: Heard = SimpleQueue()
        self._nursery = Nursery()
        self._urls = urls
        self._seed = seed
        self._rest = [str(lanes), *(["blind"] if blind else [])]
        self._made = 0
        self.processes: dict[int, Process] = {nth: self._make(nth) for nth in range(size)}
        self.ready: set[Process] = set()

    def _make(self, nth: int) -> Process:
        self._made += 1
        arguments = [self._urls[nth % len(self._urls)], f"p{self._made}", str(self._seed + self._made), *self._rest]
        return Process(nth, self._nursery.bear(arguments), self.heard)

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
        self._nursery.close()
