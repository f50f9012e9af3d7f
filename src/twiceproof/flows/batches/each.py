"""`app.each`: a step for every item. An item that fails, waits or is in doubt does not hold up the others."""

from __future__ import annotations

import logging
from typing import Any

from ...drive import Operation, await_, block
from ...errors import Misuse, StepFailed
from ..context import plain_session
from ..entry import DONE, FAILED
from ..session import Session
from .abreast import Abreast
from .batch import Batch, ItemDone, ItemFailed
from .gathering import raise_what_counts

__all__ = ["CONCURRENCY", "each"]

log = logging.getLogger("twiceproof")

CONCURRENCY = 8
REPORT_EVERY = 5.0  # seconds


def each(session: Session, batch: Batch, concurrency: int, *, collect: bool) -> Operation[list[Any]]:
    """What the ledger knows is answered at once; the rest is done, several at a time."""
    _check(session, batch, concurrency)
    session.refuse_if_stopped()
    yield from session.ledger.flush()
    todo = yield from _replay(session, batch)
    if todo:
        yield from _carry_out(session, batch, todo, concurrency)
    elif len(batch):
        session.pass_by()  # in the first run it was a gathering
    return _outcomes(batch) if collect else batch.values(session.claim.run, undoable=_is_undoable(session))


def _is_undoable(session: Session) -> bool:
    """Whether something is undone if the run fails here: then it cannot be tried again."""
    entries = session.ledger.entries
    done = [calling for name, calling in session.calls.items() if name in entries and entries[name].state == DONE]
    return any(calling.step.undo is not None for calling in done)


def _check(session: Session, batch: Batch, concurrency: int) -> None:
    if concurrency < 1:
        raise Misuse(f"concurrency={concurrency} lets nothing run; give 1 or more.")
    if not batch.step.is_async:
        plain_session(batch.step.name)
    if batch.step.is_async and session.drive is not await_:
        raise Misuse(f"{batch.step.name} is an `async def` step; call app.each in an `async def` flow, and await it.")


def _replay(session: Session, batch: Batch) -> Operation[list[int]]:
    """Answers what is done or failed from the ledger. The numbers of the others are returned."""
    todo = []
    entries = session.ledger.entries
    for number in range(len(batch)):
        entry = entries.get(batch.name(number))
        if entry is not None and entry.state in (DONE, FAILED):
            yield from _item(session, batch, number)
        else:
            todo.append(number)
    return todo


def _called(session: Session, batch: Batch, number: int) -> Operation[Any]:
    return session.step(batch.step, (batch.items[number], *batch.args), batch.kwargs, name=batch.name(number))


def _item(session: Session, batch: Batch, number: int) -> Operation[None]:
    try:
        value = yield from _called(session, batch, number)
    except StepFailed as error:
        batch.failed(number, error.data["fault"])
    else:
        batch.done(number, value)


def _carry_out(session: Session, batch: Batch, todo: list[int], concurrency: int) -> Operation[None]:
    report = Report(session, batch, len(batch) - len(todo))
    drive = await_ if batch.step.is_async else block

    def call(index: int) -> Any:
        return drive(_reported(report, _item(session, batch, todo[index])))

    branches = session.fork(len(todo), alone=True)
    try:
        findings = yield Abreast(branches, call, concurrency)
    finally:
        session.join()
    yield from session.ledger.flush()
    raise_what_counts(session, branches, findings)


def _reported(report: Report, item: Operation[None]) -> Operation[None]:
    yield from item
    report.one_more()


def _outcomes(batch: Batch) -> list[ItemDone[Any] | ItemFailed]:
    return [outcome for outcome in batch.outcomes if outcome is not None]


class Report:
    """A line in the log now and then, of a batch that takes its time."""

    def __init__(self, session: Session, batch: Batch, settled: int) -> None:
        self._batch = batch
        self._run = session.claim.run
        self._monotonic = session.parts.clock.monotonic
        self._next = self._monotonic() + REPORT_EVERY
        self._settled = settled

    def one_more(self) -> None:
        self._settled += 1
        if self._monotonic() >= self._next:
            self._next = self._monotonic() + REPORT_EVERY
            log.info("%s: %d of %d items of %s", self._run, self._settled, len(self._batch), self._batch.step.name)
