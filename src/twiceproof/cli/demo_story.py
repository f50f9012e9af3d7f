"""What the demo says to people: what is about to happen, what a person was asked, and where to look."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import wrap

from .. import demo
from ..demo.evening import Report
from ..demo.person import Approved, KnownStep, Settled
from ..demo.plan import LIMIT
from ..shell import quoted
from .output import show_text
from .shell import program

__all__ = ["tell_approved", "tell_beginning", "tell_end", "tell_settled"]

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


def tell_settled(settled: Sequence[Settled]) -> None:
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


def tell_end(report: Report, ledger: str | None, place: Path) -> None:
    show_text(f"\n{_verdict(report)}")
    if ledger is None:
        show_text(f"It took {report.seconds:.0f} s. The ledger is gone again; with --keep it is left, to be looked at.")
        return
    shown = report.settled[0].run if report.settled else "bill_order/order:1"
    show_text(f"\nIt took {report.seconds:.0f} s. The ledger and the books are in {place}:")
    for words in ("runs list --state all", f"runs show {quoted(shown)}", "duplicates", "claims list --state all"):
        show_text(f"  {program()} {words} --store {quoted(ledger)}")
    show_text(f"Both programs are short, and in {Path(demo.__path__[0])}:\n  naive.py, guarded.py")


def _verdict(report: Report) -> str:
    if not report.ok:
        return f"Twiceproof did NOT do everything once: see above. Please report it, with --seed {report.plan.seed}."
    naive = report.sides["naive"].did
    return (
        "Twiceproof made every invoice once and sent every e-mail once. The naive script, which does what careful\n"
        f"scripts do, made {naive.invoices_twice} invoices and sent {naive.mails_twice} e-mails too many."
    )
