"""A process in a scenario: its fault points, kills and steps."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NoReturn

from msgspec import Struct

from ...claims.once import Once
from ...clock import Clock
from ...effects.base import Effect
from ...errors import NotDone, StoreUnavailable
from ...flows import effect_step
from ...flows.effect_step import EffectStep
from ...flows.step import Step, StepCall
from ...flows.transaction import InDoubt, Ran, Transaction
from ...operations import Operation, Raised
from ...records import Address, Batch, Due, Found, Outcome, Page
from ...stores.base import Engine, SpaceBusy, Store
from ...stores.grouped import GroupedStore
from ...stores.user_transaction import Joins
from ..faulty_engine import FaultyEngine
from .scenario import ACTS, BODY, REFUSED, InjectedFault, TimelineEvent

__all__ = [
    "Killed",
    "KillingEngine",
    "KillingJoins",
    "Look",
    "Process",
    "ScenarioStage",
    "Whose",
    "process_var",
    "watched",
]


class Killed(StoreUnavailable):
    """Raised in a process that the scenario has killed."""

    def __init__(self) -> None:
        super().__init__("This process was killed by the scenario; nothing it does reaches the store.")


class KillingEngine(FaultyEngine):
    """Reports every write to `reached`, before it and after it has landed; `reached` may kill the process."""

    def __init__(self, inner: Engine, reached: Callable[[bool], None], is_dead: Callable[[], bool]) -> None:
        super().__init__(inner)
        self._reached = reached
        self._is_dead = is_dead
        joins: Joins | None = getattr(inner, "joins", None)
        if joins is not None:
            self.joins = KillingJoins(joins, reached, self._live)

    def commit(self, batches: Sequence[Batch]) -> Sequence[Outcome | SpaceBusy | Exception]:
        self._live()
        self._reached(False)
        answers = super().commit(batches)
        self._reached(True)
        return answers

    def fetch(self, addresses: Sequence[Address]) -> Sequence[Found]:
        self._live()
        return super().fetch(addresses)

    def scan(
        self,
        kind: str,
        space: str | None,
        state: str | None,
        after: str | None,
        limit: int,
        newest: bool | None = None,
        prefix: str | None = None,
    ) -> Page:
        self._live()
        return super().scan(kind, space, state, after, limit, newest, prefix)

    def due(self, kind: str, queues: Collection[str], limit: int, hide: float) -> Due:
        self._live()
        return super().due(kind, queues, limit, hide)

    def _live(self) -> None:
        if self._is_dead():
            raise Killed()


class KillingJoins:
    """A user's transaction is one write: reported before its commit and after it, with all that it wrote."""

    def __init__(self, inner: Joins, reached: Callable[[bool], None], live: Callable[[], None]) -> None:
        self._inner = inner
        self._reached = reached
        self._live = live

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def connect(self, *, awaited: bool) -> Any:
        self._live()
        return self._inner.connect(awaited=awaited)

    def check(self, driver: Any, mark: str) -> Operation[str]:
        self._live()
        commit = driver.commit

        def committing() -> Operation[None]:
            self._live()
            self._reached(False)
            yield from commit()
            self._reached(True)

        driver.commit = committing
        return (yield from self._inner.check(driver, mark))


process_var: ContextVar[Process | None] = ContextVar("twiceproof_process", default=None)


class ScenarioStage(Struct):
    """What the processes of one scenario share: how one is paused or killed, the refused step, and the timeline."""

    pause: Callable[[Process], None]
    refuses: str = ""
    events: list[TimelineEvent] = []
    fired: int = 0
    look: Callable[[], dict[str, int]] = dict
    die: Callable[[], None] = lambda: None  # a simulated process is only cut off from the store
    heard: Callable[[TimelineEvent, int], None] = lambda event, fired: None
    seen: dict[str, int] = {}  # the outside, when last observed
    acting: int = 0  # steps in progress: changes meanwhile are attributed to them

    def tell(self, event: TimelineEvent, fired: int) -> None:
        self.events.append(event)
        self.fired += fired
        self.heard(event, fired)


def _difference(before: dict[str, int], now: dict[str, int]) -> dict[str, int]:
    return {what: count - before.get(what, 0) for what, count in now.items() if count != before.get(what, 0)}


