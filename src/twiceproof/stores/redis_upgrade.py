"""Takes up a Redis store of an earlier schema, which had no heads: each queue by the time at which its first is due."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from .redis_faults import understood
from .redis_links import Command, Node
from .redis_nodes import Nodes

__all__ = ["add_heads"]

AT_ONCE = 1_000
DUE_INDEX = re.compile(rb"(twiceproof:\{lane-\d+\}):d:([^\0]+)\0(.*)", re.DOTALL)


def add_heads(nodes: Nodes) -> None:
    """For every due index there is. No head is made later than it is: others may write meanwhile."""
    for node in nodes.all():
        cursor: Any = b"0"
        while True:
            cursor, keys = _run(nodes, node, [("SCAN", cursor, "MATCH", "twiceproof:{lane-*}:d:*", "COUNT", AT_ONCE)])[
                0
            ]
            _add(nodes, node, keys)
            if int(cursor) == 0:
                break


def _add(nodes: Nodes, node: Node, keys: Sequence[bytes]) -> None:
    named = [(key, found) for key in keys if (found := DUE_INDEX.fullmatch(key))]
    firsts = _run(nodes, node, [("ZRANGE", key, 0, 0, "WITHSCORES") for key, _ in named])
    heads: list[Command] = [
        ("ZADD", name[1] + b":h:" + name[2], "LT", first[1], name[3])
        for (_, name), first in zip(named, firsts, strict=True)
        if first
    ]
    _run(nodes, node, heads)


def _run(nodes: Nodes, node: Node, commands: Sequence[Command]) -> list[Any]:
    replies = nodes.run(node, *commands) if commands else []
    for reply in replies:
        if isinstance(reply, Exception):
            raise understood(reply)
    return replies
