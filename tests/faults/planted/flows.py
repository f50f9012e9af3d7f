"""Bugs of flows: a step that is begun, repeated, recorded or undone at the wrong time."""

from __future__ import annotations

import itertools
from typing import Any

from twiceproof.effects.repeat import Declared
from twiceproof.flows import transaction as joined
from twiceproof.flows.engine import compensation as undo
from twiceproof.flows.engine import context, step_runner
from twiceproof.flows.engine import decisions as engine
from twiceproof.flows.engine.compensation import Compensation
from twiceproof.flows.engine.ledger import STEP_DONE, Ledger
from twiceproof.flows.engine.step_identity import UNDO
from twiceproof.flows.engine.step_runner import StepRunner


def no_intent() -> None:
    """A step that must never be repeated is begun without a record of its start."""
    Declared.writes_intent = property(lambda self: False)  # type: ignore[assignment, method-assign]


def probe_not_asked() -> None:
    """A step whose start is on record is begun again without asking the destination."""
    ask = StepRunner._ask

    def blind(self: Any, entry: Any) -> Any:
        return engine.Act(entry.note.starts + 1, intent=True)
        yield from ask(self, entry)

    StepRunner._ask = blind  # type: ignore[method-assign]


def key_of_the_attempt() -> None:
    """A provider is given another key with each attempt."""
    count = itertools.count()
    made = context.effect_key
    context.effect_key = lambda space, name: f"{made(space, name)}-{next(count)}-{id(count)}"
    step_runner.effect_key = context.effect_key  # type: ignore[attr-defined]


def ledger_not_read() -> None:
    """A continued run begins again at its first step."""
    load = Ledger.load

    def forgetful(self: Any) -> Any:
        yield from load(self)
        self.entries.clear()

    Ledger.load = forgetful  # type: ignore[method-assign]


def completions_wait_for_the_end() -> None:
    """Results of steps are recorded only at the run's end."""
    flush = Ledger.flush

    def lazy(self: Any, *more: Any, end: Any = None) -> Any:
        if end is None and not more:
            return None
        return (yield from flush(self, *more, end=end))

    Ledger.flush = lazy  # type: ignore[method-assign]


def unknown_is_retried() -> None:
    """A step declared never to be repeated is begun again after a crash."""
    engine._after_recorded_start = lambda plan, entry, now, lapsed: engine.Act(entry.note.starts + 1, intent=True)


def undone_in_order() -> None:
    """Steps are undone in the order in which they were done."""
    undo.sorted = lambda entries, key: sorted(entries, key=lambda entry: entry.note.order)  # type: ignore[attr-defined]


def undone_twice() -> None:
    """An undo leaves no record of its own: after a crash it is done again."""
    ended = Compensation._undo

    def unrecorded(self: Any, entry: Any, call: Any, step: Any) -> Any:
        yield from ended(self, entry, call, step)
        self._ledger._pending.pop(UNDO + entry.name, None)

    Compensation._undo = unrecorded  # type: ignore[method-assign]


def record_apart_from_its_work() -> None:
    """A transactional step commits its work, and its record afterwards."""

    def nothing(self: Any, value: Any) -> Any:
        note, self.packed = self._done(value)
        self.entry = self._session.ended(self.name, STEP_DONE, note)
        self.fence = self._session.hold.held.fence
        return ()

    joined._Draft.writes = nothing  # type: ignore[method-assign]
