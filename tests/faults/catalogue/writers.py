"""Four processes that write as fast as they can, and record by themselves what they requested, did and were
answered.
"""

from __future__ import annotations

import asyncio
import itertools
import mmap
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from tests.acceptance.children import Child
from tests.acceptance.places import Place
from twiceproof import App, ClaimLost, InProgress, NeedsReview, StoreUnavailable
from twiceproof.records import Address, Insert, Replace, Written

__all__ = ["LEASE", "POINTS", "UNKNOWN", "Board", "Work", "Writers", "receipt"]

LEASE = 600.0  # lapses only when the test moves the clock
CALLERS = 12  # in each process; every one waits for its answer before it asks again
POINTS = ("", "taking a claim", "recording a result", "starting a run", "recording a step", "drawing a fence")
IDLE, TAKING, RECORDING, STARTING, STEPPING, DRAWING = range(len(POINTS))
Note = Callable[[str, str], object]
Reach = Callable[[str, int], object]
UNKNOWN = (ClaimLost, InProgress, NeedsReview, StoreUnavailable)


def receipt(key: str) -> str:
    return f"receipt {key}"


class Board:
    """Memory that all processes share: the point where each of them is, the number of answers, and whether to stop."""

    def __init__(self, writers: int) -> None:
        self._writers = writers
        self._map = mmap.mmap(-1, 1 + writers * (4 + CALLERS))

    def at(self, writer: int, caller: int, point: int) -> None:
        self._map[self._row(writer) + 4 + caller] = point

    def answered(self, writer: int) -> None:
        row = self._row(writer)
        self._map[row : row + 4] = (int.from_bytes(self._map[row : row + 4]) + 1).to_bytes(4)

    def answers(self) -> int:
        return sum(self._answers())

    @property
    def all_at_work(self) -> bool:
        """Wait until all writers work: a server killed before that has only refused to be opened."""
        return all(self._answers())

    def _answers(self) -> list[int]:
        rows = (self._row(writer) for writer in range(self._writers))
        return [int.from_bytes(self._map[row : row + 4]) for row in rows]

    def points(self) -> set[str]:
        """Return the points at which writers are now."""
        rows = (self._row(writer) + 4 for writer in range(self._writers))
        return {POINTS[point] for row in rows for point in self._map[row : row + CALLERS] if point != IDLE}

    def stop(self) -> None:
        self._map[0] = 1

    @property
    def stopped(self) -> bool:
        return bool(self._map[0])

    def _row(self, writer: int) -> int:
        return 1 + writer * (4 + CALLERS)


class Work:
    """The guarded work, and its records outside of the product."""

    def __init__(self, app: App, note: Note, reach: Reach) -> None:
        self.charge, self.order = _charge(app, note, reach), _order(app, note, reach)

    def of(self, key: str) -> Awaitable[Any]:
        return self.charge(key) if key.startswith("once") else self.order(key)


def _charge(app: App, note: Note, reach: Reach) -> Any:
    @app.once(key="{key}", lease=LEASE)
    async def charge(key: str) -> str:
        note("did", key)
        reach(key, RECORDING)
        return receipt(key)

    return charge


def _order(app: App, note: Note, reach: Reach) -> Any:
    @app.step(repeat="safe")
    async def reserve(key: str) -> None:
        reach(key, STEPPING)

    @app.step(repeat="never")
    async def mail(key: str) -> str:
        note("did", key)
        return receipt(key)

    @app.flow(key="{key}", lease=LEASE)
    async def order(key: str) -> str:
        await reserve(key)
        return await mail(key)

    return order


class Writers:
    """Started at once, stopped through the board. Their accounts are files outside of the product."""

    def __init__(self, place: Place, count: int = 4) -> None:
        self.place = place
        self.board = Board(count)
        self._children = [Child(self._body(writer)) for writer in range(count)]

    def stop(self) -> list[int]:
        """Stop them, and return how each of them ended."""
        self.board.stop()
        return [child.end() for child in self._children]

    def kill(self) -> None:
        for child in self._children:
            child.send(signal.SIGKILL)
            child.end()

    def _body(self, writer: int) -> Callable[[Child], None]:
        def body(_: Child) -> None:
            asyncio.run(_Writer(writer, self.place, self.board).run())

        return body


class _Writer:
    def __init__(self, number: int, place: Place, board: Board) -> None:
        self._number = number
        self._place = place
        self._board = board
        path = Path(place.directory / f"writer-{number}.log")
        self._log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    async def run(self) -> None:
        try:
            await self._write()
        except Exception as error:
            self._note("fell", f"writer {self._number}", f"{type(error).__name__}: {error}".replace("\n", " "))
            raise

    async def _write(self) -> None:
        with self._place.app() as app:
            work = Work(app, self._note, lambda key, point: self._at(int(key.split(":")[2]), point))
            await asyncio.gather(self._draw(app), *(self._call(work, caller) for caller in range(1, CALLERS)))

    def _at(self, caller: int, point: int) -> None:
        self._board.at(self._number, caller, point)

    def _note(self, what: str, key: str, said: str = "") -> None:
        os.write(self._log, f"{what}\t{key}\t{said}\n".encode())

    async def _call(self, work: Work, caller: int) -> None:
        """Call for one key after the other, claims and runs in turn."""
        kind, point = ("once", TAKING) if caller % 2 else ("flow", STARTING)
        for nth in itertools.count():
            if self._board.stopped:
                return
            key = f"{kind}:{self._number}:{caller}:{nth}"
            self._note("asked", key)
            self._at(caller, point)
            try:
                self._note("heard", key, str(await work.of(key)))
                self._board.answered(self._number)
            except UNKNOWN as error:
                self._note("unknown", key, type(error).__name__)
            self._at(caller, IDLE)

    async def _draw(self, app: App) -> None:
        """Draw fences of one record: each that was answered must be higher than all earlier ones."""
        at = Address(f"fences/{self._number}", "claim", "self")
        fence = 0
        while not self._board.stopped:
            self._at(0, DRAWING)
            write = Replace(at, "x", fence=fence, draw=True) if fence else Insert(at, "x", draw=True)
            try:
                told = await app.store.write(write).wait()
            except StoreUnavailable:
                told = None
            if isinstance(told, Written):
                fence = told.fence
                self._note("drew", at.space, str(fence))
                self._board.answered(self._number)
            elif told is not None and told.found is not None:
                fence = told.found.fence
            self._at(0, IDLE)
            await asyncio.sleep(0)
