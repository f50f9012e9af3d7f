"""An SMTP sink: takes every mail, delivers none, and counts them."""

from __future__ import annotations

from .smtp_service import SmtpService
from .stand_in import StandIn

__all__ = ["SmtpWorld"]


class SmtpWorld(StandIn):
    """`with SmtpWorld(["mail.shop.test"]) as world:` leads these names here; any password will do.

    Mails are counted by recipient and subject. With `honours_ids`, one with a Message-ID that the recipient has had
    is no effect: for mail systems that drop it.
    """

    def __init__(self, hosts: list[str], *, honours_ids: bool = False) -> None:
        super().__init__(hosts, SmtpService(honours_ids=honours_ids))

    @property
    def port(self) -> int:
        """Of the sink on 127.0.0.1, for a program whose mail server can be set."""
        return self._aside.port
