"""The search for one order that explains every answer: Wing and Gong's, remembering what was tried, as Lowe does."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from .model import FREE, NEVER, Model, State, When
from .operation import Operation

__all__ = ["Found", "search"]

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
        """Every way to go on, the likeliest last: what returned first, and what was never answered only if need be."""
        mask, state, now = node
        nths, ceiling = self._candidates(mask)
        ways: list[tuple[int, Node]] = []
        for nth in nths:
            operation = self.operations[nth]
            sent = 0 if self.must[nth] else self.ends[nth]
            when = When(max(now, operation.invoked), min(ceiling, self.ends[nth]), operation.invoked, sent)
            if when.earliest > when.latest:
                continue  # its caller had given up, or gone on, before
            for after in self.model.after(state, operation, when):
                way = (mask | 1 << nth, after, when.earliest)
                if after is state and self.idle[nth] and operation.invoked <= now:
                    return [way]  # changes nothing, here or elsewhere, and holds up nobody: it may as well go here
                ways.append((self.ends[nth] if self.must[nth] else NEVER + nth, way))
        ways.sort(key=lambda way: -way[0])
        return [way for _, way in ways]

    def _candidates(self, mask: int) -> tuple[list[int], int]:
        """Who can be next: whoever began before the first of those left came back."""
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
        """Of several that are one and the same the first goes first, or all their orders would be tried."""
        return self.twins[nth] and not mask >> nth - 1 & 1


def search(operations: Sequence[Operation], model: Model, budget: int) -> Found:
    """`best` is a mask over the operations in the order of their invocation."""
    return _Search(operations, model).run(budget)
