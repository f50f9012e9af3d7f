"""Interrupted workflows of DBOS: a launch recovers what its executor left pending."""

from __future__ import annotations

import asyncio
from typing import Any

from dbos import DBOS, SetWorkflowID
from sqlalchemy import Engine, event

from ..interrupted import AT_ONCE, Scene
from .dbos_flows import launch_dbos

__all__ = ["open_side"]

scene = Scene()


class Dbos:
    scene = scene

    def __init__(self, url: str) -> None:
        self._url = url

    async def start(self, count: int) -> None:
        event.listen(Engine, "connect", _hurry)
        launch_dbos(self._url)
        room = asyncio.Semaphore(AT_ONCE)
        await asyncio.gather(*(_start(f"run-{number}", room) for number in range(count)))
        await asyncio.Event().wait()  # the runs go on by themselves

    async def finish(self, count: int) -> None:
        launch_dbos(self._url)
        while scene.third < count:
            await asyncio.sleep(0.01)
        while await DBOS.list_workflows_async(status=["PENDING", "ENQUEUED"], limit=1):
            await asyncio.sleep(0.01)


open_side = Dbos


def _hurry(connection: Any, _: object) -> None:
    """To start them is not what is measured: it need not wait for the disk."""
    is_sqlite = type(connection).__module__.startswith("sqlite3")
    cursor = connection.cursor()
    cursor.execute("PRAGMA synchronous=OFF" if is_sqlite else "SET synchronous_commit = off")
    cursor.close()


async def _start(run: str, room: asyncio.Semaphore) -> None:
    async with room:
        with SetWorkflowID(run):
            await DBOS.start_workflow_async(interrupted, run)


@DBOS.step()
async def first(run: str) -> str:
    scene.first += 1
    return run


@DBOS.step()
async def second(run: str) -> str:
    await scene.hang()
    return run


@DBOS.step()
async def third(run: str) -> str:
    scene.third += 1
    return run


@DBOS.workflow()
async def interrupted(run: str) -> str:
    return await third(await second(await first(run)))
