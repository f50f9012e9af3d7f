"""Check batches of several records by append-only lists, as Elle does.

A reader of a list sees which appends came earlier, which orders the batches. A cycle in that order is a violation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from msgspec import Struct

__all__ = ["Append", "AppendVerdict", "check_appends"]


Edges = dict[int, dict[int, str]]  # from, to, and why


class Append(Struct, frozen=True):
    """One batch: it read these lists, appended one value each to some of them, and landed as a whole or not at all."""

    client: str
    reads: Mapping[str, tuple[int, ...]]  # what each list held before the batch's own value
    appends: Mapping[str, int]
    landed: bool | None  # None: its answer was lost
    invoked: int
    returned: int | None = None

    def __str__(self) -> str:
        asked = [f"read {name}={list(values)}" for name, values in self.reads.items()]
        return f"{self.client} " + ", ".join([*asked, *(f"append {v} to {n}" for n, v in self.appends.items())])


class AppendVerdict(Struct, frozen=True):
    """`anomalies` is empty, or the batches cannot have landed one after another, each as a whole."""

    anomalies: tuple[str, ...]


def check_appends(history: Iterable[Append]) -> AppendVerdict:
    batches = list(history)
    orders = {name: _longest(name, batches) for name in sorted({n for b in batches for n in (*b.reads, *b.appends)})}
    writers = {(name, value): nth for nth, batch in enumerate(batches) for name, value in batch.appends.items()}
    odd = [*_not_prefixes(batches, orders), *_misread(batches, orders, writers)]
    if odd:
        return AppendVerdict(tuple(odd))
    cycle = _cycle(_edges(batches, orders, writers))
    return AppendVerdict((_told(cycle, batches),) if cycle else ())


def _longest(name: str, batches: Sequence[Append]) -> tuple[int, ...]:
    """Return the order of appends to this list, as far as it was read."""
    seen = [_seen(batch, name) for batch in batches if name in batch.reads and batch.landed]
    return max(seen, key=len, default=())


def _seen(batch: Append, name: str) -> tuple[int, ...]:
    own = (batch.appends[name],) if name in batch.appends else ()
    return batch.reads[name] + own


# -- wrong by themselves -------------------------------------------------------------------------


def _not_prefixes(batches: Sequence[Append], orders: Mapping[str, tuple[int, ...]]) -> Iterator[str]:
    for batch in batches:
        for name in batch.reads if batch.landed else ():
            seen = _seen(batch, name)
            if orders[name][: len(seen)] != seen:
                yield f"{batch}: not how {name} began for others, {list(orders[name])}"


def _misread(
    batches: Sequence[Append], orders: Mapping[str, tuple[int, ...]], writers: Mapping[tuple[str, int], int]
) -> Iterator[str]:
    for name, order in orders.items():
        if len(set(order)) != len(order):
            yield f"{name} holds a value twice: {list(order)}"
        for value in order:
            writer = writers.get((name, value))
            if writer is None:
                yield f"{name} holds {value}, which nobody appended"
            elif batches[writer].landed is False:
                yield f"{name} holds {value}, but its batch was told that nothing was written: {batches[writer]}"


# -- who came after whom -------------------------------------------------------------------------


def _edges(
    batches: Sequence[Append], orders: Mapping[str, tuple[int, ...]], writers: Mapping[tuple[str, int], int]
) -> Edges:
    real = {nth for nth, batch in enumerate(batches) if batch.landed}
    real |= {writers[name, value] for name, order in orders.items() for value in order}
    edges: Edges = {nth: {} for nth in sorted(real)}
    for before, after, why in (*_by_lists(batches, orders, writers), *_by_time(batches, real)):
        if before != after and before in real and after in real:
            edges[before].setdefault(after, why)
    return edges


def _by_lists(
    batches: Sequence[Append], orders: Mapping[str, tuple[int, ...]], writers: Mapping[tuple[str, int], int]
) -> Iterator[tuple[int, int, str]]:
    for name, order in orders.items():
        places = {value: place for place, value in enumerate(order)}
        unseen = [nth for (where, value), nth in writers.items() if where == name and value not in places]
        for first, second in pairwise(order):
            yield writers[name, first], writers[name, second], f"appended to {name} before"
        for nth, batch in enumerate(batches):
            if name in batch.reads and batch.landed:
                read = batch.reads[name]
                if read:
                    yield writers[name, read[-1]], nth, f"was read in {name} by"
                following = [writers[name, order[len(read)]]] if len(read) < len(order) else []
                for later in (*following, *unseen):
                    yield nth, later, f"read {name} before it was changed by"


def _by_time(batches: Sequence[Append], real: set[int]) -> Iterator[tuple[int, int, str]]:
    for one in real:
        ended = batches[one].returned
        for other in real:
            if ended is not None and ended < batches[other].invoked:
                yield one, other, "had ended before"


def _cycle(edges: Edges) -> list[tuple[int, str]]:
    """Return a shortest cycle: each member, and why it comes before the next."""
    found: list[tuple[int, str]] = []
    for start in edges:
        path = _way_back(edges, start)
        if path and (not found or len(path) < len(found)):
            found = path
    return found


def _way_back(edges: Edges, start: int) -> list[tuple[int, str]]:
    came: dict[int, int] = {}
    queue = deque([start])
    while queue:
        here = queue.popleft()
        for there in edges[here]:
            if there == start:
                return _path(edges, came, start, here)
            if there not in came:
                came[there] = here
                queue.append(there)
    return []


def _path(edges: Edges, came: Mapping[int, int], start: int, last: int) -> list[tuple[int, str]]:
    members = [last]
    while members[-1] != start:
        members.append(came[members[-1]])
    members.reverse()
    return [(one, edges[one][other]) for one, other in zip(members, [*members[1:], start], strict=True)]


def _told(cycle: Sequence[tuple[int, str]], batches: Sequence[Append]) -> str:
    lines = [f"  {batches[nth]}\n    {why}" for nth, why in cycle]
    return "\n".join(["Each of these comes before the next, and the last before the first:", *lines])
