"""Interrupted flows of ours: found due when their lease has lapsed, and finished by a worker with 64 places."""

from __future__ import annotations

import asyncio
from typing import Any

from twiceproof import App

from ..interrupted import AT_ONCE, Scene

__all__ = ["LEASE", "open_side"]

LEASE = 5.0  # nobody is waited for in the figures: by then it has lapsed


class Ours:
    def __init__(self, url: str) -> None:
        self._url = url
        self.scene = Scene()

    async def start(self, count: int) -> None:
        flow = _flow(App(self._url), self.scene)
        await asyncio.gather(*(flow(f"run-{number}") for number in range(count)))

    async def finish(self, count: int) -> None:
        """A run that the worker could not finish shows in the scene: its steps are counted."""
        with App(self._url) as app:
            _flow(app, self.scene)
            await asyncio.to_thread(app.worker(concurrency=AT_ONCE).run, until_idle=True)


open_side = Ours


def _flow(app: App, scene: Scene) -> Any:
    @app.step(repeat="safe")
    async def first(run: str) -> str:
        scene.first += 1
        return run

    @app.step(repeat="safe")
    async def second(run: str) -> str:
        await scene.hang()
        return run

    @app.step(repeat="safe")
    async def third(run: str) -> str:
        scene.third += 1
        return run

    @app.flow(key="{run}", lease=LEASE)
    async def interrupted(run: str) -> str:
        return await third(await second(await first(run)))

    return interrupted
