"""Session: a run in progress in this process, and the recorded values behind app.now/uuid/random.

It keeps the names of calls, the ledger, what a replay has visited, and why the run stops. Only its own methods assign
to its attributes; the step runner, the run's exit and compensation call them.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

import msgspec
from msgspec import Raw, structs

from ...claims.claim import HELD, Claim, claim_of
from ...claims.held_claim import HeldClaim
from ...errors import ClaimLost, Misuse, StoreError, WaitSwallowed
from ...operations import Operation, await_
from ...records import Written
from ..runtime import Runtime
from ..step import Step, StepCall
from .context import Branch, PendingCalls, Unwind, are_siblings, branch_var, is_interrupt
from .drift import Next, Unvisited, missed
from .exits import Review, Stop, Undo, Wait
from .ledger import STEP_DONE, STEP_FAILED, Entry, EntryNote, Ledger, tried_anew
from .ledger_flusher import LateMismatch
from .run_states import FRESH, RunState, with_work, work_of
from .step_identity import AFTER_FAILURE, changes, entry_kind, has_id, is_aside, is_undo, numbered, undoes, with_id
from .step_runner import StepRunner
from .step_timeout import Place

__all__ = ["Drive", "Newer", "Session", "recorded_value"]


Drive = Callable[[Operation[Any]], Any]
Newer = Callable[[], Operation[str]]
MAX_BACKLOG = 64  # completions that items of a batch may leave unacknowledged


class Session:
    """What a flow's function talks to. All of it may be lost at any moment: the store has the ledger."""

    def __init__(
        self,
        runtime: Runtime,
        hold: HeldClaim,
        claim: Claim,
        work: RunState,
        *,
        crashed: bool,
        patience: float,
        drive: Drive,
        slots: Sequence[HeldClaim] = (),
        newer: Newer | None = None,
        callers: frozenset[str] = frozenset(),
    ) -> None:
        self.runtime = runtime
        self.drive = drive  # how the flow's function waits: blocking, or awaiting
        self.hold = hold
        self.claim = claim
        self.work = work
        self.ledger = Ledger(runtime.claims, hold, runtime.flusher)
        self.crashed = crashed  # the previous holder stopped without recording it, and no call has ended since
        self.patience = (
            patience  # a retry due within so many seconds is waited for in place; later ones suspend the run
        )
        self.open = True
        self.callers = callers | {claim.run}  # this run, and the runs in whose steps it was called
        self.stop: Stop | None = None
        self.broken_by: BaseException | None = None  # the error that broke off a call, even if the function caught it
        self.calls: dict[str, StepCall] = {}
        self.pending_calls = PendingCalls()
        self.unvisited = Unvisited()
        self.undoing = bool(work.undoing)  # a stop was requested, or undoing had begun
        self.compensating = False  # completed steps are being undone
        self._prefix = ""  # of the names of steps; not of those of the flow's function
        self.started_at = 0.0
        self.lapsed_at = 0.0  # until when a holder that crashed may have been at work
        self.slots = slots  # without them the run must not act: other runs of its object would act at the same time
        self.newer = newer  # names the newer version of its object that was applied since; "": none
        self.gatherings = 0
        self._counts: dict[str, int] = {}
        self._askers: dict[str, str] = {}  # which branch took a name's latest number
        self._under_way: set[str] = set()
        self._called: set[str] = set()  # names with an id that were called in this replay
        self._stems: set[tuple[str, str]] = set()  # branches and stems of its calls, while entries are unvisited
        self._orders = itertools.count(1)
        self._mutex = threading.Lock()

    @property
    def space(self) -> str:
        return self.hold.held.at.space

    def hold_is_over(self) -> bool:
        """Whether the claim's own deadline has passed: then it must be renewed before the run acts."""
        return self.runtime.clock.monotonic() >= self.hold.held.deadline

    # -- beginning and ending --------------------------------------------------------------------

    def prepare(self, before: str) -> Operation[None]:
        """Load the ledger of a run that was in state `before`; a fresh run has none."""
        taken_at = self.hold.held.taken_at
        self.ledger.set_store_time(taken_at)
        self.started_at = self.work.since if self.crashed else taken_at
        if before == FRESH:
            return
        self.lapsed_at = taken_at if before == HELD else 0.0
        yield from self.load()
        if before == STEP_FAILED:
            self._retry_failures()

    def load(self) -> Operation[None]:
        yield from self.ledger.load()
        entries = self.ledger.entries
        self.unvisited = Unvisited(name for name in entries if not is_aside(name, entries))
        self.undoing = self.undoing or undoes(entries)
        self._orders = itertools.count(1 + max((entry.note.order for entry in entries.values()), default=0))

    def _retry_failures(self) -> None:
        """A person asked for a retry: failed steps are attempted anew, completed ones stay completed."""
        for entry in list(self.ledger.entries.values()):
            if entry.state == STEP_FAILED:
                self.ledger.note(tried_anew(entry))  # recorded, or a run that stops before it gets there would forget

    def close(self) -> None:
        """The run is over in this process: calls that it left behind are refused."""
        self.open = False

    def start_compensating(self) -> None:
        """Undo completed steps from here on. What stopped the function no longer counts."""
        self.stop = self.broken_by = None
        self.compensating = True
        self.unvisited = Unvisited(name for name in self.unvisited if is_undo(name))

    def start_after_failure(self) -> None:
        """Steps from here on follow a final failure: their names do not meet those of the flow's function."""
        self._prefix = AFTER_FAILURE

    def compensate_apart(self) -> None:
        """Undo one effect apart from the run's own course: none of the run's entries is expected to be visited."""
        self.unvisited, self.undoing, self.compensating = Unvisited(), False, True

    def remember_unawaited(self, names: Sequence[str]) -> None:
        """Keep with the run which calls were made and never awaited: made later, they are no change of the flow."""
        known = dict.fromkeys([*self.work.unawaited, *names])
        self.claim = with_work(self.claim, unawaited=tuple(known))
        self.work = work_of(self.claim)

    # -- steps -----------------------------------------------------------------------------------

    def step(
        self, step: Step, args: tuple[Any, ...], kwargs: dict[str, Any], *, name: str | None = None
    ) -> Operation[Any]:
        """Run a step, or return its recorded result."""
        self.refuse_if_stopped()
        step.results.prepare()
        arguments = step.arguments.bind(args, kwargs)
        name = self._begin(step, step.own_id(arguments) if name is None else None, name)
        try:
            call = step.call(name, args, kwargs, arguments)
            self.calls[name] = call
            self.visit(name, call.asked)
            return (yield from StepRunner(self, call).run())
        except BaseException as error:
            self.remember_error(error)
            raise
        finally:
            self._under_way.discard(name)

    def do(self, operation: Operation[Any], *, names: tuple[str, ...] = (), called: str = "") -> Any:
        """Drive any other operation of the flow's function. `names`: what the ledger calls its entries; `called`: the
        app's method, if the operation has another name."""
        if self.drive is not await_:
            return self.drive(self._remembering_errors(operation))
        what = called or str(getattr(operation, "__name__", "call"))
        return self.pending_calls.add(
            f"app.{what}", names or (what,), lambda: await_(self._remembering_errors(operation))
        )

    def _remembering_errors(self, operation: Operation[Any]) -> Operation[Any]:
        try:
            return (yield from operation)
        except BaseException as error:
            self.remember_error(error)
            raise

    def remember_error(self, error: BaseException) -> None:
        """Keep what broke off a call. Caught by the function, it would leave the outcome open, and a replay would not
        meet it again."""
        if self.broken_by is None and (is_interrupt(error) or isinstance(error, ClaimLost | StoreError | LateMismatch)):
            self.broken_by = error

    def report_several(self, step: str, found: Sequence[str], *, goes_on: bool) -> Operation[None]:
        """Record a finding, if there are several records where one should be."""
        if found and self.runtime.report_several is not None:
            yield from self.runtime.report_several(self.space, step, found, goes_on=goes_on)

    def _begin(self, step: Step, own: str | None, name: str | None) -> str:
        with self._mutex:
            stem = self._prefix + step.name
            if own is not None:
                name = with_id(stem, own)
            if name is None:
                name = self._next_name(stem)
            else:
                self._refuse_second(step, name)
            self._under_way.add(name)
            if self.unvisited:
                self._stems.add((self.place, step.name))
            return name

    def _refuse_second(self, step: Step, name: str) -> None:
        """Two calls with one id: concurrently both would act, and in sequence the second would silently be skipped."""
        if step.guards_itself or self._is_from_before(name):
            return
        if name in self._under_way:
            raise Misuse(f"{name} is already under way in this run; wait for it, or give each call an id of its own.")
        if name in self._called and not self.compensating:
            raise Misuse(
                f"{name} was called before in this run: two calls have the same id, and the second was not done. Use "
                'an id that tells them apart (@app.step(id="{…}"), @app.effect(id="{…}")), or merge them.'
            )
        if has_id(name):
            self._called.add(name)

    def _is_from_before(self, name: str) -> bool:
        """Finished under a release that allowed two calls with one id: such runs go on as they began."""
        entry = self.ledger.entries.get(name)
        return entry is not None and entry.state in (STEP_DONE, STEP_FAILED) and not entry.note.unique

    def _next_name(self, stem: str) -> str:
        """Number calls in sequence. Concurrent calls have no order, so they cannot be numbered."""
        count = self._counts.get(stem, 0)
        branch = branch_var.get()
        path = branch.path if branch is not None and branch.session is self else ""
        concurrent = path != "" and are_siblings(self._askers.get(stem, path), path)
        if count and (concurrent or numbered(stem, count) in self._under_way):
            raise Misuse(
                f"{stem} was called twice at once, and nothing tells the two apart; give it an id: "
                f'@app.step(id="{{…}}"), a template over its arguments.'
            )
        self._askers[stem] = path
        self._counts[stem] = count + 1
        return numbered(stem, count + 1)

    def name_for(self, stem: str) -> str:
        """Return the ledger's name for a call that is not a step: a timer, a time, a random number."""
        self.refuse_if_stopped()
        here = self._here
        with self._mutex:
            stem = self._prefix + stem
            return self._next_name(f"{stem}@{here.path}" if isinstance(here, Branch) else stem)

    def take_name(self, name: str) -> bool:
        """Reserve a name that the flow itself gave to a wait. False: another wait of this run has it."""
        self.refuse_if_stopped()
        with self._mutex:
            free = name not in self._counts
            self._counts[name] = 1
            return free

    def visit(self, name: str, asked: str) -> Entry | None:
        """Return the entry of a call, if there is one. An entry for other arguments stops the run."""
        entry = self.ledger.entries.get(name)
        if entry is None:
            return None
        with self._mutex:
            self.unvisited.discard(name)
        if entry.note.asked != asked:
            what = changes(entry.note.asked, asked)
            self.stop_run(
                Review(f"the flow changed under this run: {name} was called with {what} than is in the ledger")
            )
        return entry

    def refuse_unvisited(self, name: str, *, acts: bool = False) -> None:
        """Stop before a new call if an entry should have been visited before it: its step was renamed or removed.

        A call that was not awaited the first time is no change of the flow.
        """
        if not self.unvisited or entry_kind(name) in self.work.unawaited:
            return
        entries, call = self.ledger.entries, Next(name, self.place, acts and not self.compensating)
        with self._mutex:
            gone = missed(call, entries, self.unvisited, self._stems)
        if gone:
            what = f"before {name} it no longer calls" if name in entries else f"{name} is new before"
            self.stop_run(Review(f"the flow changed under this run: {what} {', '.join(gone)}, in the ledger"))

    @property
    def place(self) -> str:
        """The caller's branch, the same in every replay. Empty: the flow's main line."""
        here = self._here if self.ledger.open_gatherings else self
        return here.place if isinstance(here, Branch) else ""

    def attempt_place(self, name: str) -> Place:
        """Identify a step's attempts within this process, whichever app started them."""
        return self.work.start_id, self.space, name

    @property
    def under_way(self) -> list[str]:
        """Calls that have begun and not ended."""
        with self._mutex:
            return sorted(self._under_way)

    @property
    def others_under_way(self) -> bool:
        """Whether other calls are under way at the same time."""
        return len(self._under_way) > 1

    def finished(self, name: str, state: str, note: EntryNote, *pieces: Any) -> Entry:
        """Record the end of a call. It is queued for writing when this returns."""
        self.crashed = False
        return self.ledger.note(self.ended(name, state, note), *pieces)

    def recorded(self, entry: Entry, written: Written) -> None:
        """Take over the end of a call that was written in the transaction of the step's own work."""
        self.ledger.recorded(entry, written)
        self.crashed = False

    def postpone_attempt(self, name: str, state: str, note: EntryNote) -> None:
        """Record that a call will be attempted again. What a crash may have begun is in its note, so the crash is not
        counted once more."""
        self.crashed = False
        old = self.ledger.entries.get(name)
        self.ledger.note(Entry(name, state, note, old.version if old else "", self.ledger.now()))

    def ended(self, name: str, state: str, note: EntryNote) -> Entry:
        """Make the entry of a call that has ended."""
        old = self.ledger.entries.get(name)
        note = structs.replace(
            note, order=next(self._orders), concurrent=self.others_under_way or bool(self.ledger.open_gatherings)
        )
        return Entry(name, state, note, old.version if old else "", self.ledger.now())

    def last_time(self) -> float:
        """Return the latest time in the ledger: what is under way now began after it."""
        return max(self.ledger.latest, self.started_at)

    # -- branches --------------------------------------------------------------------------------

    @property
    def _here(self) -> Branch | Session:
        """Where the caller is: in a branch of a gathering, or in the flow's main line."""
        branch = branch_var.get()
        return branch if branch is not None and branch.session is self else self

    def fork(self, count: int, *, alone: bool = False) -> list[Branch]:
        """Make branches for concurrent calls. Call `join` when all of them have ended."""
        here = self._here
        with self._mutex:
            self.ledger.open_gatherings += 1
            here.gatherings += 1
            stem = f"{here.path}/" if isinstance(here, Branch) else ""
            return [Branch(self, f"{stem}{here.gatherings}.{n}", alone=alone) for n in range(1, count + 1)]

    def skip_branches(self) -> None:
        """Skip a gathering that has nothing left to do, so that what follows has the same path as the first time."""
        with self._mutex:
            self._here.gatherings += 1

    def join(self) -> None:
        with self._mutex:
            self.ledger.open_gatherings -= 1

    def may_have_started_unrecorded(self, step: Step) -> bool:
        """Whether a holder that crashed may have begun this step without recording it."""
        return self.crashed and not self.marks_starts(step)

    def marks_starts(self, step: Step) -> bool:
        """Whether starts are recorded because calls run concurrently: otherwise it would be unknown which were begun,
        since when a provider's window runs, and what must be undone."""
        return bool(self.ledger.open_gatherings) and step.is_asked_about

    def may_run_ahead(self) -> bool:
        """Whether an item of a batch may begin before earlier completions are acknowledged; only so many may be."""
        if not self.ledger.open_gatherings:
            return False
        here = self._here
        return isinstance(here, Branch) and here.alone and self.ledger.backlog < MAX_BACKLOG

    # -- stopping --------------------------------------------------------------------------------

    def stop_run(self, stop: Stop) -> NoReturn:
        """Leave the flow's function without an end. The first reason counts, and a review before others."""
        if isinstance(stop, Wait) and self.is_to_be_undone:
            stop = Undo()  # a run that is to be undone waits for nothing
        here = self._here
        if here.stop is None or isinstance(stop, Review):
            here.stop = stop
        raise Unwind

    def ask_for_result(self, name: str, why: str) -> NoReturn:
        """A person must give what a call returns. The reason is kept with its entry, too: it is found by it."""
        entry = self.ledger.entries[name]
        if entry.note.reason != why:
            self.ledger.note(structs.replace(entry, note=structs.replace(entry.note, reason=why)))
        self.stop_run(Review(f"{name}: {why}"))

    @property
    def is_to_be_undone(self) -> bool:
        """A stop was requested, or undoing had begun before: no new step begins."""
        return self.undoing and not self.compensating

    def refuse_if_undoing(self) -> None:
        if self.is_to_be_undone:
            self.stop_run(Undo())

    def clear_stop(self) -> None:
        """The caller's branch stopped too early: it goes on."""
        self._here.stop = None

    def refuse_if_stopped(self) -> None:
        if self.broken_by is not None:
            raise Unwind  # passes `except Exception`: a loop that catches and tries again would never end
        if self.stop is not None or (self.ledger.open_gatherings and self._here.stop is not None):
            raise WaitSwallowed(
                f"{self.claim.operation} for {self.claim.key!r} went on after it was told to stop; let BaseException "
                "pass through your except clauses, and use app.gather for concurrent steps and waits."
            )

    def reload_after_interrupt(self) -> Operation[None]:
        """Read the claim again if its fence was changed to interrupt this run."""
        if not self.ledger.interrupted:
            return
        found = yield from self.runtime.store.read(self.hold.held.at)
        if found.record is not None:
            self.claim = claim_of(found.record)
            self.work = work_of(self.claim)
        self.undoing = self.undoing or bool(self.work.undoing)  # before the flag is cleared: no branch may slip through
        self.ledger.interrupted = False


T = TypeVar("T")


def recorded_value(session: Session, stem: str, kind: type[T], draw: Callable[[], T]) -> T:
    """Draw a value the first time and return the recorded one ever after. It is stored before the next step acts."""
    name = session.name_for(stem)
    entry = session.visit(name, "")
    if entry is None:
        session.refuse_unvisited(name)
        entry = session.finished(name, STEP_DONE, EntryNote(result=Raw(msgspec.json.encode(draw()))))
    return msgspec.json.decode(entry.note.result, type=kind)
