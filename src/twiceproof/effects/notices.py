"""Where notices go: a log, a webhook, an e-mail. Or any function that takes a `Notice`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from ..errors import Misuse, NotDone
from ..secret import Secret, secrets_of
from .notice import DUPLICATE, Hook, Notice

if TYPE_CHECKING:
    from .outbound import Outbound

__all__ = ["to_email", "to_log", "to_webhook"]


def to_log(logger: str = "", level: int = logging.WARNING) -> Hook:
    """To the logger `twiceproof.duplicates`, and `twiceproof.notices` for everything else, unless one is named."""

    def write(notice: Notice) -> None:
        name = logger or ("twiceproof.duplicates" if notice.event == DUPLICATE else "twiceproof.notices")
        logging.getLogger(name).log(level, "%s; look: %s", notice.line, notice.look)

    return write


def to_webhook(
    url: str, secret: Secret, *, allow: Collection[str] = (), sender: Outbound | None = None,
    now: Callable[[], float] = time.time,
) -> Hook:  # fmt: skip
    """Signed as Standard Webhooks; only to public https addresses, and to what `allow` opens."""
    from .outbound import Outbound  # HTTP and TLS, for those who send
    from .standard_webhooks import signed_headers

    outbound = sender or Outbound(allow=allow)
    outbound.check(url)

    def send(notice: Notice) -> None:
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(notice.last_at))
        body = msgspec.json.encode({"type": notice.type, "timestamp": at, "data": notice})
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
    from .notice_mail import Relay, send  # mail and TLS, for those who send

    if tls not in ("starttls", "tls", "none"):
        raise Misuse(f'tls={tls!r} means nothing here; say "starttls", "tls" or "none".')
    if user and tls == "none":
        raise Misuse('A password is not sent in the clear; say tls="starttls" or "tls".')
    relay = Relay(host, port, user, password, tls, timeout)
    people = [to] if isinstance(to, str) else list(to)
    return lambda notice: send(relay, notice, sender, people)
