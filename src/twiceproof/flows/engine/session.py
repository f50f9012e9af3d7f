"""A run in progress in this process; app.now/uuid/random."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

import msgspec
from msgspec import Raw, structs

from ...claims.claim import Claim, claim_of
from ...claims.held_claim import HeldClaim
from ...errors import ClaimLost, Misuse, StoreError, WaitSwallowed
from ...operations import Operation, await_
from ..runtime import Runtime
from ..step import Step, StepCall
from .compensation import is_aside, undoes
from .context import Branch, Unwind, are_siblings, branch_var, is_interrupt
from .drift import Next, Unvisited, missed
from .exits import Review, Stop, Undo, Wait
from .ledger import STEP_DONE, STEP_FAILED, Entry, EntryNote, Ledger
from .run_states import RunState, work_of
from .step_identity import arguments_digest, changes, entry_kind, has_id, numbered, with_id
from .step_runner import run_step
from .unawaited import Created

__all__ = ["Drive", "Newer", "Session", "recorded_value"]


Drive = Callable[[Operation[Any]], Any]
Newer = Callable[[], Operation[str]]
MOST_BEHIND = 64


class Session:
    """What a flow's function talks to. Everything in it may be lost at any instant: the ledger is in the store."""

    def __init__(
        self,
        parts: Runtime,
        hold: HeldClaim,
        claim: Claim,
        work: RunState,
        *,
        crashed: bool,
        patience: float,
        drive: Drive,
    ) -> None:
        self.parts = parts
        self.drive = drive  # how the flow's function waits: blocking, or awaiting
        self.hold = hold
        self.claim = claim
        self.work = work
        self.ledger = Ledger(parts.claims, hold, parts.courier)
        self.crashed = crashed  # the holder before stopped without a word, and nothing was finished since
        self.patience = patience  # how long a retry may hold this caller up; longer ones are left to workers
        self.open = True
        self.callers = frozenset((claim.run,))  # this run, and those in whose steps it was called
        self.stop: Stop | None = None
        self.cut: BaseException | None = None  # what broke off a call of the engine, whatever the function made of it
        self.calls: dict[str, StepCall] = {}
        self.created = Created()
        self.unvisited = Unvisited()
        self.undoing = bool(self.work.undoing)  # somebody said stop
        self.compensating = False  # what was done is being undone
        self.started_at = 0.0
        self.lapsed_at = 0.0  # until when a holder that stopped without a word may have been at work
        self.slots: Sequence[HeldClaim] = ()  # without them it may not act: others of its kind would be at work too
        self.newer: Newer | None = None  # asks which newer version of its object was let through since; "": none
        self.gatherings = 0
        self._counts: dict[str, int] = {}
        self._askers: dict[str, str] = {}  # which branch took a name's latest number
        self._under_way: set[str] = set()
        self._called: set[str] = set()  # by an id of their own, in this replay
        self._stems: set[tuple[str, str]] = set()  # where which step was called in it, while something is missed
        self._orders = itertools.count(1)
        self._mutex = threading.Lock()

    @property
    def space(self) -> str:
        return self.hold.held.at.space

    def hold_is_over(self) -> bool:
        """Whether its own deadline has gone by: then it has to ask before it acts."""
        return self.parts.clock.monotonic() >= self.hold.held.deadline

    def load(self) -> Operation[None]:
        yield from self.ledger.load()
        entries = self.ledger.entries
        self.unvisited = Unvisited(name for name in entries if not is_aside(name, entries))
        self.undoing = self.undoing or undoes(entries)
        self._orders = itertools.count(1 + max((entry.note.order for entry in entries.values()), default=0))

    # -- steps -----------------------------------------------------------------------------------

    def step(
        self, step: Step, args: tuple[Any, ...], kwargs: dict[str, Any], *, name: str | None = None
    ) -> Operation[Any]:
        """Carry out a step, or answer it from the ledger."""
        self.refuse_if_stopped()
        step.results.prepare()
        arguments = step.arguments.bind(args, kwargs)
        name = self._begin(step, step.own_id(arguments) if name is None else None, name)
        try:
            calling = StepCall(step, name, args, kwargs, arguments, arguments_digest(arguments))
            self.calls[name] = calling
            self.visit(name, calling.asked)
            return (yield from run_step(self, calling))
        except BaseException as error:
            self._mind(error)
            raise
        finally:
            self._under_way.discard(name)

    def do(self, operation: Operation[Any], *, names: tuple[str, ...] = ()) -> Any:
        """Anything else that the flow's function asks for, the way it waits. `names`: its entries' in the ledger."""
        if self.drive is not await_:
            return self.drive(self._minding(operation))
        what = str(getattr(operation, "__name__", "call"))
        return self.created.add(f"app.{what}", names or (what,), lambda: await_(self._minding(operation)))

    def _minding(self, operation: Operation[Any]) -> Operation[Any]:
        try:
            return (yield from operation)
        except BaseException as error:
            self._mind(error)
            raise

    def _mind(self, error: BaseException) -> None:
        """Swallowed and gone on from, it would leave the outcome open, and not be met again in a replay."""
        if self.cut is None and (is_interrupt(error) or isinstance(error, ClaimLost | StoreError)):
            self.cut = error

    def _begin(self, step: Step, own: str | None, name: str | None) -> str:
        with self._mutex:
            if own is not None:
                name = with_id(step.name, own)
            if name is None:
                name = self._next_name(step.name)
            else:
                self._refuse_second(step, name)
            self._under_way.add(name)
            if self.unvisited:
                self._stems.add((self.place, step.name))
            return name

    def _refuse_second(self, step: Step, name: str) -> None:
        """One id for two calls: at once both would act, and in sequence the second would be passed over in silence."""
        if step.guards_itself or self._is_from_before(name):
            return
        if name in self._under_way:
            raise Misuse(f"{name} is already under way in this run; wait for it, or give each call an id of its own.")
        if name in self._called and not self.compensating:
            raise Misuse(
                f"{name} was called before in this run: two calls have the same id, and the second was not done. Use "
                "an id that tells them apart, or merge them."
            )
        if has_id(name):
            self._called.add(name)

    def _is_from_before(self, name: str) -> bool:
        """Finished by a release that let two calls have one id: its runs go on as they began."""
        entry = self.ledger.entries.get(name)
        return entry is not None and entry.state in (STEP_DONE, STEP_FAILED) and not entry.note.sole

    def _next_name(self, stem: str) -> str:
        """By number, in sequence: at once, nobody could say which is the second."""
        count = self._counts.get(stem, 0)
        branch = branch_var.get()
        path = branch.path if branch is not None and branch.session is self else ""
        beside = path != "" and are_siblings(self._askers.get(stem, path), path)
        if count and (beside or numbered(stem, count) in self._under_way):
            raise Misuse(
                f"{stem} was called twice at once, and nothing tells the two apart; give it an id: "
                f'@app.step(id="{{…}}"), a template over its arguments.'
            )
        self._askers[stem] = path
        self._counts[stem] = count + 1
        return numbered(stem, count + 1)

    def name_for(self, stem: str) -> str:
        """The ledger's name for a call that is not a step: a timer, a time, a number drawn."""
        self.refuse_if_stopped()
        here = self._here
        with self._mutex:
            return self._next_name(f"{stem}@{here.path}" if isinstance(here, Branch) else stem)

    def take_name(self, name: str) -> bool:
        """A name that the flow itself gave to a wait. False: another wait of this run has it."""
        self.refuse_if_stopped()
        with self._mutex:
            free = name not in self._counts
            self._counts[name] = 1
            return free

    def visit(self, name: str, asked: str) -> Entry | None:
        """The entry of a call, if there is one. One that was asked with something else stops the run."""
        entry = self.ledger.entries.get(name)
        if entry is None:
            return None
        with self._mutex:
            self.unvisited.discard(name)
        if entry.note.asked != asked:
            what = changes(entry.note.asked, asked)
            self.halt(Review(f"the flow changed under this run: {name} was called with {what} than is in the ledger"))
        return entry

    def refuse_unvisited(self, name: str, *, acts: bool = False) -> None:
        """Before something is done: a step that is done and no longer called was renamed or taken out.

        What was forgotten to be awaited the first time is no change of the flow.
        """
        if not self.unvisited or entry_kind(name) in self.work.unawaited:
            return
        entries, call = self.ledger.entries, Next(name, self.place, acts and not self.compensating)
        with self._mutex:
            gone = missed(call, entries, self.unvisited, self._stems)
        if gone:
            what = f"before {name} it no longer calls" if name in entries else f"{name} is new before"
            self.halt(Review(f"the flow changed under this run: {what} {', '.join(gone)}, in the ledger"))

    @property
    def place(self) -> str:
        """The branch in which the caller stands, the same in every replay. Empty: the flow's own line."""
        here = self._here if self.ledger.abreast else self
        return here.place if isinstance(here, Branch) else ""

    @property
    def under_way(self) -> list[str]:
        """Calls that have begun and not ended."""
        with self._mutex:
            return sorted(self._under_way)

    @property
    def has_company(self) -> bool:
        """Whether other calls are under way at the same time."""
        return len(self._under_way) > 1

    def finished(self, name: str, state: str, note: EntryNote, *pieces: Any) -> Entry:
        """A call came to its end. It is on its way to the store when this returns."""
        self.crashed = False
        return self.ledger.note(self.ended(name, state, note), *pieces)

    def put_off(self, name: str, state: str, note: EntryNote) -> None:
        """A call will be tried again. What a crash may have begun is part of its note, and not counted once more."""
        self.crashed = False
        old = self.ledger.entries.get(name)
        self.ledger.note(Entry(name, state, note, old.version if old else "", self.ledger.now()))

    def ended(self, name: str, state: str, note: EntryNote) -> Entry:
        """The entry of a call that came to its end."""
        old = self.ledger.entries.get(name)
        note = structs.replace(note, order=next(self._orders), beside=self.has_company or bool(self.ledger.abreast))
        return Entry(name, state, note, old.version if old else "", self.ledger.now())

    def last_time(self) -> float:
        """The latest time in the ledger: what is under way now began after it."""
        return max(self.ledger.latest, self.started_at)

    # -- branches --------------------------------------------------------------------------------

    @property
    def _here(self) -> Branch | Session:
        """Where the caller stands: in a branch of a gathering, or in the flow's own line."""
        branch = branch_var.get()
        return branch if branch is not None and branch.session is self else self

    def fork(self, count: int, *, alone: bool = False) -> list[Branch]:
        """Branches for calls beside each other. `join` when they are all over."""
        here = self._here
        with self._mutex:
            self.ledger.abreast += 1
            here.gatherings += 1
            stem = f"{here.path}/" if isinstance(here, Branch) else ""
            return [Branch(self, f"{stem}{here.gatherings}.{n}", alone=alone) for n in range(1, count + 1)]

    def pass_by(self) -> None:
        """A gathering of which nothing is left to do: what comes after it has the same path as the first time."""
        with self._mutex:
            self._here.gatherings += 1

    def join(self) -> None:
        with self._mutex:
            self.ledger.abreast -= 1

    def left_no_trace(self, step: Step) -> bool:
        """Whether a holder that crashed may have been at a call of which nothing is on record."""
        return self.crashed and not self.marks_starts(step)

    def marks_starts(self, step: Step) -> bool:
        """Beside others nobody could tell which were begun: from when a window runs, and what must be undone."""
        return bool(self.ledger.abreast) and step.is_asked_about

    def may_run_ahead(self) -> bool:
        """An item of a batch need not wait until the others' completions are acknowledged, up to a few."""
        if not self.ledger.abreast:
            return False
        here = self._here
        return isinstance(here, Branch) and here.alone and self.ledger.backlog < MOST_BEHIND

    # -- stopping --------------------------------------------------------------------------------

    def halt(self, stop: Stop) -> NoReturn:
        """Leave the flow's function without an end. The first reason counts."""
        if isinstance(stop, Wait) and self.is_to_be_undone:
            stop = Undo()  # nothing is worth waiting for any more
        here = self._here
        if here.stop is None or isinstance(stop, Review):
            here.stop = stop
        raise Unwind

    @property
    def is_to_be_undone(self) -> bool:
        """Somebody said stop, or it failed before and undoing had begun: nothing new is begun."""
        return self.undoing and not self.compensating

    def take_back(self) -> None:
        """The stop of this line of the flow was too early: it goes on."""
        self._here.stop = None

    def refuse_if_stopped(self) -> None:
        if self.cut is not None:
            raise Unwind  # past `except Exception`: one that tries again and again would do so for ever
        if self.stop is not None or (self.ledger.abreast and self._here.stop is not None):
            raise WaitSwallowed(
                f"{self.claim.operation} for {self.claim.key!r} went on after it was told to stop; let BaseException "
                "pass through your except clauses, and use app.gather for concurrent steps and waits."
            )

    def heed(self) -> Operation[None]:
        """Somebody drew a new fence to have our attention: see what for."""
        if not self.ledger.beckoned:
            return
        found = yield from self.parts.store.read(self.hold.held.at)
        if found.record is not None:
            self.claim = claim_of(found.record)
            self.work = work_of(self.claim)
        self.undoing = self.undoing or bool(self.work.undoing)  # before the sign goes: no branch may slip through
        self.ledger.beckoned = False


T = TypeVar("T")


def recorded_value(session: Session, stem: str, kind: type[T], draw: Callable[[], T]) -> T:
    """The first time drawn, ever after read. On record before the next step acts on it."""
    name = session.name_for(stem)
    entry = session.visit(name, "")
    if entry is None:
        session.refuse_unvisited(name)
        entry = session.finished(name, STEP_DONE, EntryNote(result=Raw(msgspec.json.encode(draw()))))
    return msgspec.json.decode(entry.note.result, type=kind)
