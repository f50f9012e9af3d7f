"""`app.each`: a step per item, with state per item and progress."""

from __future__ import annotations

import inspect
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from msgspec import Struct

from ...claims.claim import Fault, shown_run
from ...errors import BatchFailed, Misuse, StepFailed
from ...keys import KeyMaker
from ...operations import Operation, await_, block
from ...stores.base import Store
from ..engine.context import plain_session
from ..engine.ledger import STEP_DONE, STEP_FAILED, STEP_KIND
from ..engine.session import Session
from ..engine.step_identity import stem_of, with_id
from ..step import Step
from .gather import ParallelBranches, raise_first_error

__all__ = ["ItemBatch", "ItemDone", "ItemFailed", "ItemKey", "Progress", "each", "progress_of"]


R = TypeVar("R")
Kwargs = dict[str, Any]
ItemKey = str | Callable[[Any], str] | None

_ITEM = inspect.Signature([inspect.Parameter("item", inspect.Parameter.POSITIONAL_OR_KEYWORD)])
SHOWN = 3


class ItemDone(Struct, Generic[R], frozen=True):
    """An item whose step is done, and what it returned."""

    key: str
    value: R


class ItemFailed(Struct, frozen=True):
    """An item whose step failed for good."""

    key: str
    fault: Fault


class ItemBatch:
    """Items and their keys, checked before anything is done. Outcomes are added one by one."""

    def __init__(
        self, step: Step, items: Sequence[Any], key: ItemKey, args: tuple[Any, ...] = (), kwargs: Kwargs | None = None
    ) -> None:
        self.step = step
        self.items = items
        self.args = args  # passed to every item's step, after the item
        self.kwargs = kwargs or {}
        for item in items[:1]:
            self.arguments(item)  # if one item does not fit, none does
        self.keys = _keys(step, items, _maker(step, key, self.arguments))
        self.outcomes: list[ItemDone[Any] | ItemFailed | None] = [None] * len(items)

    def __len__(self) -> int:
        return len(self.items)

    def arguments(self, item: Any) -> dict[str, Any]:
        """What the step is called with, by name."""
        try:
            return self.step.arguments.bind((item, *self.args), self.kwargs)
        except TypeError as error:
            raise Misuse(
                f"app.each calls {self.step.name}(item, …), and that does not fit: {error}; nothing was done. Pass "
                "what it needs beside the item after the step: app.each(items, step, …)."
            ) from None

    def name(self, number: int) -> str:
        """The item's name in the ledger."""
        return with_id(self.step.name, self.keys[number])

    def done(self, number: int, value: Any) -> None:
        self.outcomes[number] = ItemDone(self.keys[number], value)

    def failed(self, number: int, fault: Fault) -> None:
        self.outcomes[number] = ItemFailed(self.keys[number], fault)

    @property
    def settled(self) -> int:
        return sum(outcome is not None for outcome in self.outcomes)

    def values(self, run: str, *, undoable: bool) -> list[Any]:
        """Results in the items' order. Raises if any failed; `undoable`: if that is not caught, steps are undone."""
        failed = [(outcome.key, outcome.fault) for outcome in self.outcomes if isinstance(outcome, ItemFailed)]
        if failed:
            raise _failure(self.step.name, failed, len(self), run, undoable=undoable)
        return [outcome.value for outcome in self.outcomes if isinstance(outcome, ItemDone)]


def _keys(step: Step, items: Sequence[Any], make: Callable[[Any], str]) -> list[str]:
    keys = [make(item) for item in items]
    seen: dict[str, int] = {}
    for number, found in enumerate(keys):
        if found in seen:
            raise Misuse(
                f"Items {seen[found] + 1} and {number + 1} of {step.name} have the same key {found!r}; nothing was "
                "done. Use a key that tells them apart, or merge them.",
                key=found,
            )
        seen[found] = number
    return keys


def _maker(step: Step, key: ItemKey, arguments: Callable[[Any], dict[str, Any]]) -> Callable[[Any], str]:
    if key is not None:
        maker = KeyMaker(key, _ITEM)
        return lambda item: maker.make({"item": item})
    if not step.has_own_id:
        raise Misuse(f'app.each needs to know {step.name}\'s items again; give it a key="{{item[id]}}".')
    return lambda item: step.own_id(arguments(item)) or ""


def _failure(step: str, failed: list[tuple[str, Fault]], count: int, run: str, *, undoable: bool) -> BatchFailed:
    first = "; ".join(f"{key}: {fault.type}: {fault.message}" for key, fault in failed[:SHOWN])
    more = f"; and {len(failed) - SHOWN} more" if len(failed) > SHOWN else ""
    move = "the others are done. Run the flow again with .retry(…): only what failed is tried again."
    if undoable:
        move = (
            "what is done is undone unless the flow catches this. Then start it as something new: "
            f"twiceproof runs fork {run} --key KEY"
        )
    return BatchFailed(
        f"{len(failed)} of {count} items of {step} failed ({first}{more}); {move}",
        step=step,
        failed=failed,
        done=count - len(failed),
        run=run,
    )


