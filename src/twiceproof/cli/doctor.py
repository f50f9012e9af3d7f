"""`twiceproof doctor`: checks the store and this machine."""

from __future__ import annotations

import os
import platform
import resource
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from pathlib import Path

import click
from msgspec import structs

from ..claims.blobs import open_blob_store
from ..claims.blobs.records import orphans, remove_orphans
from ..claims.claim import CLAIM, HELD, RUN, claim_of
from ..claims.held_claim import BEATS_PER_LEASE
from ..claims.policy import DEFAULT_LEASE
from ..claims.results import SPILL_LIMIT
from ..clock import Clock, system_clock
from ..errors import CannotOpen, Misuse, SchemaMismatch, StoreError, StoreUnavailable, StoreUnsafe
from ..flows.history.key_rotation import as_stored
from ..operations import block
from ..outbox.queries import count_messages
from ..records import Address, Record
from ..safe_text import redacted, shown_url
from ..settings import from_environment
from ..stores.base import Finding, NoLedger, Store, migrations
from ..stores.open import accept_server as accept_new_server
from ..stores.open import open_store
from ..stores.sqlite.doctor import refuse_unsafe
from ..version import __version__
from .output import NEGATIVE, OK, REFUSED, UNAVAILABLE, show_json, show_table, show_text, span
from .prompts import confirm
from .target import LedgerTarget, require_ledger, scheme_of, sqlite_path, target_options

__all__ = ["check_ledger", "check_machine", "check_resources", "clear_orphans", "doctor"]


MOST_SKEW = 1.0
FEWEST_FILES = 256
FEWEST_INODES = 1_000
SAMPLE = 100  # claims
LATE_MESSAGE = 900.0  # seconds that a message may wait before that is a warning
DIALECTS = {
    "sqlite": "sqlite",
    "postgresql": "postgres",
    "postgres": "postgres",
    "mariadb": "mariadb",
    "mysql": "mariadb",
}
PACKAGES = ("msgspec", "click", "rich")
DRIVERS = {  # what reaches a store, by how its scheme begins
    "postgres": ("psycopg",),
    "redis": ("redis",),
    "mariadb": ("pymysql",),
    "mysql": ("pymysql",),
    "dynamodb": ("boto3",),
    "azure-table": ("azure-data-tables", "azure-identity"),
    "dataverse": ("httpcore2",),
    "sharepoint": ("httpcore2",),
}
NOWHERE = Address("doctor/doctor/doctor", "doctor", "doctor")  # read for the store's time and latency; never written


def check_machine(folder: Path | None, scheme: str = "") -> Iterator[Finding]:
    """Check this machine, with or without a store."""
    yield Finding("ok", "twiceproof", f"{__version__} on Python {platform.python_version()}")
    yield Finding("ok", "packages", ", ".join(_packages(scheme)))
    yield _open_files()
    yield from _file_size()
    if folder is not None:
        yield _inodes(folder)


def check_ledger(store: Store, scheme: str, clock: Clock) -> Iterator[Finding]:
    """Check what applies to every store."""
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
    yield from _messages(store)


def _messages(store: Store) -> Iterator[Finding]:
    """Of all tenants, up to a thousand in each state. Nothing if none waits."""
    counts = block(count_messages(store, most=1_000))
    waiting, parked = counts.states["pending"], counts.states["parked"]
    if not waiting and not parked:
        return
    age = counts.oldest_pending or 0.0
    level = "warn" if parked or age > LATE_MESSAGE else "ok"
    oldest = f", the oldest for {span(age)}" if waiting else ""
    advice = "See why: twiceproof messages list" if level == "warn" else ""
    yield Finding(level, "messages", f"{waiting} wait to be published{oldest}; {parked} wait for review", advice)


def _sealing(store: Store) -> Iterator[Finding]:
    """Read some claims as a worker would. `encryption status` counts the rows per key."""
    try:
        raw = as_stored(store)
        for row in (row for kind in (CLAIM, RUN) for row in raw.scan(kind, limit=SAMPLE).block().records):
            found = store.read(row.at).block().record  # one by one: a scan leaves out what cannot be decrypted
            if found is not None:
                claim_of(found)
    except CannotOpen as error:
        if "key_id" in error.data:  # otherwise the cause is not a key
            yield Finding("refuse", "sealing", str(error))


def _packages(scheme: str) -> Iterator[str]:
    drivers = [name for begin, names in DRIVERS.items() if scheme.startswith(begin) for name in names]
    for name in (*PACKAGES, *drivers):
        try:
            yield f"{name} {version_of(name)}"
        except PackageNotFoundError:
            yield f"no {name}"


def _open_files() -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < FEWEST_FILES:
        return Finding("warn", "open files", f"at most {soft}", f"Raise the limit: ulimit -n {FEWEST_FILES * 4}")
    return Finding("ok", "open files", "no limit" if soft == resource.RLIM_INFINITY else f"at most {soft}")


