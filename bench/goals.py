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
AHEAD = Goal("@app.once, beside Powertools", 1, 1)
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
    "peer, 1 caller, always": AHEAD,
    "peer, 8 threads, always": AHEAD,
    "peer, 1 caller, everysec": Goal("@app.once, beside Powertools", 1.2, 2),
    "peer, 8 threads, everysec": Goal("@app.once, beside Powertools"),
    "scale growing": SCALE,
    "scale random": SCALE,
    "SQLite flow": Goal("a flow, beside DBOS", 5, 5),
    "PostgreSQL flow": Goal("a flow, beside DBOS", 3, 3),
    "flow commits": Goal("a flow, beside n+1 raw commits", 0.8, 0.8),
    "flow, 64 tasks": Goal("a flow, beside DBOS", 40, 80),
    "flow, 64 threads": Goal("a flow, beside DBOS"),
    "flow beside Restate": Goal("a flow, beside Restate", 1, 1),
    "flow beside Restate, 1 caller": Goal("a flow, beside Restate"),
    "flow beside Temporal": Goal("a flow, beside Temporal"),
    "flow beside Temporal, 1 caller": Goal("a flow, beside Temporal"),
    "flow on MariaDB": Goal("a flow of 5 steps, 64 tasks, beside the same on PostgreSQL", 0.6, 0.6),
    "flow replay": Goal("a finished flow of 5 steps again, beside DBOS", 10, 10),
    "flow recovery": Goal("time to recover interrupted runs, beside DBOS", 0.25, 0.25, lower_is_better=True),
    "flow in a file": Goal("time of a flow in a file, beside its twin in Python", 1.5, 1.5, lower_is_better=True),
    "lint of a file": Goal("lint of a file of 500 lines", 100, 100, unit="ms", lower_is_better=True),
    "many releases": Goal("first start of a run, 1,000 releases / one", 1.5, 1.5, lower_is_better=True),
    "forgetting": Goal("runs forgotten, beside runs made", 1, 1),
    "waiting cost": Goal("next due run, many waiting / none", 2, 2, lower_is_better=True),
    "waiting memory": Goal("memory that waiting runs add to a worker", 20, 20, unit="MB", lower_is_better=True),
    "webhook duplicates": Goal("a duplicate webhook, beside a handler that does nothing", 0.5, 0.5),
    "webhook new": Goal("a new webhook, beside a handler that does nothing", 0.3, 0.3),
    "slowest page": Goal("the slowest page of the dashboard, median", 300, 300, unit="ms", lower_is_better=True),
    "records of a page": Goal("the page that reads most records", 5_000, 5_000, unit="", lower_is_better=True),
    "page beside GET": Goal("a list page, beside the same list over HTTP", 1.5, 1.5, lower_is_better=True),
    "webhooks with browsers": Goal("new webhooks with 64 open browsers, beside without", 0.95, 0.95),
    "browsers": Goal("processor time of a server for 64 open browsers", 5, 5, unit="% of a core", lower_is_better=True),
    "slow senders": Goal("p99 of good webhooks, beside slow senders / without", 2, 2, lower_is_better=True),
    "middleware replay": Goal("time of a replay, beside the bare endpoint", 1.25, 1.25, lower_is_better=True),
    "middleware in process": Goal("time of a replay, beside the bare endpoint", lower_is_better=True),
    "middleware replays": Goal("beside: a replay", 1, 1),
    "middleware first calls": Goal("beside: a first call", 1, 1),
    "http effect": Goal("time of an HTTP effect, beside a bare client in a step", 1.15, 1.15, lower_is_better=True),
    "rows new": Goal("find_or_create of a new row, beside the bare INSERT", 0.7, 0.7),
    "row store, one": SEQUENTIAL,
    "row store, many": Goal("64 tasks claim, beside the usual one statement", 1, 2),
    "row store, grouped": Goal("64 tasks claim, beside the usual one statement", 2, 4),
    "row store, both": Goal("take and complete, beside the usual two"),
    "row store requests": Goal("requests of a claim, taken and completed", 2, 2, unit="", lower_is_better=True),
    "row store requests, replay": Goal("requests of a replay", 1, 1, unit="", lower_is_better=True),
    "rows known": Goal("find_or_create of a known row, beside the bare SELECT"),
    "message in a transaction": Goal("an INSERT and a message, beside two INSERTs", 0.6, 0.85),
    "message in a flow": Goal("a flow of 5 steps that sends, beside one that does not", 0.9, 0.97),
    "relay": Goal("our relay, beside the textbook relay", 0.8, 1.2),
    "relay to a broker": Goal("our relay, beside a bare publisher with confirms", 0.6, 0.8),
    "faststream-outbox": Goal("our relay, beside faststream-outbox with its defaults", 4, 10),
    "faststream-outbox, batched": Goal("our relay, beside faststream-outbox in batches of 100", 1, 1.5),
    "claims beside messages": Goal("claims beside 2,000 messages a second in one store, beside alone", 0.8, 0.9),
    "claims after messages": Goal("claims after messages have passed, beside a new store", 0.8, 0.9),
    "size after messages": Goal("size of the table after all / a quarter", 1.3, 1.1, lower_is_better=True),
    "consume": Goal("consume and start, beside INSERT, then ack", 1.5, 4),
    "message due": Goal("cost of the next due message, many undelivered / few", 2, 1.3, lower_is_better=True),
    "message beside a backlog": Goal(
        "until another tenant's message is published, median", 2, 0.5, unit="s", lower_is_better=True
    ),
    "message latency": Goal("median from commit to publish, idle", 30, 10, unit="ms", lower_is_better=True),
    "message latency, late": Goal("p99 from commit to publish, idle", 200, 50, unit="ms", lower_is_better=True),
    "import": Goal("import twiceproof", 80, 80, unit="ms", lower_is_better=True),
    "import ratio": Goal("starting Python with it, beside without", unit="×", lower_is_better=True),
    "memory": Goal("memory of a process with an open App", 40, 40, unit="MB", lower_is_better=True),
    "copy rate": Goal("claims copied from SQLite to PostgreSQL in a second", 20_000, 20_000, unit="/s"),
    "copy beside load": Goal("a verified copy, beside reading and loading the rows alone"),
    "reconcile time": Goal("two sources of 1,000,000 rows compared", 60, 60, unit="s", lower_is_better=True),
    "reconcile memory": Goal("memory for two sources of 1,000,000 rows", 150, 150, unit="MB", lower_is_better=True),
    "reconcile flat": Goal("memory for 10,000,000 rows / 1,000,000", 1.1, 1.1, lower_is_better=True),
    "reconcile beside reladiff": Goal("two tables compared, beside reladiff", lower_is_better=True),
    "reconcile beside sort": Goal("two sources compared, beside sort -u and comm", lower_is_better=True),
}


def line(goal: str, part: str, value: Ratio, who: str = "", *, shown: bool = False) -> Line:
    """The figure beside its goal. `who` says which callers, where several kinds have the same goal.

    `shown`: the goal is for others than these; their figure is only shown.
    """
    known = Goal(GOALS[goal].text) if shown else GOALS[goal]
    text = f"{who} {known.text}".strip()
    return Line(part, text, value, known.unit, known.floor, known.aim, known.lower_is_better)
