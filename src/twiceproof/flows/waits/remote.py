"""Remote work: started once, waited for by callback, never started again by a retry or a replay."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import Raw

from ...drive import Operation, await_
from ...errors import Misuse
from ...records import Address, Write
from ..context import Unwind
from ..engine import Plan
from ..entry import DONE, FAILED, UNKNOWN, WAITS, Entry, Note
from ..names import effect_key
from ..repeat import NEVER
from ..retry import Retry
from ..session import Session
from ..step import Step, called_with
from ..stop import Review
from .arrivals import KIND as ARRIVAL
from .callbacks import callback_url
from .waiting import Pending, arrived, awaited, timed_out, wait_name

__all__ = ["remote"]


class _Proof(Pending):
    """A callback that also proves what nobody could say: that the work was started."""

    def __init__(self, name: str, seconds: float | None, start: str) -> None:
        super().__init__(wait_name(name), f"waits for {name} from a start of unknown outcome", seconds)
        self._start = start

    def close(self, session: Session) -> Operation[Sequence[Write]]:
        """Not a time-out: a person must say whether it was started. Then the time runs anew."""
        old = session.ledger.entries[self.name]
        session.ledger.note(Entry(self.name, WAITS, Note(), old.version, session.ledger.now()))
        yield from session.ledger.flush()
        session.halt(Review(f"{self._start}: nobody knows whether it was started, and no callback came in time"))


def remote(
    session: Session, start: Callable[..., Any], name: str, seconds: float | None, retry: Retry
) -> Operation[Any]:  # fmt: skip
    """What the callback said. The start is a step that is never repeated blindly."""
    step_name = f"start:{name}"
    url = yield from callback_url(session, name)
    sure = yield from _started(session, _step_of(session, start, retry), step_name, name, url)
    pending = Pending(wait_name(name), f"waits for {name}", seconds) if sure else _Proof(name, seconds, step_name)
    note = yield from awaited(session, pending)
    if not sure:
        _proved(session, step_name)
    if not note.result:
        raise timed_out(session, f"{name} was started, and nothing came back in time", name)
    return msgspec.json.decode(note.result)


def _started(session: Session, step: Step, step_name: str, name: str, url: str) -> Operation[bool]:
    """False: nobody knows. The callback will tell, so nothing is started again and nobody is asked yet."""
    entry = session.ledger.entries.get(step_name)
    if entry is not None and entry.state not in (DONE, FAILED):  # what the flow was told once, it is told again
        came = yield from arrived(session, Address(session.space, ARRIVAL, wait_name(name)))
        if came is not None:
            session.visit(step_name, entry.note.asked)
            return False
    given = called_with(step.function, {"effect_key": effect_key(session.space, step_name)})
    try:
        yield from session.step(step, (url,), given, name=step_name)
    except Unwind:
        after = session.ledger.entries.get(step_name)
        if after is None or after.state != UNKNOWN:
            raise
        session.take_back()  # it is too early for a person
        return False
    return True


def _proved(session: Session, step_name: str) -> None:
    entry = session.ledger.entries[step_name]
    note = msgspec.structs.replace(entry.note, result=Raw(b"null"), fault=None, reason="its callback arrived")
    session.finished(step_name, DONE, note)


def _step_of(session: Session, start: Callable[..., Any], retry: Retry) -> Step:
    return Step(_fitting(session, start), Plan(NEVER, retry), name="start")


def _fitting(session: Session, start: Callable[..., Any]) -> Callable[..., Any]:
    """An `async def` flow awaits its start; a plain function goes to a thread, or it would hold up the loop."""
    if not callable(start):
        raise Misuse("app.remote needs a function that starts the work: start=fn, called with the callback's URL.")
    if session.drive is not await_:
        if inspect.iscoroutinefunction(start):
            raise Misuse("An `async def` start belongs to an `async def` flow; make one of the two the other's kind.")
        return start
    if inspect.iscoroutinefunction(start):
        return start

    @functools.wraps(start)
    async def on_a_thread(*args: Any, **kwargs: Any) -> Any:
        import asyncio

        return await asyncio.to_thread(start, *args, **kwargs)

    return on_a_thread
