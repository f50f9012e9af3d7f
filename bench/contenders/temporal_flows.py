"""Temporal: its development server with a database file, and a worker of its Python SDK in the same process."""

from __future__ import annotations

import asyncio
import tempfile
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

from ..callers import AsyncAct, Callers, Tasks, count_in
from ..confined import program, raise_loopback, serve
from .flows import fresh_ids

QUEUE = "bench"


@activity.defn
async def add(number: int) -> int:
    return number + 1


@workflow.defn(sandboxed=False)
class Count:
    @workflow.run
    async def run(self, steps: int) -> int:
        number = 0
        for _ in range(steps):
            number = await workflow.execute_activity(add, number, start_to_close_timeout=timedelta(seconds=30))
        return number


def main() -> None:
    raise_loopback()
    with tempfile.TemporaryDirectory(prefix="twiceproof-bench-temporal-") as directory, asyncio.Runner() as runner:
        client = runner.run(_open(f"{directory}/temporal.db"))
        serve(lambda callers, steps: _callers(client, callers, steps, runner))


async def _open(file: str) -> Client:
    """The worker goes on in the loop whenever somebody is being timed."""
    environment = await WorkflowEnvironment.start_local(
        dev_server_existing_path=str(program("temporal")),
        dev_server_database_filename=file,
        dev_server_log_level="error",
    )
    worker = Worker(environment.client, task_queue=QUEUE, workflows=[Count], activities=[add])
    _kept.extend([environment, asyncio.create_task(worker.run())])
    return environment.client


_kept: list[object] = []  # a server that nobody holds is stopped, a task forgotten


def _callers(client: Client, callers: str, steps: int, runner: asyncio.Runner) -> Callers:
    return Tasks(count_in(callers), _act(client, steps), runner)


def _act(client: Client, steps: int) -> AsyncAct:
    ids = fresh_ids()

    async def act(_: int) -> None:
        assert await client.execute_workflow(Count.run, steps, id=ids(), task_queue=QUEUE) == steps

    return act


if __name__ == "__main__":
    main()
