"""Sends a notice by SMTP."""

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
    """The SMTP server and its login."""

    host: str
    port: int
    user: str
    password: Secret
    tls: str
    timeout: float


# The server refused the sender, all recipients, or the mail itself.
REFUSED = (smtplib.SMTPSenderRefused, smtplib.SMTPRecipientsRefused, smtplib.SMTPDataError)


def send(relay: Relay, notice: Notice, sender: str, people: Sequence[str]) -> None:
    """Send the notice. Raise NotDone if nothing was sent: it is then retried without waiting for the quiet period."""
    try:
        server = _logged_in(relay)
    except OSError as error:  # includes smtplib's own errors
        raise NotDone(f"the mail server {relay.host} is not available ({error}); nothing was sent.") from error
    with server:
        try:
            server.send_message(_mail(notice, sender, people))
        except REFUSED as error:
            raise NotDone(f"the mail server {relay.host} refused the mail ({error}); nothing was sent.") from error


def _logged_in(relay: Relay) -> smtplib.SMTP:
    server = _connected(relay)
    try:
        if relay.user:
            server.login(relay.user, secrets_of(relay.password)[0])
    except BaseException:
        server.close()
        raise
    return server


def _connected(relay: Relay) -> smtplib.SMTP:
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
    """Build the mail, with one Message-ID per notice, so that a mail server can recognise a repeat."""
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
    """Replace control characters: external text must not add headers."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _utc(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))
