"""A notice by mail."""

from __future__ import annotations

import smtplib
import ssl
import time
from collections.abc import Sequence
from email.message import EmailMessage

from msgspec import Struct

from ..errors import NotDone
from ..secret import Secret, secrets_of
from .duplicate_alerts import Notice

__all__ = ["Relay", "send"]


class Relay(Struct, frozen=True):
    """The server that takes our mail."""

    host: str
    port: int
    user: str
    password: Secret
    tls: str
    timeout: float


# Its server said no: to the sender, to all recipients, or to the mail itself.
REFUSED = (smtplib.SMTPSenderRefused, smtplib.SMTPRecipientsRefused, smtplib.SMTPDataError)


def send(relay: Relay, notice: Notice, sender: str, people: Sequence[str]) -> None:
    """Raises NotDone where nothing was sent: it is then told with the next repeat, not after a quiet period."""
    try:
        server = _ready(relay)
    except OSError as error:  # also smtplib's own
        raise NotDone(f"the mail server {relay.host} cannot be used ({error}); nothing was sent.") from error
    with server:
        try:
            server.send_message(_mail(notice, sender, people))
        except REFUSED as error:
            raise NotDone(f"the mail server {relay.host} refused the mail ({error}); nothing was sent.") from error


def _ready(relay: Relay) -> smtplib.SMTP:
    server = _opened(relay)
    try:
        if relay.user:
            server.login(relay.user, secrets_of(relay.password)[0])
    except BaseException:
        server.close()
        raise
    return server


def _opened(relay: Relay) -> smtplib.SMTP:
    if relay.tls == "tls":
        context = ssl.create_default_context()
        return smtplib.SMTP_SSL(relay.host, relay.port, timeout=relay.timeout, context=context)
    server = smtplib.SMTP(relay.host, relay.port, timeout=relay.timeout)
    try:
        if relay.tls == "starttls":
            server.starttls(context=ssl.create_default_context())
    except BaseException:
        server.close()
        raise
    return server


def _mail(notice: Notice, sender: str, people: Sequence[str]) -> EmailMessage:
    """One Message-ID per notice: a mail server that gets it twice can tell."""
    mail = EmailMessage()
    mail["From"], mail["To"] = sender, ", ".join(people)
    mail["Subject"] = _one_line(f"Twiceproof: {notice.line}")[:200]
    mail["Message-ID"] = f"<{notice.id}@twiceproof.invalid>"
    mail.set_content(
        f"{_one_line(notice.line)}\n\nFirst: {_utc(notice.first_at)}\nLast: {_utc(notice.last_at)}\n"
        f"Tenant: {notice.tenant}\n\nLook: {_one_line(notice.look)}\n"
    )
    return mail


def _one_line(text: str) -> str:
    """What comes from outside must not write headers of its own."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _utc(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))
