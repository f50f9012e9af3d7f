"""Whether one clean run is fit to be compared with: it came to the end it should, and something was seen of it."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import Misuse
from ..flows.transactions.transaction import NEEDS_SQL
from .scenes.outcome import Outcome
from .scenes.verdict import gained
from .target import Target

__all__ = ["refuse_elsewhere", "refuse_other", "refuse_unfit"]

WAITS = "say what it waits for, with --callback name=FILE or --approve name (callbacks=, approve= in a test)"


def refuse_unfit(clean: Outcome, before: dict[str, int], target: Target) -> None:
    """A run that fails at once is the same every time, and so is one of which nothing is seen."""
    if NEEDS_SQL in f"{clean.why} {clean.error}":
        raise Misuse(
            "prove plays on ledgers of its own, and @app.transaction on the one in your database: this flow cannot be "
            "played. What such a step writes and its entry are one, and nothing comes between them; prove the other "
            "steps in a flow without it."
        )
    if clean.error or clean.state not in ("done", "review", "failed"):
        raise Misuse(
            f"One clean run must come to an end first, and this one is {clean.state or 'broken'}: "
            f"{clean.error or WAITS}{_missed(clean)}"
        )
    if clean.state != target.ends:
        raise Misuse(
            f"One clean run must end {target.ends} first, and this one ended {clean.state}: {clean.why}. "
            f"{_move(clean)}; if it is to end so: --ends {clean.state} (ends= in a test).{_missed(clean)}"
        )
    _refuse_unmet(clean, target)
    if not gained(before, clean.seen):
        raise Misuse(
            "One clean run changed nothing that is looked at, so nothing would be proved; say where its effects are: "
            "--files DIR, --calls module:function, --http HOST, --smtp HOST or --table URL#name (world= in a test)."
        )


def refuse_other(clean: Outcome, again: Outcome) -> None:
    """What is another thing each time cannot be told from one that happened twice."""
    other = gained(clean.seen, again.seen)
    if other:
        raise Misuse(
            f"Two clean runs do different things to the outside ({next(iter(other))}), so nothing could be compared; "
            "take times and ids from the event, or let world= in a test leave out what changes each time."
        )


def refuse_elsewhere(whose: str, places: Sequence[str]) -> None:
    """The guard has refused the connection; what the flow would do with one is not known."""
    if not places:
        return
    first = places[0]
    if first.startswith("unix:"):
        move = "Look at what is behind it with world= or --table"
    else:
        move = f"Name it with --http {first.rpartition(':')[0] or first} (--smtp for mail, --table for a database)"
    real = first.removeprefix("unix:")
    raise Misuse(
        f"{whose} reached for {', '.join(places)}, where nobody stands in, and was refused. {move}; if every play may "
        f"reach it for real: --real {real} (real= in a test)."
    )


def _missed(clean: Outcome) -> str:
    """What it may have come to grief over."""
    if not clean.cut:
        return ""
    return (
        " A play uses no connection that was opened before the play, and no name server "
        f"({', '.join(clean.cut)}): connect in the step, or name the host with --real (real= in a test)."
    )


def _refuse_unmet(clean: Outcome, target: Target) -> None:
    met = {one.name for one in clean.awaited}
    unmet = [name for name in (*target.callbacks, *target.approve) if name not in met]
    if unmet:
        raise Misuse(
            f"One clean run waited for {', '.join(sorted(met)) or 'nothing'}, and never for {', '.join(unmet)}; leave "
            "it out, or give an event that leads there."
        )


def _move(clean: Outcome) -> str:
    return WAITS[:1].upper() + WAITS[1:] if "WaitTimedOut" in clean.why else "Correct the flow, or what it is given"
