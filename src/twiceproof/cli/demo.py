"""`twiceproof demo`: a shop, an accounting service, a mail server, and two programs in the same bad weather."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from ..demo.evening import Evening, Report
from ..demo.plan import FEWEST, PLAN, make_plan
from ..errors import Misuse
from .demo_story import tell_approved, tell_beginning, tell_end, tell_settled
from .demo_table import report_shape, show_report
from .failures import NEGATIVE, OK
from .ledger import sqlite_url
from .output import show_json
from .progress import Progress
from .target import Target, json_option

__all__ = ["demo"]

LEDGER = "twiceproof.db"

EPILOG = """\b
Examples:
  twiceproof demo
  twiceproof demo --keep
  twiceproof demo --orders 30 --seed 7 --json
Exit codes: 0 Twiceproof did everything once, 1 it did something twice or not at all.
"""


@click.command(epilog=EPILOG, short_help="See it work, beside a script without it.")
@click.option(
    "--orders",
    type=click.IntRange(FEWEST, 10_000),
    default=100,
    show_default=True,
    help="How many orders the shop has; 20 of them take a second.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Draws the messages and the weather.")
@click.option(
    "--keep",
    is_flag=True,
    help="Leave the ledger and the books in a temporary directory, and say what to type to look at them.",
)
@click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Leave them in this directory, which must not hold those of an earlier demo.",
)
@json_option
@click.pass_context
def demo(ctx: click.Context, orders: int, seed: int, folder: Path | None, keep: bool) -> None:
    """See it work: the same orders, the same kills and lost answers, for a script and for Twiceproof.

    A shop, an accounting service and a mail server run as processes of their own. They count what they were made to
    do; at the end their books are compared. Takes less than half a minute.
    """
    target = ctx.ensure_object(Target)
    with _place(folder, keep=keep or folder is not None) as place:
        store = sqlite_url(place / LEDGER)
        report = _play(place, store, orders, seed, quiet=target.json)
    kept = store if keep or folder is not None else None
    if target.json:
        show_json(report_shape(report, kept))
    else:
        show_report(report)
        tell_end(report, kept, place)
    ctx.exit(OK if report.ok else NEGATIVE)


def _play(place: Path, store: str, orders: int, seed: int, *, quiet: bool) -> Report:
    if not quiet:
        tell_beginning(orders)
    with Evening(place, store, make_plan(orders, seed)) as evening:
        with Progress("Messages", quiet=quiet, lines=True) as progress:
            evening.messages(progress.show)
        approved = evening.approve()
        if not quiet:
            tell_approved(approved)
        settled = evening.settle()
        if not quiet:
            tell_settled(settled)
        return evening.report()


@contextmanager
def _place(folder: Path | None, *, keep: bool) -> Iterator[Path]:
    place = _chosen(folder)
    try:
        yield place
    finally:
        if not keep:
            shutil.rmtree(place)


def _chosen(folder: Path | None) -> Path:
    if folder is None:
        return Path(tempfile.mkdtemp(prefix="twiceproof-demo-"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Misuse(f"{folder} cannot be made a directory ({error.strerror}); choose another --dir.") from None
    for name in (LEDGER, PLAN):
        if (folder / name).exists():
            # An earlier run's claims would answer this one's messages, and nothing would be done.
            raise Misuse(f"{folder / name} is there already; choose another --dir.")
    return folder.resolve()
