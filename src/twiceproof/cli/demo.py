"""Demo."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import wrap
from typing import Any

import click
from msgspec import structs

from ..demo import play as demo_play
from ..demo.play import Approved, DemoReport, DemoRun, DemoSettled, KnownStep, Side
from ..demo.scenario import FEWEST, LIMIT, PLAN, make_plan
from ..errors import Misuse
from ..safe_text import quoted
from .failures import NEGATIVE, OK
from .output import Progress, show_json, show_table, show_text, with_rich
from .target import LedgerTarget, json_option, program, sqlite_url

__all__ = ["demo", "report_shape", "show_report", "tell_approved", "tell_beginning", "tell_end", "tell_settled"]


BEGINNING = """\
A shop has {orders} orders. Each needs one invoice and one e-mail. Not two, and not none.

That is easy in good weather. Tonight it is bad, as it is somewhere every night:
  - the shop sends its messages several times, some at once, some in the wrong order;
  - the accounting service and the mail server do as they are told, but sometimes
    their answer gets lost on the way back;
  - programs are killed in the middle of their work (kill -9), and started again.

Two programs do the same job, side by side, in the same weather:
  naive script   does the work, tries again after an error, and keeps a list of the
                 orders that it has finished, so as not to do them again
  Twiceproof     claims each order before any work is done, writes down each step, and
                 knows for each step what to do when nobody can tell whether it was done
