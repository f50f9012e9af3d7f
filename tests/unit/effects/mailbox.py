"""A real SMTP server (aiosmtpd) on loopback that keeps what it is sent."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from email import message_from_bytes, policy
from typing import Any

from aiosmtpd.controller import Controller


class Mailbox:
    def __init__(self) -> None:
        self.mails: list[Any] = []
        self.envelopes: list[tuple[str, list[str]]] = []

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802 - the name it is called by
        self.envelopes.append((envelope.mail_from, envelope.rcpt_tos))
        self.mails.append(message_from_bytes(envelope.content, policy=policy.default))
        return "250 OK"


def free_port() -> int:
    """The server cannot choose one itself: it calls itself up by the port it was given."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def mailbox() -> Iterator[tuple[Mailbox, int]]:
    box = Mailbox()
    port = free_port()
    controller = Controller(box, hostname="127.0.0.1", port=port)
    controller.start()
    try:
        yield box, port
    finally:
        controller.stop()
