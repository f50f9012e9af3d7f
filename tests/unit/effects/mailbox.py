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


class _Server(Controller):  # type: ignore[misc, unused-ignore]
    """Listens on a socket that is bound already: a port that is only found to be free can be taken meanwhile."""

    def __init__(self, box: Mailbox, bound: socket.socket) -> None:
        super().__init__(box, hostname="127.0.0.1", port=bound.getsockname()[1])
        self._bound = bound

    def _create_server(self) -> Any:
        return self.loop.create_server(self._factory_invoker, sock=self._bound)


@contextlib.contextmanager
def mailbox(says: str = "250 OK", refuses: dict[str, str] | None = None) -> Iterator[tuple[Mailbox, int]]:
    box = Mailbox(says, refuses or {})
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        controller = _Server(box, bound)
        controller.start()
        try:
            yield box, controller.port
        finally:
            controller.stop()