"""
WHY = """\
Was the e-mail sent? The program cannot know: it heard no answer. Sent again, the
customer might get it twice; left alone, perhaps never. The naive script guesses.
Twiceproof stops, and asks somebody who can look."""
HAPPENED, DID_NOT = "it was done, so it is not done again", "it was not done, so it is done now"
WIDTH = 56
MOST = 5  # orders in review, one by one


def tell_beginning(orders: int) -> None:
    show_text(BEGINNING.format(orders=orders))


def tell_approved(approved: Sequence[Approved]) -> None:
    for order in approved:
        show_text(
            f"\n1. Order {order.order} is worth {order.total:,} EUR. Above {LIMIT:,} EUR the flow asks before it bills."
        )
        show_text("   It has waited. Approved, as you would with:")
        show_text(f"     {program()} approvals approve {quoted(order.run)}")


def tell_settled(settled: Sequence[DemoSettled]) -> None:
    if not settled:
        return
    first = min(settled, key=lambda one: not any("no answer" in step.known for step in one.known))
    waits = "order waits" if len(settled) == 1 else "orders wait"
    show_text(f"\n2. {len(settled)} {waits} in review. What is known of order {first.order}:\n")
    for line in (line for step in first.known for line in _step_lines(step)):
        show_text(f"     {line}")
    show_text("\n" + "\n".join(f"   {line}" for line in WHY.splitlines()))
    show_text("   A look at the mail server's log tells:")
    for order in settled[:MOST]:
        show_text(f"     order {order.order}, {order.step}: {HAPPENED if order.verdict == 'happened' else DID_NOT}")
    if len(settled) > MOST:
        show_text(f"     and so on for {len(settled) - MOST} more")
    result = " --result null" if first.verdict == "happened" else ""
    show_text(
        f"   Settled, as you would with:\n     {program()} review settle {quoted(first.run)} --{first.verdict}{result}"
    )


def _step_lines(step: KnownStep) -> Iterator[str]:
    head = f"{step.name:<14}{step.state:<9}"
    for nth, line in enumerate(wrap(step.known, WIDTH) or [""]):
        yield (head if nth == 0 else " " * len(head)) + line


def tell_end(report: DemoReport, ledger: str | None, place: Path) -> None:
    show_text(f"\n{_verdict(report)}")
    if ledger is None:
        show_text(f"It took {report.seconds:.0f} s. The ledger is gone again; with --keep it is left, to be looked at.")
        return
    shown = report.settled[0].run if report.settled else "bill_order/order:1"
    show_text(f"\nIt took {report.seconds:.0f} s. The ledger and the books are in {place}:")
    for words in ("runs list --state all", f"runs show {quoted(shown)}", "duplicates", "claims list --state all"):
        show_text(f"  {program()} {words} --store {quoted(ledger)}")
    show_text(f"Both programs are short, and in {Path(demo_play.__file__).parent}:\n  naive.py, guarded.py")


def _verdict(report: DemoReport) -> str:
    if not report.ok:
        return f"Twiceproof did NOT do everything once: see above. Please report it, with --seed {report.plan.seed}."
    naive = report.sides["naive"].did
    return (
        "Twiceproof made every invoice once and sent every e-mail once. The naive script, which does what careful\n"
        f"scripts do, made {naive.invoices_twice} invoices and sent {naive.mails_twice} e-mails too many."
    )


HEAD = ("", "NAIVE SCRIPT", "TWICEPROOF")
Row = tuple[str, int, int]

WEATHER = (
    ("messages that arrived", "deliveries"),
    ("  recognised as known", "repeats"),
    ("killed in the middle of work", "kills"),
    ("answers lost", "answers_lost"),
)
DONE = (("invoices made", "invoices"), ("e-mails sent", "mails"))
WRONG = (
    ("invoices too many", "invoices_twice"),
    ("billed too much, in EUR", "billed_too_much"),
    ("e-mails too many", "mails_twice"),
    ("invoices missing", "invoices_missing"),
    ("e-mails missing", "mails_missing"),
    ("old addresses written over new", "addresses_old"),
    ("large orders billed unasked", "billed_unasked"),
)


def show_report(report: DemoReport) -> None:
    show_text("\nWhat happened, counted by the accounting service and the mail server:\n")
    orders, asked = len(report.plan.orders), len(report.approved) + len(report.settled)
    blocks = (
        [("orders", orders, orders), *_rows(report, WEATHER)],
        [*_rows(report, DONE), ("questions to a person", 0, asked)],
        _rows(report, WRONG),
    )
    if with_rich():
        _show_rich(blocks)
    else:
        show_table(HEAD, [line for block in blocks for line in (*map(_line, block), ("", "", ""))][:-1])


def _rows(report: DemoReport, what: tuple[tuple[str, str], ...]) -> list[Row]:
    naive, ours = report.sides["naive"], report.sides["twiceproof"]
    return [(words, _found(naive, name), _found(ours, name)) for words, name in what]


def _found(side: Side, name: str) -> int:
    return int(getattr(side.did if hasattr(side.did, name) else side, name))


def _line(row: Row) -> tuple[str, str, str]:
    return row[0], f"{row[1]:,}".rjust(len(HEAD[1])), f"{row[2]:,}".rjust(len(HEAD[2]))


def _show_rich(blocks: tuple[list[Row], ...]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for nth, name in enumerate(HEAD):
        table.add_column(name, justify="right" if nth else "left")
    for block in blocks:
        for words, *counts in block:
            wrong = block is blocks[-1]
            styles = [("bold red" if count else "green") if wrong else "" for count in counts]
            table.add_row(words, *(Text(f"{count:,}", style) for count, style in zip(counts, styles, strict=True)))
        table.add_section()
    Console().print(table)


def report_shape(report: DemoReport, ledger: str | None) -> dict[str, Any]:
    plan = report.plan
    return {
        "orders": len(plan.orders),
        "seed": plan.seed,
        "messages": len(plan.deliveries),
        **{side: _side_shape(found) for side, found in report.sides.items()},
        "approved": report.approved,
        "settled": report.settled,
        "waiting": report.waiting,
        "seconds": report.seconds,
        "ok": report.ok,
        "ledger": ledger,
    }


def _side_shape(side: Side) -> dict[str, Any]:
    found = structs.asdict(side)
    return {**{name: value for name, value in found.items() if name != "did"}, **structs.asdict(side.did)}


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
    target = ctx.ensure_object(LedgerTarget)
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


def _play(place: Path, store: str, orders: int, seed: int, *, quiet: bool) -> DemoReport:
    if not quiet:
        tell_beginning(orders)
    with DemoRun(place, store, make_plan(orders, seed)) as evening:
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
