"""The workers and their killer: one process forks them, kills one now and then, and starts a replacement.

It is a separate process without threads: a worker is a fork of it that opens its own app. Every kill is logged with the
name of the worker. The command `calm` ends the kills, and the process ends with its input.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import select
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import msgspec

from tests.faults.chaos.effect_client import Effects
from tests.faults.chaos.order_flow import declare, lending
from twiceproof import App

PATIENCE = 15.0  # for workers that were told to end
FELL_PAUSE = 0.1  # before a worker that failed by itself is replaced: its database may be down


class Orders(msgspec.Struct, frozen=True):
    """The settings of a crew. Each worker reaches the database by its own `dsn`."""

    dsns: list[str]
    effects: str
    directory: str
    seed: int
    every: float  # seconds between two kills, on average
    places: int  # of each worker
    bare: bool = False


class Crew:
    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._dice = random.Random(orders.seed)
        self._directory = Path(orders.directory)
        self._at_work: dict[int, tuple[int, str]] = {}  # by process: the worker's number and name
        self._hired = 0
        self._calm = False
        self._leash = os.pipe()  # workers end when this pipe's other end is closed, also if we were killed

    def run(self) -> None:
        for index in range(len(self._orders.dsns)):
            self._hire(index)
        next_kill = self._next_kill()
        while self._heed(0.02):
            self._replace_fallen()
            if not self._calm and time.monotonic() >= next_kill:
                self._kill_one()
                next_kill = self._next_kill()
        self._dismiss()

    def _heed(self, seconds: float) -> bool:
        """Follow a command. False: stop."""
        if not select.select([0], [], [], seconds)[0]:
            return True
        told = os.read(0, 100)
        self._calm |= b"calm" in told
        return bool(told)

    def _next_kill(self) -> float:
        return time.monotonic() + self._dice.expovariate(1 / self._orders.every)

    # -- killing ---------------------------------------------------------------------------------

    def _kill_one(self) -> None:
        pid = self._dice.choice(sorted(self._at_work))
        os.kill(pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        index, name = self._at_work.pop(pid)
        self._write("killed" if code == -signal.SIGKILL else "fell", name, code)  # it may have been dead already
        self._hire(index)

    def _replace_fallen(self) -> None:
        for pid in list(self._at_work):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                index, name = self._at_work.pop(pid)
                self._write("fell", name, os.waitstatus_to_exitcode(status))
                time.sleep(FELL_PAUSE)
                self._hire(index)

    def _write(self, what: str, who: str, code: int = 0) -> None:
        with (self._directory / "crew.log").open("a") as log:
            log.write(json.dumps({"at": time.monotonic(), "what": what, "who": who, "code": code}) + "\n")

    def _dismiss(self) -> None:
        for pid in self._at_work:
            os.kill(pid, signal.SIGTERM)
        until = time.monotonic() + PATIENCE
        while self._at_work and time.monotonic() < until:
            for pid in list(self._at_work):
                if os.waitpid(pid, os.WNOHANG)[0]:
                    self._at_work.pop(pid)
            time.sleep(0.01)
        for pid in self._at_work:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

    # -- working ---------------------------------------------------------------------------------

    def _hire(self, index: int) -> None:
        self._hired += 1
        name = f"worker {index} hire {self._hired}"
        pid = os.fork()
        if pid:
            self._at_work[pid] = index, name
            self._write("hired", name)
            return
        with contextlib.suppress(BaseException):
            self._work(index, name)
        os._exit(1)

    def _work(self, index: int, name: str) -> None:
        with (self._directory / f"worker-{index}.log").open("a") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        os.close(self._leash[1])
        threading.Thread(target=self._end_with_crew, daemon=True).start()
        logging.basicConfig(level=logging.WARNING, format=f"{name}: %(message)s", force=True)
        try:
            serve(self._orders, self._orders.dsns[index], name)
        except BaseException:
            traceback.print_exc()
            raise
        os._exit(0)

    def _end_with_crew(self) -> None:
        os.read(self._leash[0], 1)
        os._exit(1)


def serve(orders: Orders, dsn: str, name: str) -> None:
    """A worker, until it is told to stop or killed."""
    app = App(dsn)
    declare(app, Effects(orders.effects, name), lending(dsn), bare=orders.bare)
    worker = app.worker(concurrency=orders.places)

    def drain(number: int, frame: Any) -> None:
        worker.drain()

    signal.signal(signal.SIGTERM, drain)
    worker.run()


if __name__ == "__main__":
    Crew(msgspec.json.decode(sys.argv[1], type=Orders)).run()
