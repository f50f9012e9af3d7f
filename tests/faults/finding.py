"""The results of one fault: how often it was tried, where it hit, what went wrong, and whether its control failed as it
must.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from msgspec import Struct, field

OFTEN = 30  # a crash point that was hit less often than this in a full run has proved little
SELDOM = 3  # in a short run


class Enough(BaseException):
    """Ends a fault after the first broken promise, past every `except Exception`."""


class Goal(Struct, frozen=True):
    """A minimum for this run."""

    least: int
    reached: int


class Finding(Struct):
    """Filled by a fault while it runs; plain data, so that it can be passed between processes."""

    number: str
    title: str
    seed: int
    share: float  # of the full run
    one_is_enough: bool = False  # the first broken promise ends the run
    seconds: float = 0.0
    figures: dict[str, Goal] = field(default_factory=dict)  # "kills, SQLite" -> at least 12,000
    counts: dict[str, int] = field(default_factory=dict)  # further counts
    coverage: dict[str, int] = field(default_factory=dict)  # crash point -> hits
    violations: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)  # what could not be judged, which counts like a violation
    controls: dict[str, str] = field(default_factory=dict)  # protection taken away -> what went wrong; "" is a failure
    skipped: list[str] = field(default_factory=list)  # and why

    # -- while it runs ---------------------------------------------------------------------------

    def reach(self, what: str, least: int, reached: int) -> None:
        self.figures[what] = Goal(least, reached)

    def count(self, what: str, more: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + more

    def hit(self, point: str, times: int = 1) -> None:
        self.coverage[point] = self.coverage.get(point, 0) + times

    def violated(self, what: str) -> None:
        """Report a violation so that it can be reproduced: the store, the seed, the key, what was expected and what was
        seen.
        """
        self.violations.append(what)
        if self.one_is_enough:
            raise Enough

    def control(self, taken_away: str, went_wrong: str) -> None:
        """The same run without the protection must go wrong, or the fault is not counted."""
        self.controls[taken_away] = went_wrong

    # -- afterwards ------------------------------------------------------------------------------

    @property
    def not_tried(self) -> str:
        """Return why nothing was tried, for example because a tool is missing; empty if something was."""
        return "" if self.figures or self.violations or self.unknown else "; ".join(self.skipped)

    @property
    def holds(self) -> bool:
        return not any(self.problems())

    def problems(self) -> Iterator[str]:
        """Return each reason not to trust this run."""
        yield from self.violations
        yield from (f"unknown: {what}" for what in self.unknown)
        yield from (f"control without effect: {name}" for name, wrong in self.controls.items() if not wrong)
        for what, goal in self.figures.items():
            if goal.reached < goal.least:
                yield f"too few: {what}: {goal.reached:,} of {goal.least:,}"
        least = OFTEN if self.share >= 1 else SELDOM
        for point, hits in self.coverage.items():
            if hits < least:
                yield f"hit too seldom: {point}: {hits} of {least}"

    def kinds(self) -> Counter[str]:
        """Return the violations by their beginnings, if there are too many to read."""
        return Counter(violation.partition(":")[0] for violation in self.violations)
