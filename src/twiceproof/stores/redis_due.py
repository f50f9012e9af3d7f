"""Hands out what is due, the longest overdue first across all lanes, in two round trips where all of it is asked for.

The queues that are asked for are not sent: there may be many thousands. A lane knows which of its queues come first,
and those that somebody else serves are left out the next time.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from msgspec import Struct

from ..records import Due, Record
from .heads import FEW
from .redis_answers import whole
from .redis_lanes import Lane
from .redis_nodes import Call, Nodes
from .redis_rows import address, encode, micros, record, seconds
from .redis_scripts import Scripts

__all__ = ["Others", "hand_out"]

UNSERVED_PAUSE = 1.0
MOST_NAMES = 1_000  # of others' queues that are remembered
ROUNDS, FOR_THE_NEXT = 20, 3  # in which a look finds its way past others' queues, and past those that come later


class Peek(Struct, order=True, frozen=True):
    """When something fell due, and where it waits."""

    due_at: int
    lane: int
    queue: str


class Heads(Struct):
    """What the servers have waiting. `missed`: some server did not say all."""

    ripe: list[Peek]
    later: list[float]
    now: float
    missed: bool


class Others:
    """Queues that were met and not asked for, by kind: of another worker's flows, or of what is swept."""

    def __init__(self) -> None:
        self._names: dict[str, dict[str, None]] = {}

    def beside(self, kind: str, asked: Collection[str]) -> list[str]:
        return [name for name in list(self._names.get(kind, ())) if name not in asked]

    def add(self, kind: str, names: Collection[str]) -> None:
        known = self._names.setdefault(kind, {})
        known.update(dict.fromkeys(names))
        if len(known) > MOST_NAMES:
            self._names[kind] = {}  # they are met again


def hand_out(
    nodes: Nodes, scripts: Scripts, others: Others, kind: str, queues: Collection[str], limit: int, hide: float
) -> Due:
    asked = queues if isinstance(queues, set | frozenset | dict) else frozenset(queues)
    heads = _peek(nodes, scripts, others, kind, asked, limit)
    chosen = heapq.nsmallest(limit, heads.ripe)
    counts = Counter((peek.lane, peek.queue) for peek in chosen)
    records, now = _take(nodes, scripts, kind, counts, hide) if counts else ([], heads.now)
    if len(heads.ripe) > len(chosen):
        heads.later.append(0.0)
    if records:
        heads.later.append(hide)
    if heads.missed:
        heads.later.append(UNSERVED_PAUSE)
    return Due(records, min(heads.later, default=None), now)


def _peek(nodes: Nodes, scripts: Scripts, others: Others, kind: str, asked: Collection[str], limit: int) -> Heads:
    """Until each lane has said what comes first of what is asked for, or that there is nothing."""
    heads = Heads([], [], 0.0, missed=False)
    few = len(asked) <= FEW
    names = list(asked) if few else others.beside(kind, asked)
    left = list(nodes.lanes)
    for round_ in range(ROUNDS):
        met: set[str] = set()
        answers = list(_ask(nodes, scripts, heads, (kind, limit, names, few), left))
        left = [lane for lane, answer in answers if not _add(heads, lane, answer, asked, limit, met, round_)]
        others.add(kind, met)
        if not left:
            break
        names += met
    return heads


def _ask(
    nodes: Nodes, scripts: Scripts, heads: Heads, asked: tuple[Any, ...], lanes: Sequence[Lane]
) -> Iterator[tuple[Lane, Any]]:
    groups = nodes.groups(lanes)
    calls = [Call(group[0], scripts.peek, [encode((*asked, [lane.prefix for lane in group]))]) for group in groups]
    for group, reply in zip(groups, _answered(nodes.ask(calls)), strict=True):
        if isinstance(reply, Exception):
            heads.missed = True
        else:
            heads.now = seconds(reply[0])
            yield from zip(group, reply[1:], strict=True)


def _add(heads: Heads, lane: Lane, answer: Any, asked: Collection[str], limit: int, met: set[str], round_: int) -> bool:
    """False: others' queues, or heads that were too early, were in the way: this lane is to be asked again."""
    ripe, full, later, more = answer
    ours = [(queue, scores) for name, *scores in ripe if (queue := name.decode()) in asked]
    following = [seconds(int(at)) - heads.now for name, at in later if name.decode() in asked]
    met.update(queue for name, *_ in (*ripe, *later) if (queue := name.decode()) not in asked)
    hidden = full and len(ours) < limit
    unknown = more and not following
    if (hidden and round_ < ROUNDS - 1) or (unknown and round_ < FOR_THE_NEXT):
        return False
    heads.ripe += [Peek(int(score), lane.number, queue) for queue, scores in ours for score in scores]
    heads.later += following
    heads.missed = heads.missed or bool(hidden or unknown)
    return True


def _take(
    nodes: Nodes, scripts: Scripts, kind: str, counts: Counter[tuple[int, str]], hide: float
) -> tuple[list[Record], float]:
    groups = nodes.groups([nodes.lanes[number] for number in sorted({lane for lane, _ in counts})])
    asked = [encode((kind, micros(hide), list(_parts(group, counts)))) for group in groups]
    calls = [Call(group[0], scripts.take, [packed]) for group, packed in zip(groups, asked, strict=True)]
    taken: list[tuple[int, Record]] = []
    now = 0.0
    for reply in _answered(nodes.ask(calls)):
        if not isinstance(reply, Exception):
            now = seconds(reply[0])
            taken += _records(reply[1:], kind)
    taken.sort(key=lambda pair: pair[0])
    return [found for _, found in taken], now


def _parts(lanes: Sequence[Lane], counts: Counter[tuple[int, str]]) -> Iterator[tuple[str, str, int]]:
    for lane in lanes:
        for (number, queue), count in counts.items():
            if number == lane.number:
                yield lane.prefix, queue, count


def _records(rows: list[Any], kind: str) -> Iterator[tuple[int, Record]]:
    for score, member, packed in rows:
        yield int(score), record(address(kind, member), packed)


def _answered(replies: list[Any]) -> list[Any]:
    """Whatever some server has is handed out, also while another is away; if none answers, that is a fault."""
    return replies if any(not isinstance(reply, Exception) for reply in replies) else whole(replies)