def _file_size() -> Iterator[Finding]:
    soft, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if soft != resource.RLIM_INFINITY:
        yield Finding("warn", "file size", f"at most {soft:,} bytes", "Raise the limit: ulimit -f unlimited")


def _inodes(folder: Path) -> Finding:
    about = os.statvfs(folder)
    if about.f_files and about.f_favail < FEWEST_INODES:
        return Finding("warn", "free inodes", str(about.f_favail), "Delete files: SQLite needs inodes for its log.")
    return Finding("ok", "free inodes", f"{about.f_favail:,}" if about.f_files else "not counted by this file system")


def _schema(scheme: str) -> Iterator[Finding]:
    """Opening a store migrates its schema, and refuses a newer one, so an open store has the current schema."""
    if scheme in DIALECTS:
        yield Finding("ok", "schema", f"version {len(migrations(DIALECTS[scheme]))}, current")


def _skew(skew: float, *, own_clock: bool) -> Finding:
    if own_clock:
        return Finding("ok", "clock skew", "none: the store uses this machine's clock")
    if abs(skew) > MOST_SKEW:
        advice = "Run a time service (NTP) on both machines."
        return Finding("warn", "clock skew", f"the store's clock is {skew:+.1f} s off", advice)
    return Finding("ok", "clock skew", f"{skew * 1000:+.0f} ms")


def _step(held: Sequence[Record], now: float, drift: float) -> Finding:
    """Check for clock steps: a clock set back makes leases last too long, one set forward ends them early."""
    ahead = max((record.updated_at - now for record in held), default=0.0)
    if ahead > MOST_SKEW:
        return Finding(
            "warn",
            "clock step",
            f"a claim was written {ahead:.0f} s in the future: the clock was set back",
            "Configure the time service to slew the clock instead of stepping it.",
        )
    if abs(drift) > MOST_SKEW:
        found = f"the clock jumped by {drift:+.1f} s during this check"
        return Finding("warn", "clock step", found, "Check the time service (NTP).")
    return Finding("ok", "clock step", "none detected")


def _lease(held: Sequence[Record], answered: float) -> Finding:
    """Check the latency: a lease is renewed every third of it, and a response must fit well into that third."""
    leases = [record.lease_until - record.updated_at for record in held if record.lease_until is not None]
    shortest = min(leases, default=DEFAULT_LEASE)
    beat = shortest / BEATS_PER_LEASE
    found = f"{shortest:g} s, renewed every {beat:.2g} s; the store responds in {answered * 1000:.1f} ms"
    if answered > beat / 2:
        return Finding("warn", "lease", found, "Use longer leases (lease=…), or a store with less latency.")
    return Finding("ok", "lease", found)


def check_resources(store: Store, url: str, clock: Clock) -> Iterator[Finding]:
    if not url:
        most = min(SPILL_LIMIT, store.body_limit)
        yield Finding("ok", "resources", f"in the store, up to {most:,} bytes each; a step's larger result is not kept")
        return
    try:
        lost = len(block(orphans(store, open_blob_store(url), clock.now())))
    except (Misuse, StoreUnavailable) as error:
        yield Finding("refuse", "resources", str(error))
        return
    if lost:
        advice = "If no other store uses this location: twiceproof claims sweep --orphans"
        yield Finding("warn", "resources", f"{lost} that no run refers to, older than a day", advice)
    else:
        yield Finding("ok", "resources", f"in {url.partition('?')[0]}")


def clear_orphans(store: Store, url: str, clock: Clock) -> int:
    """Delete orphaned large values, and return how many."""
    if not url:
        raise Misuse("Large values are in the store, which has no orphans; set TWICEPROOF_RESOURCES to their location.")
    return block(remove_orphans(store, open_blob_store(url), clock.now()))


GIGABYTE = 1024**3
LARGE = GIGABYTE // 2
LEVELS = ("ok", "warn", "refuse")
VERDICTS = {
    "ok": "OK: this store keeps the writes that it acknowledges.",
    "warn": "Usable, with warnings: they say what the store does not guarantee, or what could not be checked.",
    "refuse": "Refused: this store could lose acknowledged writes, or cannot be used as it is.",
}
TAKEN_OVER = ("failover", "server", "restored")  # names of findings that an operator can accept
NO_RESPONSE = "The store does not respond: its guarantees could not be checked."

EPILOG = """\b
Examples:
  twiceproof doctor
  twiceproof --store postgresql://db/app doctor --json
  twiceproof --store postgresql://db/app doctor --accept-server
After a failover the new server may lack the last acknowledged writes, so
processes refuse it. --accept-server accepts it for all of them; fences skip
ahead, so that none is used twice. After a planned switchover no writes are
missing. It also ends the warning about a restored or copied ledger.
Exit codes: 0 OK, 1 warnings, 2 refused, 3 the store does not respond.
"""


