"""Notices of blocked duplicates: log, webhook, mail."""

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
    from .http import Outbound

__all__ = [
    "DEAD_LETTER",
    "DUPLICATE",
    "EVENTS",
    "FAILURE",
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


DUPLICATE, REVIEW, FAILURE, DEAD_LETTER = "duplicate", "review", "failure", "dead-letter"
EVENTS = (REVIEW, FAILURE, DEAD_LETTER)  # that `app.notify` tells of
TYPES = {
    DUPLICATE: "duplicates.blocked",
    REVIEW: "review.needed",
    FAILURE: "run.failed",
    DEAD_LETTER: "letter.kept",
}


class Notice(Struct, frozen=True):
    """`count` is of what happened since the last notice of it. The same `id` is never sent twice.

    Of blocked duplicates there is one notice per key. Of reviews, failures and dead letters there is one per flow or
    webhook (`operation`): `key` and `reason` are those of the latest.
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
        """For programs: the type of the webhook's event."""
        return TYPES[self.event]

    @property
    def line(self) -> str:
        if self.event == DUPLICATE:
            source = f" from {self.source}" if self.source else ""
            return f"{self.count} repeats of {self.operation} for {self.key!r}{source} were blocked"
        what = {
            REVIEW: f"{self.operation} for {self.key!r} waits for review",
            FAILURE: f"{self.operation} for {self.key!r} failed",
            DEAD_LETTER: f"a delivery to {self.operation} could not be taken in and was kept ({self.key})",
        }[self.event]
        more = f", and {self.count - 1} more" if self.count > 1 else ""
        return f"{what}{': ' if self.reason else ''}{self.reason}{more}"

    @property
    def look(self) -> str:
        """The command that shows more."""
        tenant = () if self.tenant == "default" else ("--tenant", self.tenant)
        words = {
            DUPLICATE: ("duplicates", "--flow", self.operation),
            REVIEW: ("review", "list", "--flow", self.operation),
            FAILURE: ("claims", "list", "--operation", self.operation, "--state", "failed"),
            DEAD_LETTER: ("hooks", "dead-letters"),
        }[self.event]
        return suggested_command(*words, *tenant)


Hook = Callable[[Notice], None]


def to_log(logger: str = "", level: int = logging.WARNING) -> Hook:
    """To the logger `twiceproof.duplicates`, and `twiceproof.notices` for everything else, unless one is named."""

    def write(notice: Notice) -> None:
        name = logger or ("twiceproof.duplicates" if notice.event == DUPLICATE else "twiceproof.notices")
        logging.getLogger(name).log(level, "%s; look: %s", notice.line, notice.look)

    return write


def to_webhook(
    url: str,
    secret: Secret,
    *,
    allow: Collection[str] = (),
    sender: Outbound | None = None,
    now: Callable[[], float] = time.time,
) -> Hook:
    """Signed as Standard Webhooks; only to public https addresses, and to what `allow` opens."""
    from .http import (
        Outbound,  # HTTP and TLS, for those who send
        signed_headers,
    )

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
    """By SMTP. `tls="none"` only for a relay on the same machine or network."""
    from .mail import (
        Relay,
        send,  # mail and TLS, for those who send
    )

    if tls not in ("starttls", "tls", "none"):
        raise Misuse(f'tls={tls!r} means nothing here; say "starttls", "tls" or "none".')
    if user and tls == "none":
        raise Misuse('A password is not sent in the clear; say tls="starttls" or "tls".')
    relay = Relay(host, port, user, password, tls, timeout)
    people = [to] if isinstance(to, str) else list(to)
    return lambda notice: send(relay, notice, sender, people)


log = logging.getLogger("twiceproof")

KIND = record_kind("notice", expires=True)
OPERATION = "@notices"
MOST_AT_ONCE = 20  # messages per look: a storm over many keys must not become one of mails
MOST_UNSENT = 3  # then the receiver is away, until the next look
MOST_KNOWN = 10_000
SLACK = 86_400.0  # a notice's record outlives its quiet period by a day, then it is swept

Name = tuple[str, str, str, str]


class DuplicateAlerts:
    """Listens to a tally. `name` tells hooks apart: each has quiet periods of its own."""

    def __init__(self, store: Store, hook: Hook, *, name: str, quiet: float, threshold: int, clock: Clock) -> None:
        if isinstance(threshold, bool) or not isinstance(threshold, int) or threshold < 1:
            raise Misuse(f"threshold={threshold!r} is no number of repeats; give 1 or more.")
        if not callable(hook):
            raise Misuse("notify_duplicates takes a hook: to_log(), to_webhook(…), to_email(…), or a function.")
        self._store = store
        self._hook = hook
        self._name = name
        self._quiet = quiet
        self._threshold = threshold
        self._clock = clock
        self._told: dict[Name, tuple[float, int]] = {}  # of which hour, and up to which count, somebody has been told
        self._quiet_until: dict[Name, float] = {}  # as far as we know, by our own clock

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
            told = self._notify(name, row, fresh)
            unsent += told is None
            if unsent >= MOST_UNSENT:  # nor would the next ones get through, and each takes as long to find out
                return
            if told:
                self._told[name] = row.first_at, row.count

    def _fresh(self, name: Name, row: Blocked) -> int:
        hour, told = self._told.get(name, (0.0, 0))
        return row.count - told if hour == row.first_at else row.count  # counted anew in every hour

    def _is_quiet(self, name: Name) -> bool:
        return self._quiet_until.get(name, 0.0) > self._clock.monotonic()

    def _notify(self, name: Name, row: Blocked, fresh: int) -> bool | None:
        """Whether somebody has been told, or may have been: what was not told counts on. None: it was not sent."""
        at = notice_at(name[0], self._name, *name[1:])
        written = block(claim_notice(self._store, at, self._quiet))
        if len(self._quiet_until) >= MOST_KNOWN:
            self._quiet_until.clear()
            self._told.clear()
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
        except Exception as error:  # noqa: BLE001 - perhaps sent: once more after the quiet period, not now
            log.warning("a notice of blocked duplicates may not have been sent: %s: %s", type(error).__name__, error)
        return True


def notice_at(tenant: str, *words: str) -> Address:
    """Where the quiet period of a notice is kept."""
    digest = sha256("\0".join(words).encode(errors="surrogatepass")).hexdigest()
    return Address(space_of(tenant, OPERATION, digest), KIND, digest)


def _quiet_from_now(at: Address, before: Record | None, quiet: float) -> Write:
    if before is None:
        return Insert(at, "{}", lease=quiet, queue=EXPIRE, due_in=quiet + SLACK)
    return Replace(at, "{}", version=before.version, lease=quiet, queue=EXPIRE, due_in=quiet + SLACK)


def claim_notice(store: Store, at: Address, quiet: float) -> Operation[Written | float]:
    """Ours to tell; or for how long there is quiet."""
    found = yield from store.read(at)
    left = _quiet_left(found.record, found.now)
    if left > 0:
        return left
    written = yield from store.write(_quiet_from_now(at, found.record, quiet))
    if isinstance(written, Written):
        return written
    return _quiet_left(written.found, written.now) or quiet


def release_notice(store: Store, at: Address, written: Written) -> Operation[None]:
    yield from store.write(Remove(at, version=written.version))


def _quiet_left(record: Record | None, now: float) -> float:
    return 0.0 if record is None or record.lease_until is None else max(0.0, record.lease_until - now)