log = logging.getLogger("twiceproof")
REPORT_EVERY = 5.0  # seconds


def each(session: Session, batch: ItemBatch, concurrency: int, *, collect: bool) -> Operation[list[Any]]:
    """Answer recorded items from the ledger and run the others, several at a time."""
    _check(session, batch, concurrency)
    session.refuse_if_stopped()
    yield from session.ledger.flush()
    todo = yield from _replay(session, batch)
    if todo:
        yield from _carry_out(session, batch, todo, concurrency)
    elif len(batch):
        session.skip_branches()  # the first run was a gather
    return _outcomes(batch) if collect else batch.values(shown_run(session.claim.run), undoable=_is_undoable(session))


def _is_undoable(session: Session) -> bool:
    """Whether something is undone if the run fails here: then it cannot be retried."""
    entries = session.ledger.entries
    done = [calling for name, calling in session.calls.items() if name in entries and entries[name].state == STEP_DONE]
    return any(calling.step.undo is not None for calling in done)


def _check(session: Session, batch: ItemBatch, concurrency: int) -> None:
    if concurrency < 1:
        raise Misuse(f"concurrency={concurrency} lets nothing run; give 1 or more.")
    if not batch.step.is_async:
        plain_session(batch.step.name)
    if batch.step.is_async and session.drive is not await_:
        raise Misuse(f"{batch.step.name} is an `async def` step; call app.each in an `async def` flow, and await it.")


def _replay(session: Session, batch: ItemBatch) -> Operation[list[int]]:
    """Answer what is done or failed from the ledger, and return the numbers of the others."""
    todo = []
    entries = session.ledger.entries
    for number in range(len(batch)):
        entry = entries.get(batch.name(number))
        if entry is not None and entry.state in (STEP_DONE, STEP_FAILED):
            yield from _item(session, batch, number)
        else:
            todo.append(number)
    return todo


def _called(session: Session, batch: ItemBatch, number: int) -> Operation[Any]:
    return session.step(batch.step, (batch.items[number], *batch.args), batch.kwargs, name=batch.name(number))


def _item(session: Session, batch: ItemBatch, number: int) -> Operation[None]:
    try:
        value = yield from _called(session, batch, number)
    except StepFailed as error:
        batch.failed(number, error.data["fault"])
    else:
        batch.done(number, value)


def _carry_out(session: Session, batch: ItemBatch, todo: list[int], concurrency: int) -> Operation[None]:
    report = BatchReport(session, batch, len(batch) - len(todo))
    drive = await_ if batch.step.is_async else block

    def call(index: int) -> Any:
        return drive(_reported(report, _item(session, batch, todo[index])))

    branches = session.fork(len(todo), alone=True)
    try:
        findings = yield ParallelBranches(branches, call, concurrency)
    finally:
        session.join()
    yield from session.ledger.flush()
    raise_first_error(session, branches, findings)


def _reported(report: BatchReport, item: Operation[None]) -> Operation[None]:
    yield from item
    report.one_more()


def _outcomes(batch: ItemBatch) -> list[ItemDone[Any] | ItemFailed]:
    return [outcome for outcome in batch.outcomes if outcome is not None]


class BatchReport:
    """Progress in the log now and then, for a long batch."""

    def __init__(self, session: Session, batch: ItemBatch, settled: int) -> None:
        self._batch = batch
        self._run = shown_run(session.claim.run)
        self._monotonic = session.runtime.clock.monotonic
        self._next = self._monotonic() + REPORT_EVERY
        self._settled = settled

    def one_more(self) -> None:
        self._settled += 1
        if self._monotonic() >= self._next:
            self._next = self._monotonic() + REPORT_EVERY
            log.info("%s: %d of %d items of %s", self._run, self._settled, len(self._batch), self._batch.step.name)


PAGE = 1_000
Progress = dict[str, dict[str, int]]  # step -> state -> count


def progress_of(store: Store, space: str) -> Operation[Progress]:
    counts: dict[str, Counter[str]] = {}
    after: str | None = None
    while True:
        page = yield from store.scan(STEP_KIND, space=space, after=after, limit=PAGE)
        for record in page.records:
            counts.setdefault(stem_of(record.at.key), Counter())[record.state] += 1
        after = page.after
        if after is None:
            return {step: dict(states) for step, states in counts.items()}
