"""Brokers that are killed: a server, a place on it, and the keys of the messages that are there afterwards."""

from __future__ import annotations

from types import TracebackType
from typing import Any, ClassVar, Self

from tests.servers.nats import NatsServer
from tests.servers.rabbitmq import RabbitServer

__all__ = ["Killable", "NatsStream", "RabbitQueue"]

NAME = "orders"


class Killable:
    """`make` makes the place; `keys` takes all messages out of it."""

    name: ClassVar[str]
    place: ClassVar[str]
    server: Any

    def __enter__(self) -> Self:
        self.server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.server.close()

    async def make(self) -> None:
        raise NotImplementedError

    async def keys(self) -> set[str]:
        raise NotImplementedError


class NatsStream(Killable):
    name = "NATS"
    place = NAME

    def __init__(self) -> None:
        self.server = NatsServer()

    async def make(self) -> None:
        import nats
        from nats.js.api import StreamConfig

        client = await nats.connect(self.server.url)
        await client.jetstream().add_stream(StreamConfig(NAME, subjects=[NAME]))
        await client.close()

    async def keys(self) -> set[str]:
        import nats

        client = await nats.connect(self.server.url)
        stream = client.jetstream()
        reader = await stream.pull_subscribe(NAME)
        left = (await stream.stream_info(NAME)).state.messages
        found: set[str] = set()
        while left > 0:
            for message in await reader.fetch(min(500, left), timeout=20):
                found.add((message.headers or {})["Nats-Msg-Id"])
                await message.ack()
                left -= 1
        await client.close()
        return found


class RabbitQueue(Killable):
    name = "RabbitMQ"
    place = f"/queues/{NAME}"

    def __init__(self) -> None:
        self.server = RabbitServer()

    async def make(self) -> None:
        import aio_pika

        async with await aio_pika.connect(self.server.url) as connection:
            await (await connection.channel()).declare_queue(NAME, durable=True)

    async def keys(self) -> set[str]:
        import aio_pika

        found: set[str] = set()
        async with await aio_pika.connect(self.server.url) as connection:
            channel = await connection.channel()
            await channel.set_qos(500)
            queue = await channel.declare_queue(NAME, durable=True)
            for _ in range(queue.declaration_result.message_count or 0):
                message = await queue.get(timeout=20)
                found.add(str(message.message_id))
                await message.ack()
        return found
