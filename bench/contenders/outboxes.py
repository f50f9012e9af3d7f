"""faststream-outbox: rows of an outbox in PostgreSQL, handed to a function that takes all at once."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any
from urllib.parse import urlsplit

from faststream_outbox import OutboxBroker, make_outbox_table
from sqlalchemy import MetaData, insert, text
from sqlalchemy.ext.asyncio import create_async_engine

__all__ = ["FastStreamOutbox"]

QUEUE = "orders"


class FastStreamOutbox:
    """Its own defaults, or with `batched` rows fetched and deleted together, as its page on performance has it."""

    def __init__(self, url: str, *, batched: bool) -> None:
        self._loop = asyncio.new_event_loop()
        self._engine: Any = create_async_engine(urlsplit(url)._replace(scheme="postgresql+asyncpg").geturl())
        metadata = MetaData()
        self._table = make_outbox_table(metadata, table_name="outbox")
        self._broker = OutboxBroker(self._engine, outbox_table=self._table, logger=None)
        self._keys = map(str, itertools.count())
        more: dict[str, Any] = {"fetch_batch_size": 100, "terminal_flush_batch_size": 100} if batched else {}

        @self._broker.subscriber(QUEUE, min_fetch_interval=0.01, **more)
        async def take(body: dict[str, Any]) -> None: ...

        self._run(self._create(metadata))

    async def _create(self, metadata: MetaData) -> None:
        async with self._engine.begin() as connection:
            await connection.run_sync(metadata.create_all)

    def fill(self, count: int) -> None:
        self._run(self._fill(count))

    async def _fill(self, count: int) -> None:
        body = json.dumps({"order": 17, "note": "x" * 900}).encode()
        headers = {"content-type": "application/json"}
        rows = [{"queue": QUEUE, "payload": body, "headers": headers} for _ in range(count)]
        async with self._engine.begin() as connection:
            await connection.execute(insert(self._table), rows)

    def relay(self) -> None:
        self._run(self._relay())

    async def _relay(self) -> None:
        await self._broker.start()
        async with self._engine.connect() as connection:
            while (await connection.execute(text("SELECT 1 FROM outbox LIMIT 1"))).first():
                await asyncio.sleep(0.005)
        await self._broker.stop()

    def close(self) -> None:
        self._run(self._engine.dispose())
        self._loop.close()

    def _run(self, work: Any) -> Any:
        return self._loop.run_until_complete(work)
