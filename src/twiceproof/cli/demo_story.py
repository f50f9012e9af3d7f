"""What the demo says to people: what is about to happen, what a person was asked, and where to look."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .. import demo
from ..demo.evening import Report
from ..demo.person import Approved, Settled
from ..demo.plan import LIMIT
from .output import show_table, show_text
from .run_table import shortened
from .shell import program, quoted

__all__ = ["tell_approved", "tell_beginning", "tell_end", "tell_settled"]

BEGINNING = """\
A shop has {orders} orders. For each of them one invoice shall be made and one e-mail sent. Not two.

Easy in good weather. Tonight it is bad, as it is somewhere every night:
  - the shop sends its messages several times, some at the same moment, some in the wrong order;
  - the accounting service and the mail server do what they are asked, and sometimes their answer is lost;
  - programs are killed in the middle of their work (kill -9), and started again.

Two programs do this job, side by side, in the same weather:
  naive script   tries again when there is an error, and keeps a list of the orders it has finished
  Twiceproof     the same job, with each order claimed before any work is done, and each step written down
"""
WIDTH = 78


def tell_beginning(orders: int) -> None:
    show_text(BEGINNING.format(orders=orders))


def tell_approved(approved: Sequence[Approved]) -> None:
    for order in approved:
        show_text(
            f"\nOrder {order.order} is about {order.total:,} EUR. Above {LIMIT:,} EUR a person is asked before anything is "
            f"billed,\nso it waited. Approved, as you would with:\n  twiceproof approvals approve {order.run}"
        )


def tell_settled(settled: Sequence[Settled]) -> None:
    if not settled:
        return
    number = "One order waits" if len(settled) == 1 else f"{len(settled)} orders wait"
    show_text(f"\n{number} for a person to say what happened. This is what the ledger knows of order {settled[0].order}:")
    show_table(("STEP", "", ""), [(step.name, step.state, shortened(step.known, WIDTH)) for step in settled[0].known])
    show_text(
        "Done again blindly, it might happen twice; left alone, perhaps never. No program can know, so Twiceproof\n"
        "stops and asks. A look into the books outside told:"
    )
    for order in settled:
        word = "it happened" if order.verdict == "happened" else "it did not happen, so it is tried again"
        show_text(f"  order {order.order}, {order.step}: {word}")
    first = settled[0]
    result = " --result null" if first.verdict == "happened" else ""
    show_text(f"Settled, as you would with:\n  twiceproof review settle {first.run} --{first.verdict}{result}")


def tell_end(report: Report, ledger: str | None, place: Path) -> None:
    show_text(f"\n{_verdict(report)} ({report.seconds} s)")
    if ledger is None:
        show_text("The ledger is removed again; --keep leaves it, to look at it.")
        return
    store = quoted(ledger)
    shown = report.settled[0].run if report.settled else "bill_order/order:1"
    show_text(f"Everything is kept in {place}. Look at it:")
    for words in ("runs list --state all", f"runs show {quoted(shown)}", "review list", "claims list --state all"):
        show_text(f"  {program()} {words} --store {store}")
    show_text(f"Both programs are short: naive.py and guarded.py in {Path(demo.__path__[0])}")


def _verdict(report: Report) -> str:
    if not report.ok:
        return "NOT everything was done once by Twiceproof: see above. Please report it, with the seed."
    return "Twiceproof made every invoice once and sent every e-mail once."
