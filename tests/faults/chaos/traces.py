"""The traces outside of the product: the effect server's log, the kills, and the tables by plain SQL."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import psycopg
from msgspec import Struct

RUNS = "SELECT key, state, result::text FROM twiceproof.twiceproof_runs"
BOOKED = "SELECT n, id FROM booked"


class Seen(Struct, frozen=True):
    """One line of a log."""

    at: float
    who: str = ""
    receipt: int = 0
    found: int | None = None


class Run(Struct, frozen=True):
    """How a run ended, by the ledger."""

    state: str
    result: list[int] = []


Of = dict[tuple[str, int], list[Seen]]  # by kind of step, and order


class Traces:
    """`begun`, `done`, `known` (a key that came again), `asked` (a probe) and `lost` (no answer) by step and order."""

    def __init__(self) -> None:
        self.begun: Of = defaultdict(list)
        self.done: Of = defaultdict(list)
        self.known: Of = defaultdict(list)
        self.asked: Of = defaultdict(list)
        self.lost: Of = defaultdict(list)
        self.visits: dict[int, list[Seen]] = defaultdict(list)
        self.killed: dict[str, float] = {}  # when, by name
        self.database_killed: list[float] = []
        self.runs: dict[int, Run] = {}

    @classmethod
    def read(cls, directory: Path, dsn: str) -> Self:
        traces = cls()
        traces._read_effects(directory / "effects.log")
        traces.killed = {line["who"]: line["at"] for line in _lines(directory / "crew.log") if line["what"] == "killed"}
        traces.database_killed = [
            line["at"] for line in _lines(directory / "storm.log") if line["what"] == "database killed"
        ]
        with psycopg.connect(dsn) as db:
            traces._read_tables(db)
        return traces

    def _read_effects(self, log: Path) -> None:
        kinds = {name: getattr(self, name) for name in ("begun", "done", "known", "asked", "lost")}
        for line in _lines(log):
            seen = Seen(line["at"], line["who"], line.get("receipt", 0), line.get("found"))
            if line["what"] == "visit":
                self.visits[line["order"]].append(seen)
            else:
                kinds[line["what"]][line["kind"], line["order"]].append(seen)

    def _read_tables(self, db: psycopg.Connection[Any]) -> None:
        self.runs = {
            int(key.removeprefix("order:")): Run(state, json.loads(result or "[]"))
            for key, state, result in db.execute(RUNS)
        }
        for n, row in db.execute(BOOKED):
            self.done["transaction", n].append(Seen(0.0, "", row))

    # -- asking ----------------------------------------------------------------------------------

    def receipts(self, kind: str, order: int) -> list[int]:
        return [seen.receipt for seen in self.done.get((kind, order), [])]

    def count(self, what: Of) -> Counter[str]:
        counts: Counter[str] = Counter()
        for (kind, _), seen in what.items():
            counts[kind] += len(seen)
        return counts

    def was_killed(self, who: str, before: float) -> bool:
        return who in self.killed and self.killed[who] <= before

    def database_was_killed(self, after: float, before: float) -> bool:
        return any(after <= at <= before for at in self.database_killed)


def _lines(log: Path) -> Iterator[dict[str, Any]]:
    if log.exists():
        with log.open() as file:
            yield from map(json.loads, file)
