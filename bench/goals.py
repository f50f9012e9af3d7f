"""The goals: a floor that must be met, and an aim."""

from __future__ import annotations

from msgspec import Struct

from .findings import Line
from .series import Ratio

__all__ = ["GOALS", "Goal", "line"]


class Goal(Struct, frozen=True):
    text: str
    floor: float | None = None
    aim: float | None = None
    unit: str = "×"
    lower_is_better: bool = False


SEQUENTIAL = Goal("1 caller claims, beside the raw single statement", 0.5, 0.8)
LIMIT = Goal("claim, beside the raw limit of 64 rows per commit", 0.4, 0.6)
SCALE = Goal("cost per claim, large store / small", 1.4, 1.4, lower_is_better=True)

GOALS: dict[str, Goal] = {
    "SQLite sequential": SEQUENTIAL,
    "PostgreSQL sequential": SEQUENTIAL,
    "Valkey sequential": SEQUENTIAL,
    "SQLite usual": Goal("claim, beside one commit per claim", 4, 8),
    "PostgreSQL usual": Goal("claim, beside one INSERT per commit on 32 connections", 2, 4),
    "Valkey usual": Goal("claim, beside one SET NX"),
    "SQLite limit": LIMIT,
    "PostgreSQL limit": LIMIT,
    "Valkey limit": Goal("claim, beside the raw limit of 64 SET NX per round trip"),
    "SQLite replay": Goal("a replay, beside the raw read of one row"),
    "PostgreSQL replay": Goal("a replay, beside the raw read of one row"),
    "Valkey replay": Goal("a replay, beside the raw read of one key"),
    "engine calls": Goal("calls to the database per replay", 1, 1, unit="", lower_is_better=True),
    "peer, 1 caller": Goal("@app.once, beside Powertools, 1 caller", 1.2, 2),
    "peer, 8 threads": Goal("@app.once, beside Powertools, 8 threads", 3, 8),
    "scale growing": SCALE,
    "scale random": SCALE,
    "SQLite flow": Goal("a flow, beside DBOS", 5, 5),
    "PostgreSQL flow": Goal("a flow, beside DBOS", 3, 3),
    "flow commits": Goal("a flow, beside n+1 raw commits", 0.8, 0.8),
    "flow, 64 tasks": Goal("a flow, beside DBOS", 40, 80),
    "flow, 64 threads": Goal("a flow, beside DBOS", 40, 60),
    "flow beside Restate": Goal("a flow, beside Restate", 1, 1),
    "flow beside Restate, 1 caller": Goal("a flow, beside Restate"),
    "flow beside Temporal": Goal("a flow, beside Temporal"),
    "flow beside Temporal, 1 caller": Goal("a flow, beside Temporal"),
    "flow replay": Goal("a finished flow of 5 steps again, beside DBOS", 10, 10),
    "flow recovery": Goal("time to recover interrupted runs, beside DBOS", 0.25, 0.25, lower_is_better=True),
    "forgetting": Goal("runs forgotten, beside runs made", 1, 1),
    "waiting cost": Goal("next due run, many waiting / none", 2, 2, lower_is_better=True),
    "waiting memory": Goal("memory that waiting runs add to a worker", 20, 20, unit="MB", lower_is_better=True),
    "webhook duplicates": Goal("a duplicate webhook, beside a handler that does nothing", 0.5, 0.5),
    "webhook new": Goal("a new webhook, beside a handler that does nothing", 0.3, 0.3),
    "slow senders": Goal("p99 of good webhooks, beside slow senders / without", 2, 2, lower_is_better=True),
    "middleware replay": Goal("time of a replay, beside the bare endpoint", 1.25, 1.25, lower_is_better=True),
    "middleware in process": Goal("time of a replay, beside the bare endpoint", lower_is_better=True),
    "middleware replays": Goal("beside: a replay", 1, 1),
    "middleware first calls": Goal("beside: a first call", 1, 1),
    "http effect": Goal("time of an HTTP effect, beside a bare client in a step", 1.15, 1.15, lower_is_better=True),
    "rows new": Goal("find_or_create of a new row, beside the bare INSERT", 0.7, 0.7),
    "rows known": Goal("find_or_create of a known row, beside the bare SELECT"),
    "import": Goal("import twiceproof", 80, 80, unit="ms", lower_is_better=True),
    "import ratio": Goal("starting Python with it, beside without", unit="×", lower_is_better=True),
    "memory": Goal("memory of a process with an open App", 40, 40, unit="MB", lower_is_better=True),
    "copy rate": Goal("claims copied from SQLite to PostgreSQL in a second", 20_000, 20_000, unit="/s"),
    "copy beside load": Goal("a verified copy, beside reading and loading the rows alone"),
    "reconcile time": Goal("two sources of 1,000,000 rows compared", 60, 60, unit="s", lower_is_better=True),
    "reconcile memory": Goal("memory for two sources of 1,000,000 rows", 150, 150, unit="MB", lower_is_better=True),
    "reconcile flat": Goal("memory for 5,000,000 rows / 1,000,000", 1.1, 1.1, lower_is_better=True),
    "reconcile beside sort": Goal("two sources compared, beside sort -u and comm", lower_is_better=True),
}


def line(goal: str, part: str, value: Ratio, who: str = "") -> Line:
    """The figure beside its goal. `who` says which callers, where several kinds have the same goal."""
    known = GOALS[goal]
    text = f"{who} {known.text}".strip()
    return Line(part, text, value, known.unit, known.floor, known.aim, known.lower_is_better)
