"""The server's side of one AMQP 1.0 connection: sign-in by SASL, sessions, links, transfers and their outcomes.

The host decides what the links lead to. Everything runs on one event loop, so that each frame is atomic.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Protocol

from msgspec import Struct

from .amqp import (
    AMQP_HEADER,
    SASL_HEADER,
    AmqpArray,
    Described,
    Symbol,
    UByte,
    UInt,
    ULong,
    UShort,
    frame,
    performative,
)

__all__ = ["AmqpConnection", "AmqpHost", "AmqpLink", "AmqpRefusal"]

OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE = range(0x10, 0x19)
SASL_MECHANISMS, SASL_INIT, SASL_OUTCOME = 0x40, 0x41, 0x44
ERROR, ACCEPTED, REJECTED = 0x1D, 0x24, 0x25
SOURCE = 0x28
FRAME_BYTES = 65_536
WINDOW = UInt(0x7FFFFFFF)
CREDIT = 2_000  # transfers that a peer may send before it is granted more
FILTERS = 7  # their position in a source


class AmqpRefusal(Struct, frozen=True):
    """An error as AMQP tells it: of a link that is not attached, or of a message that is rejected."""

    condition: str
    text: str

    def described(self) -> Described:
        return Described(ULong(ERROR), [Symbol(self.condition), self.text, None])


class AmqpLink:
    """A link that the peer attached. `sends`: messages go from here to the peer, as many as it gives credit for."""

    def __init__(self, connection: AmqpConnection, channel: int, attach: list[Any]) -> None:
        self.connection, self.channel = connection, channel
        self.name, self.handle, self.sends = str(attach[0]), int(attach[1]), bool(attach[2])
        self.settle_modes = attach[3:5]
        self.source, self.target = attach[5], attach[6]
        self.properties: dict[str, Any] = attach[13] or {}
        end = self.source if self.sends else self.target
        self.address = str(end.value[0]) if end is not None else ""
        self.filters: dict[str, Any] = dict(self._filters())
        self.reply: dict[str, Any] = {}  # properties of the answer to the attach
        self.credit = self.count = 0
        self.parts = b""  # of a message whose last transfer has not come
        self.arriving = (0, 0, False)  # its delivery id, its form, and whether it needs no answer

    def _filters(self) -> dict[str, Any]:
        values = self.source.value if self.sends else []
        return (values[FILTERS] if len(values) > FILTERS else None) or {}

    def use_filter(self, name: str, value: str) -> None:
        """Tell the peer, in the answer, what its filter was resolved to."""
        values = [*self.source.value]
        values[FILTERS] = {Symbol(name): value}
        self.source = Described(ULong(SOURCE), values)

    def send(self, tag: bytes, payload: bytes) -> None:
        self.credit, self.count = self.credit - 1, self.count + 1
        self.connection.transfer(self, tag, payload)

    def detach(self, refusal: AmqpRefusal) -> None:
        self.connection.detach(self, refusal)


class AmqpHost(Protocol):
    def attach(self, link: AmqpLink) -> AmqpRefusal | None:
        """A peer attaches a link."""

    def detached(self, link: AmqpLink) -> None:
        """Forget a link that was closed by the peer or with its connection."""

    def receive(self, link: AmqpLink, payload: bytes, form: int) -> AmqpRefusal | None:
        """A message came on a link, in the form that the transfer names."""

    def credited(self, link: AmqpLink) -> None:
        """A link that sends has credit."""

    def settle(self, link: AmqpLink, tag: bytes, state: Described | None) -> AmqpRefusal | None:
        """The peer has settled a delivery."""


class AmqpConnection:
    def __init__(
        self, host: AmqpHost, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, begun: bytes = b""
    ) -> None:
        self._host, self._reader, self._writer = host, reader, writer
        self._begun = begun  # what was read of the header already
        self._links: dict[tuple[int, int], AmqpLink] = {}  # by channel and handle
        self._sent: dict[tuple[int, int], tuple[AmqpLink, bytes]] = {}  # deliveries by channel and id
        self._next_id = 0
        self._peer_bytes = FRAME_BYTES
        self.authorized: set[str] = set()  # audiences that a token was put for

    async def run(self) -> None:
        """Serve until the peer closes, or hangs up."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await self._serve()
        for link in list(self._links.values()):
            self._host.detached(link)
        self._links = {}

    async def _serve(self) -> None:
        header = self._begun + await self._reader.readexactly(8 - len(self._begun))
        if header == SASL_HEADER:
            self._writer.write(SASL_HEADER)
            self._say(SASL_MECHANISMS, [AmqpArray([Symbol("ANONYMOUS"), Symbol("MSSBCBS")])], kind=1)
            await self._frame()
            self._say(SASL_OUTCOME, [UByte(0)], kind=1)
            header = await self._reader.readexactly(8)
        self._writer.write(AMQP_HEADER)
        going = header == AMQP_HEADER
        while going:
            channel, body = await self._frame()
            going = not body or self._on_frame(channel, *performative(body))
            await self._writer.drain()

    async def _frame(self) -> tuple[int, bytes]:
        head = await self._reader.readexactly(8)
        size, offset = int.from_bytes(head[:4], "big"), 4 * head[4]
        rest = await self._reader.readexactly(size - 8)
        return int.from_bytes(head[6:], "big"), rest[offset - 8 :]

    def _say(self, code: int, fields: list[Any], *, channel: int = 0, kind: int = 0, payload: bytes = b"") -> None:
        self._writer.write(frame(code, fields, channel=channel, kind=kind, payload=payload))

    def _on_frame(self, channel: int, code: int, fields: list[Any], payload: bytes) -> bool:
        if code == OPEN:
            self._peer_bytes = int(fields[2] or FRAME_BYTES)
            self._say(OPEN, ["simulator", None, UInt(FRAME_BYTES), UShort(255)])
        elif code == BEGIN:
            self._say(BEGIN, [UShort(channel), UInt(0), WINDOW, WINDOW, UInt(255)], channel=channel)
        elif code == ATTACH:
            self._attach(AmqpLink(self, channel, fields))
        elif code == FLOW and fields[4] is not None:
            self._flow(self._links.get((channel, int(fields[4]))), fields)
        elif code == TRANSFER:
            self._transfer(channel, fields, payload)
        elif code == DISPOSITION and fields[0]:
            self._disposition(channel, fields)
        elif code == DETACH:
            self._detached(channel, int(fields[0]), closed=bool(fields[1]))
        elif code in (END, CLOSE):
            self._say(code, [None], channel=channel)
        return code != CLOSE

    # -- links -----------------------------------------------------------------------------------

    def _attach(self, link: AmqpLink) -> None:
        refusal = self._host.attach(link)
        ends = [link.source, link.target] if refusal is None else [None, None]
        count = UInt(0) if link.sends else None
        properties = {Symbol(name): value for name, value in link.reply.items()}
        answer = [link.name, UInt(link.handle), not link.sends, *link.settle_modes, *ends, None, None, count]
        self._say(ATTACH, [*answer, ULong(1024 * 1024), None, None, properties], channel=link.channel)
        if refusal is not None:
            self._say(DETACH, [UInt(link.handle), True, refusal.described()], channel=link.channel)
            return
        self._links[link.channel, link.handle] = link
        if not link.sends:
            self._grant(link)

    def _grant(self, link: AmqpLink) -> None:
        link.credit = CREDIT
        self._say_flow(link)

    def _say_flow(self, link: AmqpLink) -> None:
        session = [UInt(0), WINDOW, UInt(self._next_id), WINDOW]
        self._say(FLOW, [*session, UInt(link.handle), UInt(link.count), UInt(link.credit)], channel=link.channel)

    def _flow(self, link: AmqpLink | None, fields: list[Any]) -> None:
        if link is None or not link.sends:
            return
        link.credit = int(fields[6] or 0) + int(fields[5] or 0) - link.count
        if link.credit > 0:
            self._host.credited(link)
        if fields[8]:  # drain
            link.count, link.credit = link.count + max(0, link.credit), 0
        if fields[8] or fields[9]:
            self._say_flow(link)

    def detach(self, link: AmqpLink, refusal: AmqpRefusal) -> None:
        if self._links.pop((link.channel, link.handle), None) is not None:
            self._say(DETACH, [UInt(link.handle), True, refusal.described()], channel=link.channel)
            self._host.detached(link)

    def _detached(self, channel: int, handle: int, *, closed: bool) -> None:
        link = self._links.pop((channel, handle), None)
        if link is not None:
            self._host.detached(link)
            self._say(DETACH, [UInt(handle), closed, None], channel=channel)

    # -- messages --------------------------------------------------------------------------------

    def _transfer(self, channel: int, fields: list[Any], payload: bytes) -> None:
        link = self._links.get((channel, int(fields[0])))
        if link is None:
            return
        link.parts += payload
        if fields[1] is not None:
            link.arriving = (int(fields[1]), int(fields[3] or 0), bool(fields[4]))
        if fields[5]:  # more
            return
        delivery, form, settled = link.arriving
        whole, link.parts = link.parts, b""
        refusal = self._host.receive(link, whole, form)
        if not settled:
            state = _outcome(refusal)
            self._say(DISPOSITION, [True, UInt(delivery), UInt(delivery), True, state], channel=channel)
        link.count, link.credit = link.count + 1, link.credit - 1
        if link.credit < CREDIT // 2:
            self._grant(link)

    def transfer(self, link: AmqpLink, tag: bytes, payload: bytes) -> None:
        """Send a message, in as many frames as the peer's frames need."""
        number, self._next_id = self._next_id, self._next_id + 1
        settled = link.settle_modes[0] == 1
        if not settled:
            self._sent[link.channel, number] = (link, tag)
        room = self._peer_bytes - 512
        parts = [payload[at : at + room] for at in range(0, len(payload), room)]
        for at, part in enumerate(parts):
            first = [UInt(number), tag, UInt(0), settled] if at == 0 else [None] * 4
            fields = [UInt(link.handle), *first, at < len(parts) - 1]
            self._say(TRANSFER, fields, channel=link.channel, payload=part)

    def _disposition(self, channel: int, fields: list[Any]) -> None:
        for number in range(int(fields[1]), int(fields[1] if fields[2] is None else fields[2]) + 1):
            link, tag = self._sent.pop((channel, number), (None, b""))
            refusal = None if link is None else self._host.settle(link, tag, fields[4])
            if not fields[3]:  # it waits for the answer
                state = Described(fields[4].code, []) if refusal is None else _outcome(refusal)
                self._say(DISPOSITION, [False, UInt(number), UInt(number), True, state], channel=channel)


def _outcome(refusal: AmqpRefusal | None) -> Described:
    if refusal is None:
        return Described(ULong(ACCEPTED), [])
    return Described(ULong(REJECTED), [refusal.described()])
