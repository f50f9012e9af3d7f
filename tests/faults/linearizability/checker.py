"""Check a history for linearizability.

A history is correct if one order of all operations explains all answers, with each operation taking effect at one
moment between its invocation and its answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from msgspec import Struct

from tests.faults.linearizability.model import FREE, NEVER, Model, Operation, State, When

__all__ = [
    "BUDGET",
    "Found",
    "Linearizable",
    "Unknown",
    "Verdict",
    "Violation",
    "check",
    "draw",
    "draw_violation",
    "search",
]


Node = tuple[int, State, int]  # which operations are in order already, what the claim is then, and not before when


class Found(Struct, frozen=True):
    """`explained` is None if the budget ran out first. The rest tells how far the search came."""

    explained: bool | None
    tried: int
    best: int = 0
    state: State = FREE


class _Search:
    def __init__(self, operations: Sequence[Operation], model: Model) -> None:
        self.operations = sorted(operations, key=lambda one: one.invoked)
        self.model = model
        self.ends = [NEVER if one.returned is None else one.returned for one in self.operations]
        self.must = [one.answer is not None for one in self.operations]
        self.idle = [one.answer is not None and not one.changes for one in self.operations]
        pairs = zip([None, *self.operations], self.operations, strict=False)
        self.twins = [one is not None and one.answer is None and one == other for one, other in pairs]
        self.wanted = sum(1 << nth for nth, must in enumerate(self.must) if must)

    def run(self, budget: int) -> Found:
        stack: list[Node] = [(0, FREE, 0)]
        seen: set[tuple[int, State]] = set()
        best, best_state = 0, FREE
        while stack:
            node = stack.pop()
            if node[0] & self.wanted == self.wanted:
                return Found(True, len(seen), *node[:2])
            if node[:2] in seen:
                continue
            if len(seen) >= budget:
                return Found(None, len(seen))
            seen.add(node[:2])
            if (node[0] & self.wanted).bit_count() >= (best & self.wanted).bit_count():
                best, best_state = node[:2]
            stack += self._next(node)
        return Found(False, len(seen), best, best_state)

    def _next(self, node: Node) -> list[Node]:
        """Return every continuation, the likeliest last: first what returned first; unanswered operations only if
        necessary.
        """
        mask, state, now = node
        nths, ceiling = self._candidates(mask)
        ways: list[tuple[int, Node]] = []
        for nth in nths:
            operation = self.operations[nth]
            sent = 0 if self.must[nth] else self.ends[nth]
            when = When(max(now, operation.invoked), min(ceiling, self.ends[nth]), operation.invoked, sent)
            if when.earliest > when.latest:
                continue  # its caller had given up, or continued, before
            for after in self.model.after(state, operation, when):
                way = (mask | 1 << nth, after, when.earliest)
                if after is state and self.idle[nth] and operation.invoked <= now:
                    return [way]  # changes nothing, here or elsewhere, and blocks no other: it can be placed here
                ways.append((self.ends[nth] if self.must[nth] else NEVER + nth, way))
        ways.sort(key=lambda way: -way[0])
        return [way for _, way in ways]

    def _candidates(self, mask: int) -> tuple[list[int], int]:
        """Return the candidates for the next place: operations that began before the first remaining one returned."""
        nths: list[int] = []
        ceiling = NEVER
        first = (~mask & (mask + 1)).bit_length() - 1
        for nth in range(first, len(self.operations)):
            if mask >> nth & 1 or self._is_twin(nth, mask):
                continue
            if self.operations[nth].invoked > ceiling:
                break
            nths.append(nth)
            if self.must[nth]:
                ceiling = min(ceiling, self.ends[nth])
        return [nth for nth in nths if self.operations[nth].invoked <= ceiling], ceiling

    def _is_twin(self, nth: int, mask: int) -> bool:
        """Equal operations keep their order, so that not all permutations are tried."""
        return self.twins[nth] and not mask >> nth - 1 & 1


def search(operations: Sequence[Operation], model: Model, budget: int) -> Found:
    """`best` is a mask over the operations in the order of their invocation."""
    return _Search(operations, model).run(budget)


PATIENCE = 200  # more states than the verdict took: an operation that takes longer to leave out stays in the witness
BUDGET = 200_000  # states tried per key; histories of a hundred operations need a few hundred


class Linearizable(Struct, frozen=True):
    tried: int = 0


class Violation(Struct, frozen=True):
    """A small set of operations of one key that shows the violation, in the order in which they began."""

    key: str
    witness: tuple[Operation, ...]
    culprits: tuple[Operation, ...]  # the answers that fit nowhere after those that could be ordered
    state: State  # what the claim is then

    def __str__(self) -> str:
        told = "; ".join(map(str, self.culprits))
        return f"{self.key}: no order explains {told}, when the claim is {self.state}"


class Unknown(Struct, frozen=True):
    """The search was given up. This does not count as passed, and must be reported."""

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
    """Return the history up to the first moment of the violation. Operations under way then have no answer yet."""
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
    """Leave out what the violation does not need. Only operations that change nothing may go: without a take, the
    operations after it would look wrong themselves.
    """
    kept = list(operations)
    for one in operations:
        rest = [other for other in kept if other is not one]
        if not one.changes and _is_broken(rest, model, budget):
            kept = rest
    return kept


def _is_broken(operations: Sequence[Operation], model: Model, budget: int) -> bool:
    return search(operations, model, budget).explained is False


def draw(operations: Iterable[Operation]) -> str:
    """Draw one line for each operation, in the order in which they began. Moments are drawn at equal distances."""
    ordered = sorted(operations, key=lambda one: one.invoked)
    moments = sorted({tick for one in ordered for tick in (one.invoked, one.returned) if tick is not None})
    column = {tick: nth for nth, tick in enumerate(moments)}
    bars = [_bar(one, column, len(moments)) for one in ordered]
    words = [str(one).partition(" → ") for one in ordered]
    width = max((len(asked) for asked, _, _ in words), default=0)
    return "\n".join(f"{asked:{width}}  {bar}  {told}" for bar, (asked, _, told) in zip(bars, words, strict=True))


def _bar(one: Operation, column: dict[int, int], width: int) -> str:
    start = column[one.invoked]
    if one.answer is None:  # it may still happen at any of the moments that are dotted
        end = width if one.returned is None else column[one.returned]
        return (" " * start + "├" + "┄" * (end - start - 1)).ljust(width)
    end = start if one.returned is None else column[one.returned]
    return (" " * start + ("│" if end == start else "├" + "─" * (end - start - 1) + "┤")).ljust(width)


def draw_violation(violation: Violation, *, origin: str = "") -> str:
    """Draw the source (such as a seed), the operations, and the answers that fit nowhere."""
    where = f"{violation.key}, {origin}" if origin else violation.key
    lines = [
        f"{where}: no order of these explains every answer",
        draw(violation.witness),
        f"After all that can be put in order the claim is {violation.state}. Then this is impossible:",
        *(f"  {one}" for one in violation.culprits),
    ]
    return "\n".join(lines)
