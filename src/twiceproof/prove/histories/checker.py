"""Judges a history: does one order, in which each operation happens at one moment between its invocation and its
answer, explain all answers?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from msgspec import Struct

from .model import Model, State
from .operation import Operation
from .search import search

__all__ = ["BUDGET", "Linearizable", "Unknown", "Verdict", "Violation", "check"]

PATIENCE = 200  # more states than the verdict took: what takes longer to leave out stays in the witness
BUDGET = 200_000  # states tried per key; histories of a hundred operations need a few hundred


class Linearizable(Struct, frozen=True):
    tried: int = 0


class Violation(Struct, frozen=True):
    """As few operations of one key as show it, in the order in which they began."""

    key: str
    witness: tuple[Operation, ...]
    culprits: tuple[Operation, ...]  # the answers that fit nowhere, after all that could be put in order
    state: State  # what the claim is then

    def __str__(self) -> str:
        told = "; ".join(map(str, self.culprits))
        return f"{self.key}: no order explains {told}, when the claim is {self.state}"


class Unknown(Struct, frozen=True):
    """The search was given up. Not a pass: whoever asked must be told."""

    key: str
    budget: int

    def __str__(self) -> str:
        return f"{self.key}: undecided after {self.budget:,} states; raise the budget, or make the history shorter"


Verdict = Linearizable | Violation | Unknown


def check(history: Iterable[Operation], *, model: Model | None = None, budget: int = BUDGET) -> Verdict:
    """Keys are judged one by one: a history is linearizable if those of its keys are."""
    model = model or Model()
    tried = 0
    undecided: Unknown | None = None
    for key, operations in _by_key(history):
        found = search(operations, model, budget)
        tried += found.tried
        if found.explained is None:
            undecided = undecided or Unknown(key, budget)
        elif not found.explained:
            return _violation(key, operations, model, found.tried + PATIENCE)
    return undecided or Linearizable(tried)


def _by_key(history: Iterable[Operation]) -> list[tuple[str, list[Operation]]]:
    ordered = sorted(history, key=lambda one: (one.key, one.invoked))
    return [(key, list(group)) for key, group in groupby(ordered, key=lambda one: one.key)]


def _violation(key: str, operations: Sequence[Operation], model: Model, budget: int) -> Violation:
    witness = _without_lookers(_shortest(operations, model, budget), model, budget)
    found = search(witness, model, budget)
    left = [one for nth, one in enumerate(witness) if not found.best >> nth & 1 and one.answer is not None]
    return Violation(key, tuple(witness), tuple(left), found.state)


def _shortest(operations: Sequence[Operation], model: Model, budget: int) -> list[Operation]:
    """The history up to the first moment at which it was broken. What was under way then has no answer yet."""
    moments = sorted(one.returned for one in operations if one.returned is not None and one.answer is not None)
    low, high = 0, len(moments) - 1
    while low < high:
        middle = (low + high) // 2
        if _is_broken(_cut(operations, moments[middle]), model, budget):
            high = middle
        else:
            low = middle + 1
    return _cut(operations, moments[low])


def _cut(operations: Sequence[Operation], tick: int) -> list[Operation]:
    return [cut for one in operations if (cut := one.cut_at(tick)) is not None]


def _without_lookers(operations: Sequence[Operation], model: Model, budget: int) -> list[Operation]:
    """Leave out what the violation does not need. Only what changes nothing may go: without a take, what follows
    from it would look wrong by itself."""
    kept = list(operations)
    for one in operations:
        rest = [other for other in kept if other is not one]
        if not one.changes and _is_broken(rest, model, budget):
            kept = rest
    return kept


def _is_broken(operations: Sequence[Operation], model: Model, budget: int) -> bool:
    return search(operations, model, budget).explained is False
