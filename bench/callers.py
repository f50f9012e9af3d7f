"""Who calls: one blocking caller, many threads, or many asyncio tasks. Each knows how long its calls took."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

__all__ = ["ONE", "TASKS", "THREADS", "Act", "AsyncAct", "Callers", "One", "Several", "Tasks", "Threads", "count_in"]

ONE, TASKS, THREADS = "1 caller", "64 tasks", "64 threads"

Act = Callable[[int], object]  # given the caller's number: whose connection to use
AsyncAct = Callable[[int], Awaitable[object]]


def count_in(label: str) -> int:
    """How many callers a label speaks of: 64 in "64 tasks"."""
    return int(label.partition(" ")[0])


class Callers(Protocol):
    """Some callers and what each of them does, over and over."""

    label: str
    count: int

    def time(self, each: int) -> float:
        """Seconds until every caller has acted `each` times."""

    def close(self) -> None: ...


class One:
    label = ONE
    count = 1

    def __init__(self, act: Act) -> None:
        self._act = act

    def time(self, each: int) -> float:
        act = self._act
        began = time.perf_counter()
        for _ in range(each):
            act(0)
        return time.perf_counter() - began

    def close(self) -> None:
        """Nothing is open."""


class Several:
    """One act of these is several of another's."""

    def __init__(self, callers: Callers, acts: int) -> None:
        self.label = callers.label
        self.count = callers.count
        self._callers = callers
        self._acts = acts

    def time(self, each: int) -> float:
        return self._callers.time(each * self._acts)

    def close(self) -> None:
        self._callers.close()


class Threads:
    """Started before the clock is; an act that raises fails the run, it does not shorten it."""

    def __init__(self, count: int, act: Act) -> None:
        self.label = f"{count} threads"
        self.count = count
        self._act = act

    def time(self, each: int) -> float:
        gate = threading.Barrier(self.count + 1)
        errors: list[BaseException] = []
        threads = [
            threading.Thread(target=self._work, args=(number, each, gate, errors)) for number in range(self.count)
        ]
        for thread in threads:
            thread.start()
        gate.wait()
        began = time.perf_counter()
        for thread in threads:
            thread.join()
        seconds = time.perf_counter() - began
        if errors:
            raise errors[0]
        return seconds

    def _work(self, number: int, each: int, gate: threading.Barrier, errors: list[BaseException]) -> None:
        gate.wait()
        try:
            for _ in range(each):
                self._act(number)
        except BaseException as error:  # noqa: BLE001 - raised again by whoever waits
            errors.append(error)

    def close(self) -> None:
        """The threads have ended."""


class Tasks:
    """All in one event loop, which stays the same from round to round, as connections want."""

    def __init__(self, count: int, act: AsyncAct, runner: asyncio.Runner | None = None) -> None:
        self.label = f"{count} tasks"
        self.count = count
        self._act = act
        self._runner = runner or asyncio.Runner()

    def time(self, each: int) -> float:
        return self._runner.run(self._together(each))

    async def _together(self, each: int) -> float:
        tasks = [asyncio.create_task(self._work(number, each)) for number in range(self.count)]
        began = time.perf_counter()
        await asyncio.gather(*tasks)
        return time.perf_counter() - began

    async def _work(self, number: int, each: int) -> None:
        act = self._act
        for _ in range(each):
            await act(number)

    def close(self) -> None:
        self._runner.close()
