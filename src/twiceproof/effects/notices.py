"""Where notices of blocked duplicates go: a log, a webhook, an e-mail. Or any function that takes a `Notice`."""

from __future__ import annotations

import logging
import smtplib
import ssl
import time
from collections.abc import Callable, Collection, Sequence
from email.message import EmailMessage
from typing import Literal

import msgspec
from msgspec import Struct

from ..errors import Misuse, NotDone
from ..secret import Secret, secrets_of
from .outbound import Outbound
from .standard_webhooks import signed_headers

__all__ = ["Hook", "Notice", "to_email", "to_log", "to_webhook"]

TYPE = "duplicates.blocked"


class Notice(Struct, frozen=True):
    """Repeats of one key were blocked, `count` times since the last notice of it. The same `id` is never sent twice."""

    id: str
    tenant: str
    source: str
    operation: str
    key: str
    count: int
    first_at: float
    last_at: float

    @property
    def line(self) -> str:
        source = f" from {self.source}" if self.source else ""
        return f"{self.count} repeats of {self.operation} for {self.key!r}{source} were blocked"


Hook = Callable[[Notice], None]


def to_log(logger: str = "twiceproof.duplicates", level: int = logging.WARNING) -> Hook:
    log = logging.getLogger(logger)
    return lambda notice: log.log(level, "%s; look: twiceproof duplicates --flow %s", notice.line, notice.operation)


def to_webhook(
    url: str, secret: Secret, *, allow: Collection[str] = (), sender: Outbound | None = None,
    now: Callable[[], float] = time.time,
) -> Hook:  # fmt: skip
    """Signed as Standard Webhooks; only to public https addresses, and to what `allow` opens."""
    outbound = sender or Outbound(allow=allow)
    outbound.check(url)

    def send(notice: Notice) -> None:
        shape = {"type": TYPE, "timestamp": _iso(notice.last_at), "data": notice}
        body = msgspec.json.encode(shape)
        headers = {"content-type": "application/json", **signed_headers(notice.id, now(), body, secrets_of(secret))}
        answer = outbound.post(url, body, headers)
        if not answer.ok:
            raise NotDone(f"the receiver of notices answered with {answer.status}; check its log.")

    return send


def to_email(
    to: str | Sequence[str], *, sender: str, host: str, port: int = 587, user: str = "", password: Secret = "",
    tls: Literal["starttls", "tls", "none"] = "starttls", timeout: float = 10.0,
) -> Hook:  # fmt: skip
    """By SMTP. `tls="none"` only for a relay on the same machine or network."""
    if tls not in ("starttls", "tls", "none"):
        raise Misuse(f'tls={tls!r} means nothing here; say "starttls", "tls" or "none".')
    if user and tls == "none":
        raise Misuse('A password is not sent in the clear; say tls="starttls" or "tls".')
    people = [to] if isinstance(to, str) else list(to)

    def send(notice: Notice) -> None:
        with _opened(host, port, tls, timeout) as server:
            if user:
                server.login(user, secrets_of(password)[0])
            server.send_message(_mail(notice, sender, people))

    return send


def _opened(host: str, port: int, tls: str, timeout: float) -> smtplib.SMTP:
    if tls == "tls":
        return smtplib.SMTP_SSL(host, port, timeout=timeout, context=ssl.create_default_context())
    server = smtplib.SMTP(host, port, timeout=timeout)
    try:
        if tls == "starttls":
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
        f"{_one_line(notice.line)}\n\nFirst: {_iso(notice.first_at)}\nLast: {_iso(notice.last_at)}\n"
        f"Tenant: {notice.tenant}\n\nLook: twiceproof duplicates --flow {notice.operation}\n"
    )
    return mail


def _one_line(text: str) -> str:
    """What comes from outside must not write headers of its own."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _iso(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
