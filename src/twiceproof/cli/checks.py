"""What `doctor` checks beside the store itself: clock, limits, versions, schema, leases."""

from __future__ import annotations

import os
import platform
import resource
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from pathlib import Path

from ..claims.claim import CLAIM, HELD, RUN, claim_of
from ..claims.heartbeat import BEATS_PER_LEASE
from ..claims.policy import DEFAULT_LEASE
from ..clock import Clock
from ..errors import CannotOpen
from ..flows.history.rotation import as_stored
from ..records import Address, Record
from ..stores.base import Finding, Store
from ..stores.migrations import migrations
from ..version import __version__

__all__ = ["check_ledger", "check_machine"]

MOST_SKEW = 1.0
FEWEST_FILES = 256
FEWEST_INODES = 1_000
SAMPLE = 100  # claims
DIALECTS = {"sqlite": "sqlite", "postgresql": "postgres", "postgres": "postgres"}
PACKAGES = ("msgspec", "click", "rich", "psycopg", "redis")
NOWHERE = Address("doctor/doctor/doctor", "doctor", "doctor")  # read to see how fast and when; never written


def check_machine(folder: Path | None) -> Iterator[Finding]:
    """What is true of this machine, with or without a store."""
    yield Finding("ok", "twiceproof", f"{__version__} on Python {platform.python_version()}")
    yield Finding("ok", "packages", ", ".join(_packages()))
    yield _open_files()
    yield from _file_size()
    if folder is not None:
        yield _inodes(folder)


def check_ledger(store: Store, scheme: str, clock: Clock) -> Iterator[Finding]:
    """What can be asked of any store."""
    yield from _schema(scheme)
    yield from _sealing(store)
    sent, began = clock.now(), clock.monotonic()
    there = store.read(NOWHERE).block().now
    answered = clock.monotonic() - began
    yield _skew(there - (sent + answered / 2), own_clock=scheme in ("sqlite", "memory"))
    pages = [store.scan(kind, state=HELD, limit=1_000).block() for kind in (CLAIM, RUN)]
    held = [record for page in pages for record in page.records]
    yield _step(held, pages[-1].now, clock.now() - sent - (clock.monotonic() - began))
    yield _lease(held, answered)


def _sealing(store: Store) -> Iterator[Finding]:
    """A look at some claims: whoever works here opens them. How many rows each key seals, `keys status` counts."""
    try:
        raw = as_stored(store)
        for row in (row for kind in (CLAIM, RUN) for row in raw.scan(kind, limit=SAMPLE).block().records):
            found = store.read(row.at).block().record  # by itself: a list leaves out what does not open
            if found is not None:
                claim_of(found)
    except CannotOpen as error:
        if "key_id" in error.data:  # otherwise it is no question of keys
            yield Finding("refuse", "sealing", str(error))


def _packages() -> Iterator[str]:
    for name in PACKAGES:
        try:
            yield f"{name} {version_of(name)}"
        except PackageNotFoundError:
            yield f"no {name}"


def _open_files() -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < FEWEST_FILES:
        return Finding("warn", "open files", f"at most {soft}", f"Allow more: ulimit -n {FEWEST_FILES * 4}")
    return Finding("ok", "open files", "no limit" if soft == resource.RLIM_INFINITY else f"at most {soft}")


def _file_size() -> Iterator[Finding]:
    soft, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if soft != resource.RLIM_INFINITY:
        yield Finding("warn", "file size", f"at most {soft:,} bytes", "A ledger grows: ulimit -f unlimited")


def _inodes(folder: Path) -> Finding:
    about = os.statvfs(folder)
    if about.f_files and about.f_favail < FEWEST_INODES:
        return Finding("warn", "free inodes", str(about.f_favail), "Remove files: SQLite needs room for its log.")
    return Finding("ok", "free inodes", f"{about.f_favail:,}" if about.f_files else "not counted here")


def _schema(scheme: str) -> Iterator[Finding]:
    """Opening a store brings its schema up to date, and refuses a newer one: here it is current."""
    if scheme in DIALECTS:
        yield Finding("ok", "schema", f"{len(migrations(DIALECTS[scheme]))}, current")


def _skew(skew: float, *, own_clock: bool) -> Finding:
    if own_clock:
        return Finding("ok", "clock skew", "none: the store uses this machine's clock")
    if abs(skew) > MOST_SKEW:
        return Finding("warn", "clock skew", f"the store is {skew:+.1f} s off", "Run a time service on both machines.")
    return Finding("ok", "clock skew", f"{skew * 1000:+.0f} ms")


def _step(held: Sequence[Record], now: float, drift: float) -> Finding:
    """A clock that was set back makes leases last too long; set forward, it ends them early."""
    ahead = max((record.updated_at - now for record in held), default=0.0)
    if ahead > MOST_SKEW:
        return Finding(
            "warn", "clock step", f"a claim was written {ahead:.0f} s in the future: the clock was set back",
            "Let the time service slew the clock, not step it.",
        )  # fmt: skip
    if abs(drift) > MOST_SKEW:
        return Finding("warn", "clock step", f"the clock jumped {drift:+.1f} s just now", "Look at the time service.")
    return Finding("ok", "clock step", "none seen")


def _lease(held: Sequence[Record], answered: float) -> Finding:
    """A lease is renewed when a third of it is over; an answer must fit into that third with room to spare."""
    leases = [record.lease_until - record.updated_at for record in held if record.lease_until is not None]
    shortest = min(leases, default=DEFAULT_LEASE)
    beat = shortest / BEATS_PER_LEASE
    found = f"{shortest:g} s, renewed every {beat:.2g} s; the store answers in {answered * 1000:.1f} ms"
    if answered > beat / 2:
        return Finding("warn", "lease", found, "Use longer leases (lease=…), or a nearer store.")
    return Finding("ok", "lease", found)