class Process:
    """One process acts at a time, unless the scenario says otherwise."""

    def __init__(
        self, number: int, engine: Engine, clock: Clock, script: Sequence[InjectedFault], stage: ScenarioStage
    ) -> None:
        self.number = number
        self.dead = False
        self.writes = 0
        self.effects: list[str] = []
        self._stage = stage
        self._script = script
        self._mutex = threading.Lock()
        killing = KillingEngine(engine, self._reach_write, lambda: self.dead)
        self.store: Store = GroupedStore(killing, clock=clock)

    # -- points ----------------------------------------------------------------------------------

    def _reach_write(self, after: bool) -> None:
        with self._mutex:
            if not after:
                self.writes += 1
            number = self.writes
        if after:
            self.tell(f"write {number}")
        self._suffer("write", number, after)

    def begin_effect(self, step: str) -> int:
        """Before a step acts. Returns its number, so that concurrent steps end as the ones they began as."""
        self._live(step)
        self.notice()
        with self._mutex:
            self.effects.append(step)
            number = len(self.effects)
        self._suffer("effect", number, after=False)
        with self._mutex:
            self._stage.acting += 1
        return number

    def end_effect(self, step: str, number: int, before: dict[str, int], now: dict[str, int], kind: str = "") -> None:
        """After a step acted, before anything is recorded; with the outside before and now."""
        with self._mutex:
            self._stage.acting -= 1
            self._stage.seen = now
        self._live(step)
        self.tell(step + ACTS, _difference(before, now), kind=kind)
        self._suffer("effect", number, after=True)

    def notice(self, whose: str = BODY) -> None:
        """A change of the outside while no step acts is attributed to the flow's own body, or to the relay."""
        now = self._stage.look()
        with self._mutex:
            gained = _difference(self._stage.seen, now) if self._stage.acting == 0 else {}
            self._stage.seen = now
        if gained:
            self.tell(whose, gained)

    def _live(self, step: str) -> None:
        if self.dead:
            raise Killed()
        if step == self._stage.refuses:
            self._refuse(step)

    def _refuse(self, step: str) -> NoReturn:
        self.tell(step + REFUSED)
        raise NotDone("refused for good (by the scenario)")

    def _suffer(self, place: str, number: int, after: bool) -> None:
        for fault in self._script:
            if (fault.place, fault.number, fault.after) == (place, number, after):
                self._happen(fault)

    def _happen(self, fault: InjectedFault) -> None:
        if fault.what == "kill":
            self.dead = True
            self.notice()
            self.tell("KILLED", fired=1)
            self._stage.die()
            raise Killed()
        if fault.what == "lose":
            self.tell("the answer is lost", fired=1)
            raise TimeoutError("the answer was lost on its way (by the scenario)")
        self.tell("paused past its lease", fired=1)
        self._stage.pause(self)
        self.tell("goes on")

    def tell(self, what: str, world: dict[str, int] | None = None, *, fired: int = 0, kind: str = "") -> None:
        self._stage.tell(TimelineEvent(self.number, what, world or {}, kind), fired)


Look = Callable[[], dict[str, int]]  # what the outside holds now
Whose = Callable[[], Process]
Acting = Step | Once


@contextmanager
def watched(acting: Sequence[Acting], whose: Whose, look: Look) -> Iterator[None]:
    """Observe what acts: the steps and undos of an app, a guarded function, and effects without a name of their own."""
    undos = [one.undo for one in acting if isinstance(one, Step) and one.undo is not None]
    everyone = {id(one): one for one in (*acting, *undos)}
    before = [(one, one.function, one.blocking if isinstance(one, Step) else None) for one in everyone.values()]
    for one in everyone.values():
        _watch(one, _name(one), whose, look)
    unnamed = effect_step.unnamed_step

    def watched_unnamed(effect: Effect[Any], *args: Any, **kwargs: Any) -> EffectStep:
        made = unnamed(effect, *args, **kwargs)
        _watch(made, effect.name, whose, look)
        return made

    effect_step.unnamed_step = watched_unnamed
    try:
        yield
    finally:
        effect_step.unnamed_step = unnamed
        for one, function, blocking in before:
            one.function = function
            if isinstance(one, Step):
                one.blocking = blocking
            vars(one).pop("call", None)
            if isinstance(one, Step) and one.transaction is not None:
                vars(one.transaction).pop("attempt", None)


def _name(one: Acting) -> str:
    return one.name if isinstance(one, Step) else one.policy.operation


def _watch(one: Acting, name: str, whose: Whose, look: Look) -> None:
    if isinstance(one, Step) and one.transaction is not None:
        vars(one.transaction)["attempt"] = _in_transaction(name, one.transaction, whose, look)
        return
    wrapped, kind = _awaiting if inspect.iscoroutinefunction(one.function) else _blocking, _kind_of(one)
    one.function = wrapped(name, one.function, whose, look, kind)
    if isinstance(one, Step) and one.blocking is not None:  # in place of the function, if it may outlive its caller
        one.blocking = _blocking(name, one.blocking, whose, look, kind)


def _kind_of(one: Acting) -> Callable[[], str]:
    """How it may be repeated. An effect says so when it is called."""
    if isinstance(one, Once):
        return lambda: one.policy.repeat
    kinds = [one.plan.repeat.kind]
    if isinstance(one, EffectStep):
        call = one.call

        def noting(*args: Any) -> StepCall:
            called = call(*args)
            kinds.append(called.step.plan.repeat.kind)
            return called

        vars(one)["call"] = noting
    return lambda: kinds[-1]


def _in_transaction(name: str, transaction: Transaction, whose: Whose, look: Look) -> Callable[..., Operation[Ran]]:
    """What a transactional step does is seen when it is committed, together with its entry in the ledger."""
    attempt = transaction.attempt

    def act(*given: Any) -> Operation[Ran]:
        process, seen = whose(), look()
        try:
            number = process.begin_effect(name)
        except NotDone as error:
            return Raised(error)
        ran = yield from attempt(*given)
        try:
            process.end_effect(name, number, seen, look(), "transaction")
        except TimeoutError as error:  # the answer to the commit is lost
            return InDoubt(error)
        return ran

    return act


def _blocking(
    name: str, function: Callable[..., Any], whose: Whose, look: Look, kind: Callable[[], str]
) -> Callable[..., Any]:
    @functools.wraps(function)
    def act(*args: Any, **kwargs: Any) -> Any:
        number, seen = whose().begin_effect(name), look()
        try:
            value = function(*args, **kwargs)
        finally:
            whose().end_effect(name, number, seen, look(), kind())
        return value

    return act


def _awaiting(
    name: str, function: Callable[..., Any], whose: Whose, look: Look, kind: Callable[[], str]
) -> Callable[..., Any]:
    @functools.wraps(function)
    async def act(*args: Any, **kwargs: Any) -> Any:
        number, seen = whose().begin_effect(name), look()
        try:
            value = await function(*args, **kwargs)
        finally:
            whose().end_effect(name, number, seen, look(), kind())
        return value

    return act
