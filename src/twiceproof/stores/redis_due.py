"""Hands out what is due, the longest overdue first across all lanes, in two round trips at most."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from msgspec import Struct

from ..records import Due, Record
from .redis_answers import whole
from .redis_lanes import Lane
from .redis_nodes import Call, Nodes
from .redis_rows import address, encode, micros, record, seconds
from .redis_scripts import Scripts

__all__ = ["hand_out"]

UNSERVED_PAUSE = 1.0


class Peek(Struct, order=True, frozen=True):
    """When something fell due, and where it waits."""

    due_at: int
    lane: int
    queue: str


class Heads(Struct):
    """What the servers have waiting. `missed`: some server did not say."""

    ripe: list[Peek]
    later: list[float]
    now: float
    missed: bool


def hand_out(nodes: Nodes, scripts: Scripts, kind: str, queues: Collection[str], limit: int, hide: float) -> Due:
    heads = _peek(nodes, scripts, kind, list(dict.fromkeys(queues)), limit)
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


def _peek(nodes: Nodes, scripts: Scripts, kind: str, queues: list[str], limit: int) -> Heads:
    groups = nodes.groups(nodes.lanes)
    places = [[(lane, queue) for lane in group for queue in queues] for group in groups]
    calls = [
        Call(group[0], scripts.peek, [encode((limit, [_index(kind, *place) for place in asked]))])
        for group, asked in zip(groups, places, strict=True)
    ]
    replies = nodes.ask(calls)
    heads = Heads([], [], 0.0, missed=False)
    for asked, reply in zip(places, _answered(replies), strict=True):
        if isinstance(reply, Exception):
            heads.missed = True
        else:
            _add(heads, asked, reply)
    return heads


def _add(heads: Heads, asked: Sequence[tuple[Lane, str]], reply: list[Any]) -> None:
    heads.now = seconds(reply[0])
    for (lane, queue), (ripe, later) in zip(asked, reply[1:], strict=True):
        heads.ripe += [Peek(int(score), lane.number, queue) for score in ripe]
        if later is not None:
            heads.later.append(seconds(int(later) - reply[0]))


def _take(
    nodes: Nodes, scripts: Scripts, kind: str, counts: Counter[tuple[int, str]], hide: float
) -> tuple[list[Record], float]:
    groups = nodes.groups([nodes.lanes[number] for number in sorted({lane for lane, _ in counts})])
    asked = [encode((kind, micros(hide), list(_parts(kind, group, counts)))) for group in groups]
    calls = [Call(group[0], scripts.take, [packed]) for group, packed in zip(groups, asked, strict=True)]
    taken: list[tuple[int, Record]] = []
    now = 0.0
    for reply in _answered(nodes.ask(calls)):
        if not isinstance(reply, Exception):
            now = seconds(reply[0])
            taken += _records(reply[1:], kind)
    taken.sort(key=lambda pair: pair[0])
    return [found for _, found in taken], now


def _parts(kind: str, lanes: Sequence[Lane], counts: Counter[tuple[int, str]]) -> Iterator[tuple[str, str, int]]:
    for lane in lanes:
        for (number, queue), count in counts.items():
            if number == lane.number:
                yield lane.prefix, _index(kind, lane, queue), count


def _index(kind: str, lane: Lane, queue: str) -> str:
    return f"{lane.prefix}:d:{kind}\0{queue}"


def _records(rows: list[Any], kind: str) -> Iterator[tuple[int, Record]]:
    for score, member, packed in rows:
        yield int(score), record(address(kind, member), packed)


def _answered(replies: list[Any]) -> list[Any]:
    """Whatever some server has is handed out, also while another is away; if none answers, that is a fault."""
    return replies if any(not isinstance(reply, Exception) for reply in replies) else whole(replies)
