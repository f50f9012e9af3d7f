"""The report of a proof: plain data for tables, JSON and test runners."""

from __future__ import annotations

from msgspec import Struct

from .scenes.outcome import Beat
from .scenes.verdict import Verdict
from .wrong import Wrong

__all__ = ["Report"]


class Report(Struct, frozen=True):
    """`planned` is how many scenes are known, `verdicts` those that were played: a budget may end it early."""

    flow: str
    key: str
    store: str
    planned: int
    verdicts: tuple[Verdict, ...]
    expected: dict[str, int]  # what one clean run does to the outside
    unobserved: tuple[str, ...] = ()  # steps that acted, and changed nothing that was looked at
    wrong: tuple[Wrong, ...] = ()  # declarations that what was played contradicts
    worst: tuple[Beat, ...] = ()  # the worst case, moment by moment
    worst_scene: str = ""
    clocks: tuple[str, ...] = ()  # what the key is made with that no play moves: a later delivery is another one
    guard: str = "kernel"  # who kept connections from leaving: "python" sees those of Python's sockets and psycopg only
    compares_result: bool = True  # not where two clean runs return different things, such as ids

    @property
    def bad(self) -> list[Verdict]:
        return [verdict for verdict in self.verdicts if not verdict.good]

    @property
    def good(self) -> bool:
        return bool(self.verdicts) and not self.bad

    @property
    def complete(self) -> bool:
        return len(self.verdicts) == self.planned
