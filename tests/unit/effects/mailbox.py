"""A real SMTP server (aiosmtpd) on loopback that keeps what it is sent."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from email import message_from_bytes, policy
from typing import Any

from aiosmtpd.controller import Controller


class Mailbox:
    """`says` is its answer to a mail; "" hangs up instead. `refuses` has answers for single recipients."""

    def __init__(self, says: str, refuses: dict[str, str]) -> None:
        self.says = says
        self.refuses = refuses
        self.on_mail: Callable[[bytes], None] | None = None
        self.mails: list[Any] = []
        self.envelopes: list[tuple[str, list[str]]] = []

    async def handle_RCPT(self, server: Any, session: Any, envelope: Any, address: str, options: Any) -> str:  # noqa: N802
        if address in self.refuses:
            return self.refuses[address]
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802 - the name it is called by
        self.envelopes.append((envelope.mail_from, envelope.rcpt_tos))
        self.mails.append(message_from_bytes(envelope.content, policy=policy.default))
        if self.on_mail is not None:
            self.on_mail(envelope.content)
        if not self.says:
            server.transport.abort()
        return self.says


def free_port() -> int:
    """The server cannot choose one itself: it calls itself up by the port it was given."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def mailbox(says: str = "250 OK", refuses: dict[str, str] | None = None) -> Iterator[tuple[Mailbox, int]]:
    box = Mailbox(says, refuses or {})
    port = free_port()
    controller = Controller(box, hostname="127.0.0.1", port=port)
    controller.start()
    try:
        yield box, port
    finally:
        controller.stop()
