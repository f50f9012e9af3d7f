"""`twiceproof demo`: runs the demo, and prints what happened."""

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
from ..demo.play import Approved, DemoReport, DemoRun, DemoSettled, DemoStep, Side, one_order_more
from ..demo.scenario import FEWEST, LIMIT, PLAN, DemoPlan, make_plan
from ..errors import Misuse
from ..flows.engine.ledger import UNKNOWN
from ..safe_text import quoted
from .output import NEGATIVE, OK, Progress, show_json, show_table, show_text, with_rich
from .target import LedgerTarget, json_option, program, sqlite_url

__all__ = ["demo", "report_shape", "show_approved", "show_end", "show_intro", "show_report", "show_settled"]


INTRO = """\
A shop has {orders} orders. Each needs exactly one invoice and one e-mail.

The demo injects the faults that happen in production:
  - the shop sends its messages several times, some at once, some out of order;
  - the accounting service and the mail server do the work, but sometimes their
    response is lost;
  - processes are killed while they work (kill -9), and started again.

Two programs do the same job, under the same faults:
  naive script   does the work, retries after an error, and records the orders
                 that it has finished, to skip them later
  Twiceproof     claims each order before the work, records each step, and
                 knows for each step what to do if its outcome is unknown
"""
UNKNOWN_OUTCOME = """\
Was the e-mail sent? The program cannot know, because it got no response. Sent
again, the customer may get it twice; not sent again, perhaps never. The naive
script guesses. Twiceproof stops, and asks a person to check."""
HAPPENED, DID_NOT = "it was done, so it is not repeated", "it was not done, so it is done now"
WIDTH = 56
MOST = 5  # orders in review that are listed


def show_intro(orders: int) -> None:
    show_text(INTRO.format(orders=orders))


def show_approved(approved: Sequence[Approved]) -> None:
    for order in approved:
        show_text(
            f"\n1. Order {order.order} is worth {order.total:,} EUR. Above {LIMIT:,} EUR the flow waits for approval."
        )
        show_text("   The demo has approved it, as you would with:")
        show_text(f"     {program()} approvals approve {quoted(order.run)}")


def show_settled(settled: Sequence[DemoSettled]) -> None:
    if not settled:
        return
    first = min(settled, key=lambda one: not any(step.state == UNKNOWN for step in one.steps))
    several = "order is" if len(settled) == 1 else "orders are"
    show_text(f"\n2. {len(settled)} {several} in review. The steps of order {first.order}:\n")
    for line in (line for step in first.steps for line in _step_lines(step)):
        show_text(f"     {line}")
    show_text("\n" + "\n".join(f"   {line}" for line in UNKNOWN_OUTCOME.splitlines()))
    show_text("   The log of the mail server shows:")
    for order in settled[:MOST]:
        show_text(f"     order {order.order}, {order.step}: {HAPPENED if order.verdict == 'happened' else DID_NOT}")
    if len(settled) > MOST:
        show_text(f"     and {len(settled) - MOST} more")
    result = " --result null" if first.verdict == "happened" else ""
    show_text("   The demo has settled it, as you would with:")
    show_text(f"     {program()} review settle {quoted(first.run)} --{first.verdict}{result}")


def _step_lines(step: DemoStep) -> Iterator[str]:
    head = f"{step.name:<14}{step.state:<9}"
    for number, line in enumerate(wrap(step.detail, WIDTH) or [""]):
        yield (head if number == 0 else " " * len(head)) + line


def show_end(report: DemoReport, ledger: str | None, place: Path) -> None:
    show_text(f"\n{_verdict(report)}")
    if ledger is None:
        show_text(f"It took {report.seconds:.0f} s. The ledger was deleted; --keep keeps it for inspection.")
        show_text(f"To look at every order in a browser: {program()} demo --keep --open")
        return
    shown = report.settled[0].run if report.settled else "bill_order/order:1"
    show_text(f"\nIt took {report.seconds:.0f} s. The ledger and the records of the services are in {place}:")
    for words in ("runs list --state all", f"runs show {quoted(shown)}", "duplicates", "claims list --state all"):
        show_text(f"  {program()} {words} --store {quoted(ledger)}")
    show_text(f"The source of both programs, naive.py and guarded.py, is in\n  {Path(demo_play.__file__).parent}")


def _verdict(report: DemoReport) -> str:
    if not report.ok:
        return f"Twiceproof did NOT do everything once: see above. Please report it, with --seed {report.plan.seed}."
    naive = report.sides["naive"].did
    return (
        "Twiceproof made every invoice once and sent every e-mail once. The naive script\n"
        f"made {naive.duplicate_invoices} duplicate invoices and sent {naive.duplicate_mails} duplicate e-mails."
    )


