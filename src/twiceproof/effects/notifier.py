"""Tells a hook of keys whose repeats are blocked often: one message per key and quiet period, over all processes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from hashlib import sha256

from ..claims.claim import space_of
from ..claims.states import EXPIRE
from ..clock import Clock
from ..drive import Operation, block
from ..errors import Misuse, NotDone
from ..observe.duplicates import OTHERS, Blocked
from ..records import Address, Insert, Record, Remove, Replace, Written
from ..stores.base import Store
from .notice import Hook, Notice

__all__ = ["Notifier", "claim_notice", "notice_at", "release_notice"]

log = logging.getLogger("twiceproof")

KIND = "notice"
OPERATION = "@notices"
MOST_AT_ONCE = 20  # messages per look: a storm over many keys must not become one of mails
MOST_UNSENT = 3  # then the receiver is away, until the next look
MOST_KNOWN = 10_000
SLACK = 86_400.0  # a notice's record outlives its quiet period by a day, then it is swept

Name = tuple[str, str, str, str]


class Notifier:
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


def claim_notice(store: Store, at: Address, quiet: float) -> Operation[Written | float]:
    """Ours to tell; or for how long there is quiet."""
    found = yield from store.read(at)
    left = _quiet_left(found.record, found.now)
    if left > 0:
        return left
    times = {"lease": quiet, "queue": EXPIRE, "due_in": quiet + SLACK}
    write = (
        Insert(at, "{}", **times) if found.record is None  # type: ignore[arg-type]
        else Replace(at, "{}", version=found.record.version, **times)  # type: ignore[arg-type]
    )  # fmt: skip
    written = yield from store.write(write)
    if isinstance(written, Written):
        return written
    return _quiet_left(written.found, written.now) or quiet


def release_notice(store: Store, at: Address, written: Written) -> Operation[None]:
    yield from store.write(Remove(at, version=written.version))


def _quiet_left(record: Record | None, now: float) -> float:
    return 0.0 if record is None or record.lease_until is None else max(0.0, record.lease_until - now)
