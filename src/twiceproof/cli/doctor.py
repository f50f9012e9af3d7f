"""`twiceproof doctor`: what this store can and cannot promise here."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
from msgspec import structs

from ..clock import system_clock
from ..errors import SchemaMismatch, StoreError, StoreUnavailable, StoreUnsafe
from ..passwords import redacted, shown_url
from ..settings import from_environment
from ..stores.accept import accept_server as take_as_it_is
from ..stores.base import Finding
from ..stores.no_ledger import NoLedger
from ..stores.open import open_store
from ..stores.sqlite_doctor import refuse_unsafe
from .checks import check_ledger, check_machine
from .confirm import confirm
from .failures import NEGATIVE, OK, REFUSED, UNAVAILABLE
from .ledger import require_ledger, scheme_of, sqlite_path
from .output import show_json, show_table, show_text
from .resources import check_resources
from .target import Target, target_options

__all__ = ["doctor"]

GIGABYTE = 1024**3
LARGE = GIGABYTE // 2
LEVELS = ("ok", "warn", "refuse")
VERDICTS = {
    "ok": "Fine: this store keeps what it acknowledges.",
    "warn": "It can be used; the warnings say what it does not promise, or what could not be checked.",
    "refuse": "Refused: this store would lose acknowledged writes, or cannot be used as it is.",
}
TAKEN_OVER = ("failover", "server")  # refused by stores, or told by the doctor
SILENT = "The store does not answer: what it promises could not be checked."

EPILOG = """\b
Examples:
  twiceproof doctor
  twiceproof --store postgresql://db/app doctor --json
  twiceproof --store postgresql://db/app doctor --accept-server
A server that took over may lack what its predecessor acknowledged last, and
stores refuse it. --accept-server takes it as it is, for everybody; numbers skip
ahead, so that no fence is drawn twice. After a planned switchover nothing is
missing. It also ends the warning about a ledger that was restored or copied.
Exit codes: 0 all is well, 1 warnings, 2 refused, 3 the store does not answer.
"""


@click.command(epilog=EPILOG)
@target_options
@click.option(
    "--accept-server", is_flag=True, help="Accept the server that took over, or the restored ledger, as it is."
)
@click.option("--yes", is_flag=True, help="Accept it without asking.")
@click.pass_context
def doctor(ctx: click.Context, accept_server: bool, yes: bool) -> None:
    """Check the store and this machine.

    Says what is safe here, what is not, and what to change.
    """
    target = ctx.ensure_object(Target)
    if yes and not accept_server:
        raise click.UsageError("--yes is for --accept-server; say both, or neither.")
    accepted = _accept(target, yes=yes) if accept_server else None
    examination = Examination(target.url)
    findings = [_without_password(finding, target.url) for finding in examination.findings()]
    worst = max((finding.level for finding in findings), key=LEVELS.index)
    if target.json:
        shape = {"store": shown_url(target.url), "verdict": worst, "findings": [structs.asdict(f) for f in findings]}
        show_json({**shape, "accepted": accepted} if accept_server else shape)
    else:
        _show(shown_url(target.url), findings, SILENT if examination.code else VERDICTS[worst])
    ctx.exit(examination.code or {"ok": OK, "warn": NEGATIVE, "refuse": REFUSED}[worst])


def _accept(target: Target, *, yes: bool) -> str | None:
    """What was accepted, as it was found. None: nobody has taken over."""
    found = None if sqlite_path(target.url) else _taken_over(Examination(target.url))
    if found is None:
        if not target.json:
            show_text("Nothing to accept: no other server has taken over.\n")
        return None
    told = redacted(found.found, target.url)
    confirm(f"{told}: acknowledged writes may be missing there. Accept it as it is, for everybody?", yes=yes)
    take_as_it_is(target.url)
    if not target.json:
        show_text(f"Accepted: {told}.\n")
    return told


def _taken_over(examination: Examination) -> Finding | None:
    return next((one for one in examination.findings() if one.name in TAKEN_OVER and one.level != "ok"), None)


def _show(url: str, findings: Sequence[Finding], verdict: str) -> None:
    show_text(f"Store: {url}\n")
    show_table(("", "WHAT", "FOUND", "NEXT MOVE"), [(f.level, f.name, f.found, f.advice or "-") for f in findings])
    show_text(f"\n{verdict}")


def _without_password(finding: Finding, url: str) -> Finding:
    return structs.replace(finding, found=redacted(finding.found, url), advice=redacted(finding.advice, url))


class Examination:
    """One look at a store. A store that cannot be opened is a finding, not a failure of the doctor."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.code = OK  # an exit code that the findings do not tell

    def findings(self) -> Iterator[Finding]:
        path = sqlite_path(self.url)
        yield from check_machine(path.resolve().parent if path and path.resolve().parent.is_dir() else None)
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
    """Said before: a doctor that says nothing for minutes is taken for one that hangs, and stopped."""
    size = 0 if path is None else sqlite_size(path)
    if size >= LARGE:
        click.echo(f"All {size / GIGABYTE:.1f} GiB of the file are read; this can take a while.", err=True)


def sqlite_size(path: Path) -> int:
    return path.stat().st_size


def _no_ledger(error: NoLedger, path: Path | None) -> Finding:
    if path is not None and not path.resolve().parent.is_dir():
        return Finding("refuse", "ledger", "its directory does not exist", "Create it, or name another file.")
    if path is None or not path.exists():
        return Finding("warn", "ledger", "there is none yet", "It is made when an App first opens it; look again then.")
    return Finding("refuse", "ledger", str(error))


def _refusal(name: str, error: StoreError) -> Finding:
    """Our messages end with the next move, so there is no more to advise."""
    return Finding("refuse", name, str(error))