HEAD = ("", "NAIVE SCRIPT", "TWICEPROOF")
Row = tuple[str, int, int]

FAULTS = (
    ("messages received", "deliveries"),
    ("  recognised as duplicates", "recognised_duplicates"),
    ("processes killed", "kills"),
    ("responses lost", "lost_responses"),
)
DONE = (("invoices made", "invoices"), ("e-mails sent", "mails"))
WRONG = (
    ("duplicate invoices", "duplicate_invoices"),
    ("overbilled, in EUR", "overbilled_eur"),
    ("duplicate e-mails", "duplicate_mails"),
    ("missing invoices", "missing_invoices"),
    ("missing e-mails", "missing_mails"),
    ("old address overwrote a new one", "stale_addresses"),
    ("large orders billed unapproved", "billed_without_approval"),
)


def show_report(report: DemoReport) -> None:
    show_text("\nWhat happened, as the accounting service and the mail server recorded it:\n")
    orders, decisions = len(report.plan.orders), len(report.approved) + len(report.settled)
    blocks = (
        [("orders", orders, orders), *_rows(report, FAULTS)],
        [*_rows(report, DONE), ("decisions by a person", 0, decisions)],
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
        "unresolved": report.unresolved,
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
  twiceproof demo --keep --open
  twiceproof demo --orders 30 --seed 7 --json
Exit codes: 0 Twiceproof did everything once; 1 it did something twice, or not.
"""


@click.command(epilog=EPILOG)
@click.option(
    "--orders",
    type=click.IntRange(FEWEST, 10_000),
    default=100,
    show_default=True,
    help="Number of orders; 20 take about a second.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of the messages and the faults.")
@click.option("--keep", is_flag=True, help="Keep the ledger in a temporary directory, and print how to inspect it.")
@click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the ledger in this directory, which must not hold that of an earlier demo.",
)
@click.option(
    "--open", "opened", is_flag=True, help="Keep the ledger, and open it in a browser, with an order to settle."
)
@json_option
@click.pass_context
def demo(ctx: click.Context, orders: int, seed: int, folder: Path | None, keep: bool, opened: bool) -> None:
    """Compare Twiceproof with a naive script, under the same faults.

    A shop, an accounting service and a mail server run as separate processes and record what they were asked to do;
    at the end their records are compared. Takes less than half a minute.
    """
    target = ctx.ensure_object(LedgerTarget)
    keep |= opened
    if opened:
        from .serve import require_server  # with the server's imports, which other demos do without

        require_server()
    with _place(folder, keep=keep or folder is not None) as place:
        store = sqlite_url(place / LEDGER)
        report = _play(place, store, orders, seed, quiet=target.json)
    kept = store if keep or folder is not None else None
    if target.json:
        show_json(report_shape(report, kept))
    else:
        show_report(report)
        show_end(report, kept, place)
    if opened:
        _open(place, store, report.plan)
    ctx.exit(OK if report.ok else NEGATIVE)


STUCK = """
Meanwhile one order more came, order {number}. Its e-mail may have gone out, or
not: the mail server did not answer. Find the order by its number, and settle it.
What the mail server knows is in {log}"""


def _open(place: Path, store: str, plan: DemoPlan) -> None:
    """Serve the dashboard of the ledger with a worker, and show it in a browser: with an order that needs a person."""
    import importlib
    import logging
    import webbrowser

    from ..server.serve import Options, serve

    with one_order_more(place, store, plan) as last:
        app = importlib.import_module("twiceproof.demo.guarded").app

        def announce(url: str) -> None:
            show_text(STUCK.format(number=last.number, log=last.log))
            show_text(f"\nThe dashboard is at {url} (Ctrl-C ends it)")
            webbrowser.open(url)

        logging.getLogger("twiceproof").setLevel(logging.ERROR)  # the page tells of the order that waits
        with app:
            last.deliver(app)
            serve(app, Options(port=0, concurrency=2, lame_duck=0.0), announce)


def _play(place: Path, store: str, orders: int, seed: int, *, quiet: bool) -> DemoReport:
    if not quiet:
        show_intro(orders)
    with DemoRun(place, store, make_plan(orders, seed)) as run:
        with Progress("Messages", quiet=quiet, lines=True) as progress:
            run.messages(progress.show)
        approved = run.approve()
        if not quiet:
            show_approved(approved)
        settled = run.settle()
        if not quiet:
            show_settled(settled)
        return run.report()


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
        raise Misuse(f"{folder} cannot be created ({error.strerror}); choose another --dir.") from None
    for name in (LEDGER, PLAN):
        if (folder / name).exists():
            # The claims of an earlier demo would make every message a duplicate.
            raise Misuse(f"{folder / name} already exists; choose another --dir.")
    return folder.resolve()
