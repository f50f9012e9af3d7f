"""Runs that a killed process left behind, and a fresh process that finishes them. Both are children of the bench.

`python -m bench.interrupted <side> interrupt <url> <count>` starts runs of three steps and kills itself in the second;
`… recover …` prints the seconds until all of them are done.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Protocol

__all__ = ["AT_ONCE", "Scene", "Side", "interrupt", "recover"]

ROOT = Path(__file__).parents[1]
AT_ONCE = 64  # runs that are being started at any time
SIDES = {"ours": "bench.contenders.interrupted_ours", "dbos": "bench.contenders.interrupted_dbos"}


class Scene:
    """What the steps of a run see of this: whether the second hangs, and who got how far."""

    def __init__(self) -> None:
        self.hangs = False
        self.first = self.second = self.third = 0

    async def hang(self) -> None:
        self.second += 1
        if self.hangs:
            await asyncio.Event().wait()


class Side(Protocol):
    scene: Scene

    async def start(self, count: int) -> None:
        """Start so many runs. Each gets stuck in its second step."""

    async def finish(self, count: int) -> None:
        """Open everything anew and return when so many runs are done."""


# -- in the bench --------------------------------------------------------------------------------


def interrupt(side: str, url: str, count: int) -> None:
    done = _child(side, "interrupt", url, count)
    if done.returncode != -signal.SIGKILL:
        raise RuntimeError(f"{side} was to be killed, and ended with {done.returncode}: {done.stderr}")


def recover(side: str, url: str, count: int) -> float:
    done = _child(side, "recover", url, count)
    if done.returncode:
        raise RuntimeError(f"{side} did not recover: {done.stderr}")
    return float(done.stdout.split()[-1])


def _child(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench.interrupted", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


# -- in the children -----------------------------------------------------------------------------


def main(name: str, act: str, url: str, count: str) -> None:
    side: Side = importlib.import_module(SIDES[name]).open_side(url)
    asyncio.run(_interrupt(side, int(count)) if act == "interrupt" else _recover(side, int(count)))


async def _interrupt(side: Side, count: int) -> None:
    side.scene.hangs = True
    starting = asyncio.create_task(side.start(count))
    while side.scene.second < count:  # then the first step of each is recorded
        if starting.done():
            starting.result()
        await asyncio.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)


async def _recover(side: Side, count: int) -> None:
    began = time.perf_counter()
    await side.finish(count)
    seconds = time.perf_counter() - began
    scene = side.scene
    if (scene.first, scene.second, scene.third) != (0, count, count):
        raise RuntimeError(f"steps were run {scene.first}, {scene.second} and {scene.third} times")
    print(seconds, flush=True)
    os._exit(0)  # how long it takes to end is nobody's concern


if __name__ == "__main__":
    main(*sys.argv[1:])
