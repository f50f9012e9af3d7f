"""Callers of the claim service over HTTP: each claims, acts when told to, and completes, on a persistent connection."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tests.acceptance.places import Place
from tests.faults.catalogue.storm_verdict import BUSY, Answers

__all__ = ["HttpCallers", "Told"]

CONNECTIONS = 16
TRIES = 50  # tries after a 5xx: unknown is not failed

Told = tuple[int, bytes]


class HttpCallers:
    """The callers of one process. `looks` is the control: a caller that looks first and finds nothing believes that it
    may act.

    All callers of a process look before one of them acts. The process that looks first finds nothing, however the
    machine schedules it: each of its callers acts.
    """

    def __init__(
        self, place: Place, addresses: Sequence[tuple[str, int]], process: int, *, looks: bool = False
    ) -> None:
        self._place = place
        self._addresses = addresses
        self._process = process
        self._looks = looks
        self._operation = "look" if looks else "charge"
        self._receipts = itertools.count()

    def call(self, orders: Sequence[int], answers: Answers) -> None:
        asyncio.run(self._all(orders, answers))

    async def _all(self, orders: Sequence[int], answers: Answers) -> None:
        if self._looks:
            orders = await self._not_there(orders)
        left = iter(orders)
        await asyncio.gather(*(self._drain(number, left, answers) for number in range(CONNECTIONS)))

    async def _not_there(self, orders: Sequence[int]) -> list[int]:
        """Return the orders of these callers that do not exist yet."""
        reader, writer = await asyncio.open_connection(*self._addresses[0])
        with contextlib.closing(writer):
            line = Line(reader, writer)
            return [order for order in orders if (await line.ask("GET", self._path(order)))[0] == 404]

    async def _drain(self, number: int, left: Iterator[int], answers: Answers) -> None:
        address = self._addresses[(self._process + number) % len(self._addresses)]
        reader, writer = await asyncio.open_connection(*address)
        with contextlib.closing(writer):
            line = Line(reader, writer)
            for order in left:
                answers[order, await self._one(line, order)] += 1

    async def _one(self, line: Line, order: int) -> str:
        status, body = await line.ask("PUT", self._path(order), {"payload": {"order": order}})
        if status == 201 or self._looks:
            return await self._act(line, order, json.loads(body).get("token", "none"))
        return BUSY if status == 409 else said(status, body)

    async def _act(self, line: Line, order: int, token: str) -> str:
        receipt = {"order": order, "paid": f"a{self._process}-{next(self._receipts)}"}
        self._place.do(f"charge {order} {json.dumps(receipt)}")
        status, body = await line.ask("POST", self._path(order) + "/complete", {"token": token, "result": receipt})
        return json.dumps(receipt) if status == 200 else said(status, body)

    def _path(self, order: int) -> str:
        return f"/v1/claims/{self._operation}/order%3A{order}"

    # -- before and afterwards -------------------------------------------------------------------

    async def fail(self, orders: Iterable[int]) -> None:
        """These failed without an effect: the next caller takes over, and only one may."""
        reader, writer = await asyncio.open_connection(*self._addresses[0])
        with contextlib.closing(writer):
            line = Line(reader, writer)
            for order in orders:
                _, body = await line.ask("PUT", self._path(order), {"payload": {"order": order}})
                await line.ask("POST", self._path(order) + "/fail", {"token": json.loads(body)["token"]})

    async def late(self, keys: int, answers: Answers) -> dict[int, set[bytes]]:
        """Every caller repeats its request at each server, and once with another payload; returns the replayed
        bytes.
        """
        bodies: dict[int, set[bytes]] = {order: set() for order in range(keys)}
        for address in self._addresses:
            reader, writer = await asyncio.open_connection(*address)
            with contextlib.closing(writer):
                line = Line(reader, writer)
                for order in range(keys):
                    status, body = await line.ask("PUT", self._path(order), {"payload": {"order": order}})
                    bodies[order].add(body)
                    answers[order, said(status, body)] += 1
                    status, body = await line.ask("PUT", self._path(order), {"payload": {"order": -order - 1}})
                    if status != 422:
                        answers[order, f"another order: {status} {body!r}"] += 1
        return bodies


def said(status: int, body: bytes) -> str:
    """Return a replay's receipt; any other answer as it is."""
    found = json.loads(body)
    if status == 200 and found.get("claimed") is False and found.get("state") == "done":
        return json.dumps(found["result"])
    return f"{status} {body.decode()}"


class Line:
    """A persistent connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def ask(self, method: str, path: str, value: Any = None) -> Told:
        """Send a request; after a 5xx, whose outcome is unknown, send it again."""
        body = b"" if value is None else json.dumps(value).encode()
        head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(body)}\r\n"
        for _ in range(TRIES):
            self._writer.write(f"{head}content-type: application/json\r\n\r\n".encode() + body)
            status, answer = await self._read()
            if status < 500:
                break
        return status, answer

    async def _read(self) -> Told:
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = int(head.partition("content-length:")[2].split("\r\n")[0])
        return int(head.split()[1]), await self._reader.readexactly(length)