@click.command(epilog=EPILOG)
@target_options
@click.option(
    "--accept-server", is_flag=True, help="Accept the new server after a failover, or a restored ledger, as it is."
)
@click.option("--yes", is_flag=True, help="With --accept-server: do not ask for confirmation.")
@click.pass_context
def doctor(ctx: click.Context, accept_server: bool, yes: bool) -> None:
    """Check the store and this machine.

    Prints what the store guarantees, what it does not, and what to change.
    """
    target = ctx.ensure_object(LedgerTarget)
    if yes and not accept_server:
        raise click.UsageError("--yes requires --accept-server; use both, or neither.")
    accepted = _accept(target, yes=yes) if accept_server else None
    examination = Examination(target.url)
    findings = [_without_password(finding, target.url) for finding in examination.findings()]
    worst = max((finding.level for finding in findings), key=LEVELS.index)
    if target.json:
        shape = {"store": shown_url(target.url), "verdict": worst, "findings": [structs.asdict(f) for f in findings]}
        show_json({**shape, "accepted": accepted} if accept_server else shape)
    else:
        _show(shown_url(target.url), findings, NO_RESPONSE if examination.code else VERDICTS[worst])
    ctx.exit(examination.code or {"ok": OK, "warn": NEGATIVE, "refuse": REFUSED}[worst])


def _accept(target: LedgerTarget, *, yes: bool) -> str | None:
    """Accept a failover, and return its description; None if there was none."""
    found = _taken_over(Examination(target.url))
    if found is None:
        if not target.json:
            show_text("Nothing to accept: no failover and no restore was noticed.\n")
        return None
    failover = redacted(found.found, target.url)
    confirm(f"{failover}: acknowledged writes may be missing. Accept it for all processes?", yes=yes)
    accept_new_server(target.url)
    if not target.json:
        show_text(f"Accepted: {failover}.\n")
    return failover


def _taken_over(examination: Examination) -> Finding | None:
    return next((one for one in examination.findings() if one.name in TAKEN_OVER and one.level != "ok"), None)


def _show(url: str, findings: Sequence[Finding], verdict: str) -> None:
    show_text(f"Store: {url}\n")
    show_table(("", "CHECK", "FOUND", "NEXT MOVE"), [(f.level, f.name, f.found, f.advice or "-") for f in findings])
    show_text(f"\n{verdict}")


def _without_password(finding: Finding, url: str) -> Finding:
    return structs.replace(finding, found=redacted(finding.found, url), advice=redacted(finding.advice, url))


class Examination:
    """One examination of a store. A store that cannot be opened is a finding, not an error of the command."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.code = OK  # an exit code that does not follow from the findings

    def findings(self) -> Iterator[Finding]:
        path = sqlite_path(self.url)
        yield from check_machine(
            path.resolve().parent if path and path.resolve().parent.is_dir() else None, scheme_of(self.url)
        )
        try:
            if path is not None:
                refuse_unsafe(path)
                require_ledger(self.url)
            yield from self._examine()
        except StoreUnsafe as error:
            yield from error.data.get("findings") or [_refusal("store", error)]
        except NoLedger as error:
            yield from error.data.get("findings", ())
            yield _no_ledger(error, path)
        except StoreUnavailable as error:
            self.code = UNAVAILABLE
            yield _refusal("answers", error)
        except SchemaMismatch as error:
            yield _refusal("schema", error)
        except StoreError as error:
            yield _refusal("opens", error)

    def _examine(self) -> Iterator[Finding]:
        _announce_if_large(sqlite_path(self.url))
        store = open_store(self.url, keys=from_environment(os.environ).keys, create=False)
        try:
            yield from store.examine()
            yield from check_ledger(store, scheme_of(self.url), system_clock)
            yield from check_resources(store, from_environment(os.environ).resources, system_clock)
        finally:
            store.close()


def _announce_if_large(path: Path | None) -> None:
    """Announce a long check: without a line, a command of minutes seems to hang and is stopped."""
    size = 0 if path is None else sqlite_size(path)
    if size >= LARGE:
        click.echo(f"Reading all {size / GIGABYTE:.1f} GiB of the file; this can take a while.", err=True)


def sqlite_size(path: Path) -> int:
    return path.stat().st_size


def _no_ledger(error: NoLedger, path: Path | None) -> Finding:
    if path is not None and not path.resolve().parent.is_dir():
        return Finding("refuse", "ledger", "its directory does not exist", "Create it, or name another file.")
    if path is None or not path.exists():
        return Finding("warn", "ledger", "does not exist yet", "Start the app, which creates it; then check again.")
    return Finding("refuse", "ledger", str(error))


def _refusal(name: str, error: StoreError) -> Finding:
    """Messages of errors end with the next move, so there is no further advice."""
    return Finding("refuse", name, str(error))
