"""How long and how much is measured."""

from __future__ import annotations

from msgspec import Struct

__all__ = ["FULL", "QUICK", "SECTIONS", "Plan"]

SECTIONS = (
    "sqlite",
    "postgres",
    "valkey",
    "rows",
    "peers",
    "scale",
    "flows",
    "files",
    "webhooks",
    "dashboard",
    "middleware",
    "effects",
    "messages",
    "reconcile",
    "copy",
    "import",
)


class Plan(Struct, frozen=True):
    """A slot is the time one contender gets in one round."""

    name: str
    rounds: int
    slot: float
    replayed: int  # finished claims that the replays go through
    few: int  # finished claims in the small store of the scale section
    many: int  # and in the large one
    many_valkey: int  # which lives in memory
    scale_slot: float
    scale_rounds: int
    interpreters: int
    steps: tuple[int, ...]  # how long the flows are
    flow_rounds: int  # of flows with many callers, where a peer's one turn takes seconds
    replayed_flows: int
    forgotten: int  # runs whose time is over
    interrupted: int  # runs that a killed process leaves behind
    waiting: int  # runs that wait in a store
    undelivered: int  # messages that wait in a store
    passed: int  # messages that have passed through a store
    slow_senders: int  # connections that drip bytes
    reconciled: tuple[int, int]  # rows of each of two sources that are compared: few, and many
    copied: int  # claims of a ledger that is copied
    releases: int  # of one flow
    shown: dict[str, int]  # runs of five steps in the ledgers whose pages are opened


FULL = Plan(
    "full",
    rounds=7,
    slot=0.25,
    replayed=1_000,
    few=10_000,
    many=1_000_000,
    many_valkey=200_000,
    scale_slot=0.4,
    scale_rounds=7,
    interpreters=7,
    steps=(0, 1, 5, 10),
    flow_rounds=3,
    replayed_flows=50,
    forgotten=3_000,
    interrupted=1_000,
    waiting=100_000,
    undelivered=1_000_000,
    passed=1_000_000,
    slow_senders=500,
    reconciled=(1_000_000, 10_000_000),
    copied=1_000_000,
    releases=1_000,
    shown={"SQLite": 200_000, "PostgreSQL": 1_000_000},
)
QUICK = Plan(
    "quick",
    rounds=2,
    slot=0.03,
    replayed=100,
    few=500,
    many=5_000,
    many_valkey=2_000,
    scale_slot=0.05,
    scale_rounds=2,
    interpreters=2,
    steps=(1, 5),
    flow_rounds=1,
    replayed_flows=5,
    forgotten=50,
    interrupted=20,
    waiting=1_000,
    undelivered=2_000,
    passed=10_000,
    slow_senders=20,
    reconciled=(2_000, 10_000),
    copied=2_000,
    releases=20,
    shown={"SQLite": 300, "PostgreSQL": 300},
)
