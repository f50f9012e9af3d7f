"""Times, ids and numbers drawn in a flow: ledgered, so that a replay sees the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec
from msgspec import Raw

from .entry import DONE, Note
from .session import Session

__all__ = ["drawn"]

T = TypeVar("T")


def drawn(session: Session, stem: str, kind: type[T], draw: Callable[[], T]) -> T:
    """The first time drawn, ever after read. On record before the next step acts on it."""
    name = session.name_for(stem)
    entry = session.visit(name, "")
    if entry is None:
        session.refuse_unvisited(name)
        entry = session.finished(name, DONE, Note(result=Raw(msgspec.json.encode(draw()))))
    return msgspec.json.decode(entry.note.result, type=kind)
