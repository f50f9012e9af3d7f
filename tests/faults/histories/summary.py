"""The results of many histories, as plain data."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct, field

from tests.faults.linearizability import Linearizable, Operation, Unknown, Verdict
from tests.faults.linearizability.checker import draw_violation


class Summary(Struct):
    """`violations` and `unknown` are empty, or something is wrong: each is a text that names its seed."""

    where: str
    seed: int
    histories: int = 0
    operations: int = 0
    unanswered: int = 0
    repeated: int = 0  # histories that were played twice
    seconds: float = 0.0
    checking: float = 0.0  # of these
    faults: dict[str, int] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        return not self.violations and not self.unknown

    def count(self, operations: int, unanswered: int) -> None:
        self.histories += 1
        self.operations += operations
        self.unanswered += unanswered

    def add(self, history: Iterable[Operation], verdict: Verdict, origin: str) -> None:
        answered = [one.answer is not None for one in history]
        self.count(len(answered), answered.count(False))
        if isinstance(verdict, Unknown):
            self.unknown.append(f"{origin}: {verdict}")
        elif not isinstance(verdict, Linearizable):
            self.violations.append(draw_violation(verdict, origin=origin))

    def __str__(self) -> str:
        return (
            f"{self.where}, seed {self.seed}: {self.histories:,} histories, {self.operations:,} operations "
            f"({self.unanswered:,} without an answer) in {self.seconds:.1f} s, {self.checking:.1f} s of it checking; "
            f"{len(self.violations)} violations, {len(self.unknown)} unknown"
        )
