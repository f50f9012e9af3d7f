"""Draws a history as text, so that a person sees who was told what, and what went on at the same time."""

from __future__ import annotations

from collections.abc import Iterable

from .checker import Violation
from .operation import Operation

__all__ = ["draw", "draw_violation"]


def draw(operations: Iterable[Operation]) -> str:
    """One line each, in the order in which they began. Moments are equally far apart, whatever the time between."""
    ordered = sorted(operations, key=lambda one: one.invoked)
    moments = sorted({tick for one in ordered for tick in (one.invoked, one.returned) if tick is not None})
    column = {tick: nth for nth, tick in enumerate(moments)}
    bars = [_bar(one, column, len(moments)) for one in ordered]
    words = [str(one).partition(" → ") for one in ordered]
    width = max((len(asked) for asked, _, _ in words), default=0)
    return "\n".join(
        f"{asked:{width}}  {bar}  {told}" for bar, (asked, _, told) in zip(bars, words, strict=True)
    )  # fmt: skip


def _bar(one: Operation, column: dict[int, int], width: int) -> str:
    start = column[one.invoked]
    if one.answer is None:  # it may still happen at any of the moments that are dotted
        end = width if one.returned is None else column[one.returned]
        return (" " * start + "├" + "┄" * (end - start - 1)).ljust(width)
    end = start if one.returned is None else column[one.returned]
    return (" " * start + ("│" if end == start else "├" + "─" * (end - start - 1) + "┤")).ljust(width)


def draw_violation(violation: Violation, *, origin: str = "") -> str:
    """Where it comes from (a seed, say), the operations, and what fits nowhere."""
    where = f"{violation.key}, {origin}" if origin else violation.key
    lines = [
        f"{where}: no order of these explains every answer",
        draw(violation.witness),
        f"After all that can be put in order the claim is {violation.state}. Then this is impossible:",
        *(f"  {one}" for one in violation.culprits),
    ]
    return "\n".join(lines)
