"""`app.sleep`: a timer that holds no thread, no coroutine, no memory."""

from __future__ import annotations

from msgspec import Raw

from ...clock import moment
from ...drive import Operation
from ..entry import DONE, WAITS, Entry, Note
from ..nap import Nap
from ..session import Session
from ..stop import Wait

__all__ = ["sleep"]


def sleep(session: Session, seconds: float) -> Operation[None]:
    """Parks the run until its time has come; a short one is slept through in place."""
    name = session.name_for("sleep")
    entry = session.visit(name, "") or _begin(session, name, seconds)
    left = (entry.note.not_before or 0.0) - session.ledger.now()
    if entry.state == DONE:
        return
    if left > session.patience:
        session.halt(Wait(f"sleeps until {moment(session.ledger.now() + left)}", left))
    if left > 0:
        yield from session.ledger.flush()
        yield Nap(session.parts.clock, left)
    session.finished(name, DONE, Note(result=Raw(b"null"), not_before=entry.note.not_before))


def _begin(session: Session, name: str, seconds: float) -> Entry:
    session.refuse_unvisited(name)
    now = session.ledger.now()
    entry = Entry(name, WAITS, Note(not_before=now + seconds), at=now)
    session.ledger.note(entry)
    return entry
