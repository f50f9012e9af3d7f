"""A storm of duplicates over HTTP: 1,000 events, 50 deliveries each, in any order, at two servers on one ledger."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.acceptance.http_server import HttpServer

EVENTS, DELIVERIES, CONNECTIONS = 1_000, 50, 64

pytestmark = pytest.mark.slow


def request(order: str) -> bytes:
    body = json.dumps({"id": order}).encode()
    head = f"POST /hooks/post HTTP/1.1\r\nhost: 127.0.0.1\r\nx-secret: s3cret\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def deliver(address: tuple[str, int], orders: Sequence[str], heard: Counter[str]) -> None:
    """One connection, kept alive. What is answered 503 comes again at the end, as a sender would do."""
    reader, writer = await asyncio.open_connection(*address)
    left = list(orders)
    while left:
        order = left.pop(0)
        writer.write(request(order))
        status, answer = await read_answer(reader)
        if status == 503:
            left.append(order)
        heard[f"{status} {answer.get('state', '')}"] += 1
    writer.close()
    await writer.wait_closed()


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    length = int(head.partition("content-length:")[2].split("\r\n")[0])
    return int(head.split()[1]), json.loads(await reader.readexactly(length))


async def storm(addresses: Sequence[tuple[str, int]], deliveries: Sequence[str]) -> Counter[str]:
    heard: Counter[str] = Counter()
    parts = [deliveries[number::CONNECTIONS] for number in range(CONNECTIONS)]
    await asyncio.gather(
        *(deliver(addresses[number % len(addresses)], part, heard) for number, part in enumerate(parts))
    )
    return heard


def test_a_thousand_events_delivered_fifty_times_each_are_a_thousand_runs(tmp_path: Path) -> None:
    deliveries = [f"o-{number}" for number in range(EVENTS)] * DELIVERIES
    random.Random(17).shuffle(deliveries)
    servers = [HttpServer(tmp_path, "--no-worker"), HttpServer(tmp_path)]
    try:
        heard = asyncio.run(storm([server.address for server in servers], deliveries))
        settle(servers[1])
    finally:
        for server in servers:
            server.close()
    assert heard["200 new"] == EVENTS
    assert heard["200 duplicate"] == EVENTS * (DELIVERIES - 1)
    assert set(heard) <= {"200 new", "200 duplicate", "503 busy"}
    shipped = Counter(line for line in servers[0].effects() if not line.startswith("bill"))
    assert len(shipped) == EVENTS and set(shipped.values()) == {1}


def settle(server: HttpServer) -> None:
    """The work is a worker's: it is told to drain only when everything is done."""
    for _ in range(600):
        status, _, body = server.call("GET", "/v1/runs?state=done&limit=1000")
        assert status == 200, body
        if len(json.loads(body)["runs"]) == EVENTS:
            return
    raise AssertionError("the runs did not come to an end")
