"""An SMTP sink: takes every mail, delivers none, and counts them."""

from __future__ import annotations

from types import TracebackType
from typing import Self

import msgspec

from ...errors import Misuse
from .aside import Aside
from .routes import Routes
from .smtp_service import SmtpService

__all__ = ["SmtpWorld"]


class SmtpWorld:
    """`with SmtpWorld(["mail.shop.test"]) as world:` leads these names here. Without TLS; any password will do.

    Mails are counted by recipient and subject. With `honours_ids`, one with a Message-ID that the recipient has had
    is no effect: for mail systems that drop it.
    """

    def __init__(self, hosts: list[str], *, honours_ids: bool = False) -> None:
        self._aside = Aside(SmtpService(honours_ids=honours_ids))
        try:
            self._routes = Routes(hosts, self._aside.port)
        except Misuse:
            self._aside.close()
            raise

    @property
    def port(self) -> int:
        """Of the sink on 127.0.0.1, for a program whose mail server can be set."""
        return self._aside.port

    def reset(self) -> None:
        self._aside.ask("reset")

    def look(self) -> dict[str, int]:
        return msgspec.convert(self._aside.ask("look"), dict[str, int])

    def exchanges(self) -> list[str]:
        """The mails that were taken in the last play, in order."""
        return msgspec.convert(self._aside.ask("exchanges"), list[str])

    def lose(self, number: int) -> None:
        """The sink takes the so-manieth mail of the next play, and does not say so."""
        self._aside.ask("lose", number)

    def close(self) -> None:
        self._routes.close()
        self._aside.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
