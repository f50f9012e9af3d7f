"""`twiceproof ledger copy|backup|restore|unlock`: whole ledgers, from one place to another."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import click

from ..errors import Misuse
from ..safe_text import has_password
from ..stores.copying import CopyReport, copy_ledger, open_bulk, unlock_ledger
from .output import Progress, counted, show_json, show_table, show_text
from .target import LedgerTarget, json_option, read_private, require_ledger, sqlite_url, target_options

__all__ = ["backup", "copy", "ledger", "restore", "unlock"]


COPY_EPILOG = """\b
Examples:
  twiceproof ledger copy sqlite:///shop.db postgresql://db/shop
  twiceproof ledger copy sqlite:///shop.db @target-url --json
Stop workers, servers and scripts first. Large values in a directory or bucket
(resources=…) stay where they are.
Exit codes: 2 if the source is in use or the target is not empty.
"""


@click.command("copy", epilog=COPY_EPILOG, short_help="Move a ledger to another store.")
@click.argument("source")
@click.argument("target")
@click.option("--keep-source", is_flag=True, help="Leave the source usable; by default it is locked.")
@json_option
@click.pass_obj
def copy(common: LedgerTarget, source: str, target: str, keep_source: bool) -> None:
    """Copy every record of the ledger SOURCE to the empty ledger TARGET, compare the two, and lock SOURCE.

    An interrupted copy continues where it stopped. TARGET cannot be used until it is complete. A URL with a
    password is read from a private file: @FILE.
    """
    report = _copied(common, _url(source), _url(target), seal=not keep_source)
    _show(common, report, "copied")
    if not common.json:
        locked = "" if keep_source else " The source is locked, so that no script continues to use it."
        show_text(f"Point TWICEPROOF_STORE to the target, and start the workers.{locked}")


BACKUP_EPILOG = """\b
Examples:
  twiceproof ledger backup shop-backup.db
  twiceproof --store @url ledger backup /backups/shop.db
"""


@click.command("backup", epilog=BACKUP_EPILOG, short_help="Write the ledger to a new SQLite file.")
@click.argument("file", type=click.Path(path_type=Path))
@target_options
@click.pass_obj
def backup(target: LedgerTarget, file: Path) -> None:
    """Write the whole ledger, as it is now, to the new SQLite file FILE.

    The ledger may be in use.
    """
    if file.exists():
        raise Misuse(f"{file} exists, and a backup never replaces a file; name a new one.")
    require_ledger(target.url)
    _show(target, _copied(target, target.url, sqlite_url(file), in_use=True), "backed up")


RESTORE_EPILOG = """\b
Examples:
  twiceproof --store sqlite:///shop.db ledger restore shop-backup.db
What was done since the backup is not in it: record that before you start
workers: twiceproof rebuild plan
"""


@click.command("restore", epilog=RESTORE_EPILOG, short_help="Load a backup into an empty ledger.")
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@target_options
@click.pass_obj
def restore(target: LedgerTarget, file: Path) -> None:
    """Load the backup FILE into the ledger of --store, which must be empty or new.

    Version and fence numbers continue above those of the backup, and above the present time, so that none is used
    twice.
    """
    report = _copied(target, sqlite_url(file), target.url, in_use=True)
    _show(target, report, "restored")
    if not target.json:
        show_text("Record what was done since the backup before you start workers: twiceproof rebuild plan")


UNLOCK_EPILOG = """\b
Examples:
  twiceproof --store sqlite:///shop.db ledger unlock
"""


@click.command("unlock", epilog=UNLOCK_EPILOG, short_help="Unlock a ledger that `ledger copy` locked.")
@target_options
@click.pass_obj
def unlock(target: LedgerTarget) -> None:
    """Unlock a ledger that `ledger copy` locked.

    Use it only if the copy is not in use.
    """
    with closing(open_bulk(target.url)) as found:
        was_locked = unlock_ledger(found)
    if target.json:
        show_json({"unlocked": was_locked})
    else:
        show_text("The ledger can be used again." if was_locked else "The ledger is not locked.")


def _url(given: str) -> str:
    if given.startswith("@"):
        return read_private(Path(given[1:]), "URL")
    if has_password(given):
        click.echo("Warning: every user of this machine can read a password on the command line; use @FILE.", err=True)
    return given


def _copied(
    target: LedgerTarget, source_url: str, target_url: str, *, in_use: bool = False, seal: bool = False
) -> CopyReport:
    with (
        closing(open_bulk(source_url)) as source,
        closing(open_bulk(target_url, create=True)) as copied,
        Progress("copied", quiet=target.json, lines=True) as bar,
    ):
        return copy_ledger(source, copied, in_use=in_use, seal=seal, progress=bar.show)


def _show(target: LedgerTarget, report: CopyReport, done: str) -> None:
    if target.json:
        shape = {"records": report.records, "total": report.total, "digest": report.digest, "resumed": report.resumed}
        show_json(shape)
        return
    show_table(("KIND", "RECORDS"), list(report.records.items()))
    show_text(f"{counted(report.total, 'record')} {done}; both ledgers have the digest {report.digest}.")


@click.group("ledger")
def ledger() -> None:
    """Copy, back up and restore whole ledgers."""


for _command in (copy, backup, restore, unlock):
    ledger.add_command(_command)
