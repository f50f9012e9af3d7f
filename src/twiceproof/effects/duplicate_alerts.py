"""Notices by log, webhook or mail, and the alerts of blocked duplicates that send them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec import Struct

from ..claims.claim import space_of
from ..claims.duplicates import OTHERS, Blocked
from ..claims.states import EXPIRE
from ..clock import Clock
from ..errors import Misuse, NotDone
from ..operations import Operation, block
from ..records import Address, Insert, Record, Remove, Replace, Write, Written, record_kind
from ..safe_text import suggested_command
from ..secret import Secret, secrets_of
from ..stores.base import Store

if TYPE_CHECKING:
    from email.message import EmailMessage

    from .webhook_client import WebhookClient

__all__ = [
    "APPROVAL",
    "DEAD_LETTER",
    "DUPLICATE",
    "EVENTS",
    "FAILURE",
    "FINDING",
    "LATE",
    "PARKED",
    "REVIEW",
    "DuplicateAlerts",
    "Hook",
    "Notice",
    "claim_notice",
    "notice_at",
    "release_notice",
    "to_email",
    "to_log",
    "to_webhook",
]


DUPLICATE, REVIEW, FAILURE, DEAD_LETTER, FINDING = "duplicate", "review", "failure", "dead-letter", "finding"
APPROVAL = "approval"
PARKED, LATE = "message", "late-message"  # its target did not take it; it waits for long
EVENTS = (REVIEW, FAILURE, DEAD_LETTER, FINDING, APPROVAL, PARKED, LATE)  # that `app.notify` reports
TYPES = {
    DUPLICATE: "duplicates.blocked",
    REVIEW: "review.needed",
    FAILURE: "run.failed",
    DEAD_LETTER: "letter.kept",
    FINDING: "finding.opened",
    APPROVAL: "approval.needed",
    PARKED: "message.parked",
    LATE: "message.late",
}


class Notice(Struct, frozen=True):
    """`count` is the number of occurrences since the last notice. The same `id` is never sent twice.

    For blocked duplicates there is one notice per key. For all other events there is one per flow, webhook,
    reconciliation or target of messages (`operation`); `key` and `reason` are from the latest event.
    """

    id: str
    tenant: str
    source: str
    operation: str
    key: str
    count: int
    first_at: float
    last_at: float
    event: str = DUPLICATE
    reason: str = ""

    @property
    def type(self) -> str:
        """The event type that the webhook sends, for programs."""
        return TYPES[self.event]

    @property
    def line(self) -> str:
        if self.event == DUPLICATE:
            source = f" from {self.source}" if self.source else ""
            return f"{self.count} repeats of {self.operation} for {self.key!r}{source} were blocked"
        what = {
            REVIEW: f"{self.operation} for {self.key!r} waits for review",
            FAILURE: f"{self.operation} for {self.key!r} failed",
            DEAD_LETTER: f"a delivery to {self.operation} could not be processed and was stored ({self.key})",
            FINDING: f"{self.operation} found something about {self.key!r}",
            APPROVAL: f"{self.operation} for {self.key!r} waits for an approval",
            PARKED: f"the message {self.key!r} to {self.operation} was not published and waits for review",
            LATE: f"the message {self.key!r} to {self.operation} has waited long, and is not published yet",
        }[self.event]
        more = f", and {self.count - 1} more" if self.count > 1 else ""
        return f"{what}{': ' if self.reason else ''}{self.reason}{more}"

    @property
    def look(self) -> str:
        """The command that shows details."""
        tenant = () if self.tenant == "default" else ("--tenant", self.tenant)
        arguments = {
            DUPLICATE: ("duplicates", "--flow", self.operation),
            REVIEW: ("review", "list", "--flow", self.operation),
            FAILURE: ("claims", "list", "--operation", self.operation, "--state", "failed"),
            DEAD_LETTER: ("hooks", "dead-letters"),
            FINDING: ("reconcile", "findings", "list", "--name", self.operation),
            APPROVAL: ("approvals", "list", "--flow", self.operation),
            PARKED: ("messages", "list", "--state", "parked", "--to", self.operation),
            LATE: ("messages", "list", "--to", self.operation),
        }[self.event]
        return suggested_command(*arguments, *tenant)


Hook = Callable[[Notice], None]


def to_log(logger: str = "", level: int = logging.WARNING) -> Hook:
    """Log notices.

    Args:
        logger: The logger's name; by default `twiceproof.duplicates`, and `twiceproof.notices` for everything else.
        level: Their level.
    """

    def write(notice: Notice) -> None:
        name = logger or ("twiceproof.duplicates" if notice.event == DUPLICATE else "twiceproof.notices")
        logging.getLogger(name).log(level, "%s; look: %s", notice.line, notice.look)

    return write


def to_webhook(
    url: str,
    secret: Secret,
    *,
    allow: Collection[str] = (),
    sender: WebhookClient | None = None,
    now: Callable[[], float] = time.time,
) -> Hook:
    """Post notices as signed Standard Webhooks.

    Args:
        url: A public https address.
        secret: What they are signed with.
        allow: Hosts and networks that `url` may also be in.
        sender: The HTTP client; tests pass their own.
        now: The source of time; tests pass their own.
    """
    from .webhook_client import WebhookClient, signed_headers  # imported late: loads HTTP and TLS

    outbound = sender or WebhookClient(allow=allow)
    outbound.check(url)

    def send(notice: Notice) -> None:
        at = _utc(notice.last_at, "%Y-%m-%dT%H:%M:%SZ")
        body = msgspec.json.encode({"type": notice.type, "timestamp": at, "data": notice})
        headers = {"content-type": "application/json", **signed_headers(notice.id, now(), body, secrets_of(secret))}
        answer = outbound.post(url, body, headers)
        if not answer.ok:
            raise NotDone(f"the receiver of notices answered with {answer.status}; check its log.")

    return send


def to_email(
    to: str | Sequence[str],
    *,
    sender: str,
    host: str,
    port: int = 587,
    user: str = "",
    password: Secret = "",
    tls: Literal["starttls", "tls", "none"] = "starttls",
    timeout: float = 10.0,
) -> Hook:
    """Send notices by SMTP.

    Args:
        to: The receiver's address, or several.
        sender: The sender's address.
        host: The mail server.
        port: Its port.
        user: The name to log in with; "": without a login.
        password: Its password.
        tls: "none" only for a relay on the same machine or network.
        timeout: Seconds to wait for the server.
    """
    from .smtp import smtp  # imported late: loads SMTP and TLS

    server = smtp(host, port=port, user=user, password=password, tls=tls, timeout=timeout)
    people = [to] if isinstance(to, str) else list(to)

    def send(notice: Notice) -> None:
        server.deliver(_mail(notice, sender, people), sender, people)

    return send


def _mail(notice: Notice, sender: str, people: Sequence[str]) -> EmailMessage:
    """Build the mail, with one Message-ID per notice, so that a mail server can recognise a repeat."""
    from email.message import EmailMessage

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


def _utc(at: float, form: str = "%Y-%m-%d %H:%M:%S UTC") -> str:
    return time.strftime(form, time.gmtime(at))


log = logging.getLogger("twiceproof")

KIND = record_kind("notice", expires=True)
OPERATION = "@notices"
MOST_AT_ONCE = 20  # messages per call: duplicates of many keys must not cause as many mails
MOST_UNSENT = 3  # then the receiver counts as unavailable until the next call
MOST_KNOWN = 10_000
TOLERANCE = 5.0  # seconds by which the clocks of a store's nodes may differ
SLACK = 86_400.0  # a notice's record is swept a day after its quiet period

Name = tuple[str, str, str, str]


class DuplicateAlerts:
    """Sends notices for counted duplicates. Each `name` has its own quiet periods."""

    def __init__(self, store: Store, hook: Hook, *, name: str, quiet: float, threshold: int, clock: Clock) -> None:
        if isinstance(threshold, bool) or not isinstance(threshold, int) or threshold < 1:
            raise Misuse(f"threshold={threshold!r} is not a number of duplicates; give 1 or more.")
        if not callable(hook):
            raise Misuse("notify_duplicates takes a hook: to_log(), to_webhook(…), to_email(…), or a function.")
        self._store = store
        self._hook = hook
        self._name = name
        self._quiet = quiet
        self._threshold = threshold
        self._clock = clock
        self._reported: dict[Name, tuple[float, int]] = {}  # the hour and the count of the last notice
        self._quiet_until: dict[Name, float] = {}  # as known here, by the local monotonic clock

    def __call__(self, tenant: str, rows: Sequence[Blocked]) -> None:
        sent = unsent = 0
        for row in rows:
            name = tenant, row.source, row.operation, row.key
            fresh = self._fresh(name, row)
            if row.key == OTHERS or fresh < self._threshold or self._is_quiet(name):
                continue
            sent += 1
            if sent > MOST_AT_ONCE:
                return
            reported = self._notify(name, row, fresh)
            unsent += reported is None
            if unsent >= MOST_UNSENT:  # the next ones would fail too, each after a timeout
                return
            if reported:
                self._reported[name] = row.first_at, row.count

    def _fresh(self, name: Name, row: Blocked) -> int:
        hour, reported = self._reported.get(name, (0.0, 0))
        return row.count - reported if hour == row.first_at else row.count  # counts start again every hour

    def _is_quiet(self, name: Name) -> bool:
        return self._quiet_until.get(name, 0.0) > self._clock.monotonic()

    def _notify(self, name: Name, row: Blocked, fresh: int) -> bool | None:
        """Whether a notice was sent, or may have been; unreported duplicates stay counted. None: it was not sent."""
        at = notice_at(name[0], self._name, *name[1:])
        written = block(claim_notice(self._store, at, self._quiet))
        if len(self._quiet_until) >= MOST_KNOWN:
            self._quiet_until.clear()
            self._reported.clear()
        if not isinstance(written, Written):
            self._quiet_until[name] = self._clock.monotonic() + written
            return False
        self._quiet_until[name] = self._clock.monotonic() + self._quiet
        notice = Notice(f"dup_{at.key[:24]}_{written.version}", *name, fresh, row.first_at, row.last_at)
        try:
            self._hook(notice)
        except NotDone as error:
            log.warning("a notice of blocked duplicates was not sent: %s", error)
            block(release_notice(self._store, at, written))
            self._quiet_until.pop(name, None)
            return None
        except Exception as error:  # noqa: BLE001 - it may have been sent: retried after the quiet period, not now
            log.warning("a notice of blocked duplicates may not have been sent: %s: %s", type(error).__name__, error)
        return True


def notice_at(tenant: str, *names: str) -> Address:
    """The address of a notice's quiet period."""
    digest = sha256("\0".join(names).encode(errors="surrogatepass")).hexdigest()
    return Address(space_of(tenant, OPERATION, digest), KIND, digest)


def _quiet_from_now(at: Address, before: Record | None, quiet: float) -> Write:
    if before is None:
        return Insert(at, "{}", lease=quiet, queue=EXPIRE, due_in=quiet + SLACK)
    return Replace(at, "{}", version=before.version, lease=quiet, queue=EXPIRE, due_in=quiet + SLACK)


def claim_notice(store: Store, at: Address, quiet: float) -> Operation[Written | float]:
    """Start a quiet period and return the write, or return how long the current one still lasts."""
    found = yield from store.read(at)
    left = _quiet_left(found.record, found.now, quiet)
    if left > 0:
        return left
    written = yield from store.write(_quiet_from_now(at, found.record, quiet))
    if isinstance(written, Written):
        return written
    return _quiet_left(written.found, written.now, quiet) or quiet


def release_notice(store: Store, at: Address, written: Written) -> Operation[None]:
    yield from store.write(Remove(at, version=written.version))


def _quiet_left(record: Record | None, now: float, quiet: float) -> float:
    """Return for how long a quiet period lasts; one that would last longer than declared began while the store's clock
    was ahead.
    """
    left = 0.0 if record is None or record.lease_until is None else max(0.0, record.lease_until - now)
    return left if left <= quiet + TOLERANCE else 0.0
