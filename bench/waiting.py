"""Fills a store with waiting runs or messages, in bulk: one is made as usual, the others are its copies."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from twiceproof import App, Waiting
from twiceproof.claims.claim import address_of, run_id
from twiceproof.operations import block
from twiceproof.records import Record

from .contenders.picking import FLOW, make_waiting_flow
from .orders import TENANT
from .sites import Site

__all__ = ["fill_undelivered", "fill_waiting"]

FIRST = "run-00000000"
SECONDS_APART = 1.0


def fill_waiting(site: Site, url: str, count: int) -> None:
    site.insert(url, itertools.chain.from_iterable(_copies(_first(url), count)))


def fill_undelivered(site: Site, url: str, first: Record, count: int) -> None:
    """Copy a message so many times, under other keys; each is due a moment after the one before it."""
    key = first.at.space.rpartition("/")[2]
    spaces = (f"{first.at.space[: -len(key)]}copy-{number:08d}" for number in range(count))
    site.insert(url, (_row(first, space, key, number / 1e4) for number, space in enumerate(spaces)))


def _first(url: str) -> list[Record]:
    """What the store holds of a run that sleeps for 30 days: its claim and its one entry."""
    with App(url) as app:
        with suppress(Waiting):
            make_waiting_flow(app)(FIRST, 30)
        space = address_of(TENANT, FLOW, FIRST).space
        return [record for kind in ("run", "step") for record in _records(app, kind, space)]


def _records(app: App, kind: str, space: str) -> list[Record]:
    return list(block(iter(app.store.scan(kind, space=space))).records)


def _copies(records: list[Record], count: int) -> Iterator[list[tuple[Any, ...]]]:
    space = records[0].at.space
    for number in range(1, count):
        key = f"run-{number:08d}"
        own = space.replace(FIRST, key)
        yield [_row(record, own, key, number * SECONDS_APART) for record in records]


def _row(record: Record, space: str, key: str, later: float) -> tuple[Any, ...]:
    """In the order of the columns. A copy has its own key and run id, and its own time to wake up."""
    body = record.body.replace(run_id(record.at.space), run_id(space)).replace(FIRST, key)
    due_at = None if record.due_at is None else record.due_at + later
    return (
        space,
        record.at.kind,
        record.at.key,
        record.state,
        int(record.version),
        record.fence,
        record.nonce,
        record.created_at,
        record.updated_at,
        record.lease_until,
        record.queue,
        due_at,
        body,
    )
