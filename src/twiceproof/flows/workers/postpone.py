"""Puts off what could not be carried out: due again, but not at once."""

from __future__ import annotations

from ...drive import Operation
from ...records import Record, Replace
from ...stores.base import Store

__all__ = ["postpone"]


def postpone(store: Store, record: Record, seconds: float) -> Operation[None]:
    """Only if nobody has touched it since it was handed out. Everything else about it stays as it is."""
    due = Replace(record.at, None, record.state, version=record.version, queue=record.queue, due_in=seconds)
    yield from store.write(due)
