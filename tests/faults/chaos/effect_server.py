"""The effect server: carries out requests, and writes each effect into a log of its own (run as a process).

It knows nothing of the product. A request with a key is done once; any other is done every time. On command it loses
answers: the effect is done, and its caller gets no answer. One JSON object per line, both ways.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

SLOWEST = 0.008  # seconds that an effect takes at most: a killed worker's request may be begun and not done


class EffectServer:
    def __init__(self, log: Path, seed: int) -> None:
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._dice = random.Random(seed)
        self._share = 0.0  # of the answers that are lost
        self._receipts = 0
        self._by_key: dict[str, asyncio.Future[int]] = {}
        self._by_order: dict[tuple[str, int], int] = {}

    # -- effects ---------------------------------------------------------------------------------

    def _write(self, what: str, asked: dict[str, Any], **more: Any) -> None:
        line = {"at": time.monotonic(), "what": what, **asked, **more}
        os.write(self._log, (json.dumps(line) + "\n").encode())

    async def _do(self, asked: dict[str, Any]) -> int:
        """Once begun, it is done, even if its caller dies."""
        self._write("begun", asked)
        key = asked.get("key")
        if key is None:
            return await self._perform(asked)
        if key in self._by_key:
            self._write("known", asked)
            return await self._by_key[key]
        self._by_key[key] = asyncio.get_running_loop().create_future()
        self._by_key[key].set_result(await self._perform(asked))
        return self._by_key[key].result()

    async def _perform(self, asked: dict[str, Any]) -> int:
        await asyncio.sleep(self._dice.uniform(0, SLOWEST))
        self._receipts += 1
        self._by_order[asked["kind"], asked["order"]] = self._receipts
        self._write("done", asked, receipt=self._receipts)
        return self._receipts

    def _find(self, asked: dict[str, Any]) -> int | None:
        found = self._by_order.get((asked["kind"], asked["order"]))
        self._write("asked", asked, found=found)
        return found

    # -- talking ---------------------------------------------------------------------------------

    async def serve(self, path: str) -> None:
        async with await asyncio.start_unix_server(self._talk, path, backlog=512) as server:
            print("serving", flush=True)
            await server.serve_forever()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while line := await reader.readline():
                if not line.endswith(b"\n"):
                    break  # half a request, of a worker that died writing it
                answer = await self._answer(json.loads(line))
                if answer is None:
                    break
                if answer:
                    writer.write((json.dumps(answer) + "\n").encode())
                    await writer.drain()
        writer.transport.abort()

    async def _answer(self, asked: dict[str, Any]) -> dict[str, Any] | None:
        """None: the answer is lost, and the connection with it. An empty one is not sent."""
        verb = asked.pop("verb")
        if verb == "lose":
            self._share = asked["share"]
            return {"ok": True}
        if verb == "visit":
            self._write("visit", asked)
            return {}
        if verb == "find":
            return {"receipt": self._find(asked)}
        receipt = await self._do(asked)
        if self._dice.random() < self._share:
            self._write("lost", asked)
            return None
        return {"receipt": receipt}


async def watch(parent: int) -> None:
    """End the server with its parent, so that it is not left behind."""
    while os.getppid() == parent:
        await asyncio.sleep(0.5)
    os._exit(0)


async def main(path: str, log: str, seed: str) -> None:
    server = EffectServer(Path(log), int(seed))
    await asyncio.gather(server.serve(path), watch(os.getppid()))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]))
