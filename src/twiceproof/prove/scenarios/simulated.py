"""Runs one scenario with simulated processes, in one process."""

from __future__ import annotations

import asyncio
import inspect
import re
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
from msgspec import structs

from ...app.app import App
from ...claims.claim import DONE, FAILED, REVIEW
from ...clock import Clock
from ...errors import ClaimLost, InProgress, Misuse, NeedsReview, PayloadMismatch, PriorFailure, Stale, Waiting
from ...operations import Request, block
from ...records import Address, Due, Found, Insert, Outcome, Page, Write
from ...stores.base import Engine, Finding, Store
from ...stores.notifications import Subscription
from ..clocks import ManualClock
from ..target import ProofTarget, other_payload
from ..worlds.broker import is_open as is_broker_open
from .process import Killed, Look, Process, ScenarioStage, process_var, watched
from .scenario import RELAY, InjectedFault, Scenario, ScenarioOutcome
from .senders import Senders

__all__ = ["CROWD", "OVER", "PatchedApp", "SimulatedScenario", "patched_app"]


class PatchedApp:
    """A store that routes each caller to the store of the simulated process it belongs to."""

    def __init__(self) -> None:
        self.main: Process | None = None  # of threads that the flow itself started

    @property
    def _store(self) -> Store:
        process = process_var.get() or self.main
        if process is None:
            raise Misuse("The scenario has not begun, or is over; prove calls the flow itself.")
        return process.store

    @property
    def batch_limit(self) -> int:
        return self._store.batch_limit

    @property
    def body_limit(self) -> int:
        return self._store.body_limit

    @property
    def best_effort(self) -> bool:
        return False  # a private store outlives the scenario

    @property
    def newest_first(self) -> bool:
        return self._store.newest_first

    @property
    def reads_first(self) -> bool:
        return self._store.reads_first

    def read(self, at: Address) -> Request[Found]:
        return self._store.read(at)

    @property
    def links_spaces(self) -> bool:
        return self._store.links_spaces

    def write(self, *writes: Write, also: Insert | None = None, linked: Sequence[Write] = ()) -> Request[Outcome]:
        return self._store.write(*writes, also=also, linked=linked)

    def scan(self, kind: str, **where: Any) -> Request[Page]:
        return self._store.scan(kind, **where)

    def due(self, kind: str, *, queues: Collection[str], limit: int = 100, hide: float = 5.0) -> Request[Due]:
        return self._store.due(kind, queues=queues, limit=limit, hide=hide)

    def pause(self, space: str, seconds: float) -> Request[None]:
        return self._store.pause(space, seconds)

    def watch(self, places: Collection[str]) -> Subscription:
        return self._store.watch(places)

    def examine(self) -> Sequence[Finding]:
        return self._store.examine()

    def close(self) -> None: ...

    def __getattr__(self, name: str) -> Any:
        """What SQL stores offer in addition (joins)."""
        return getattr(self._store, name)


@contextmanager
def patched_app(app: App, clock: Clock) -> Iterator[PatchedApp]:
    """Replace the store and the clock wherever the app and its parts hold them."""
    stand_in = PatchedApp()
    old = {id(app.store): stand_in, id(app.clock): clock}
    changed = [(part, name, value) for part in _parts(app) for name, value in vars(part).items() if id(value) in old]
    for part, name, value in changed:
        setattr(part, name, old[id(value)])
    try:
        yield stand_in
    finally:
        for part, name, value in changed:
            setattr(part, name, value)


def _parts(app: App) -> list[Any]:
    factories: list[Any] = [flow.claim_requests for flow in app.flows.values()]
    factories += [once.claim_requests for once in app.operations.values()]
    found = [app, app.claims, app.runtime, app.tenants, app._housekeeper, app._heartbeat, *app.due_work, *factories]
    return list({id(part): part for part in found}.values())


MOST_ROUNDS = 60  # deliveries; a run that does not come to rest by then is stuck
CROWD = 8
LATER = 3_600.0
RELAY_AGAIN = (61.0, 61.0, LATER, 0.0)  # seconds: past the relay's lease and its first retries, then past a delay
OVER = 1.0  # seconds past a lease
DEFINITE = (DONE, FAILED, REVIEW)
REFERENCE = re.compile(r"res://[\w./-]+")  # of a stored value: another attempt stores the same one under another name


class SimulatedScenario:
    """`engine` is the ledger that outlives the processes, `look` observes the outside."""

    def __init__(
        self,
        target: ProofTarget,
        scenario: Scenario,
        engine: Engine,
        clock: ManualClock,
        look: Look,
        stage: ScenarioStage | None = None,
    ) -> None:
        self._target = target
        self._scenario = scenario
        self._engine = engine
        self._clock = clock
        self._look = look
        self._stage = stage or ScenarioStage(self._go_on_without, scenario.refuses, look=look, seen=look())
        self._processes: list[Process] = []
        self._stand_in = PatchedApp()
        self._senders = Senders(target, scenario, self._whose)
        self._answers: list[str] = []
        self._why = ""

    def run(self) -> ScenarioOutcome:
        """Run all of it with simulated processes."""
        with self._on_stage():
            for script in self._scenario.scripts:
                self._enter(script)
                self._deliver_by(self._scenario)
                self._come_to_rest()
                self._relay()
                self._let_lapse()
                self._clock.advance(self._scenario.idle)
            self._enter(())
            state, result = self._in_order() if self._scenario.order else self._to_the_end()
        return self._outcome(state, result)

    def live(self, number: int, script: tuple[InjectedFault, ...], part: str) -> ScenarioOutcome:
        """Run one process of it, in this process:

        `all` to the end, `some` until it dies, the `rest`, or `one` delivery.
        """
        with self._on_stage():
            self._enter(script, number)
            state, result = "", ""
            if part == "all":
                state, result = self._in_order() if self._scenario.order else self._to_the_end()
            elif part == "rest":
                state = self._come_to_rest()
                result = self._result() if state == DONE else ""
                self._relay()
            elif part == "one":
                self._clock.crowd = CROWD
                self._answer(self._deliver)
            else:
                self._deliver_by(self._scenario)
                self._come_to_rest()
                self._relay()
        return self._outcome(state, result)

    @contextmanager
    def _on_stage(self) -> Iterator[None]:
        app = self._target.app
        app.runtime.flusher.stop()  # completions are flushed by the flow itself, at the same points in every run
        app._heartbeat.stop()  # time stands still until the scenario moves it
        app.claims.duplicates.arm = lambda: None  # duplicates counted in a scenario are not stored
        app.runtime.roll = lambda: 0.5  # a scenario and its repetition reach the same points
        with patched_app(app, self._clock) as self._stand_in, watched(self._target.acting, self._whose, self._look):
            yield

    def _outcome(self, state: str, result: str) -> ScenarioOutcome:
        last = self._processes[-1]
        last.notice()
        return ScenarioOutcome(
            state,
            result,
            self._look(),
            tuple(self._stage.events),
            last.writes,
            tuple(last.effects),
            self._stage.fired,
            "",
            dict(self._senders.arrivals),
            tuple(self._senders.awaited.values()),
            tuple(self._answers),
            self._why,
        )

    def _to_the_end(self) -> tuple[str, str]:
        self._senders.come_early()
        self._deliver_by(self._scenario)
        state = self._come_to_rest()
        self._senders.come_late()
        self._relay()
        return state, self._result() if state == DONE else ""

    def _in_order(self) -> tuple[str, str]:
        """Several events, each delivered until its run is at rest.

        Only the outside counts: a stale event has no result.
        """
        events = [(self._target.args, self._target.kwargs), *self._target.then]
        states: set[str] = set()
        for number in self._scenario.order:
            args, kwargs = events[number]
            self._target = structs.replace(self._target, args=args, kwargs=kwargs)
            self._senders = Senders(self._target, self._scenario, self._whose)
            self._whose().tell(f"event {number + 1} is delivered")
            states.add(self._to_the_end()[0])
        return ", ".join(sorted(states)), ""

    def _relay(self) -> None:
        """Publish what the run has sent, in this process. What a killed relay was handed is due again later."""
        if not is_broker_open():
            return
        whose = self._whose()
        whose.notice()
        for relay in self._target.app.relay().targets:
            for later in RELAY_AGAIN:
                for _ in range(MOST_ROUNDS):
                    if whose.dead or relay.run_once() > 0:
                        break
                if not whose.dead:
                    whose.notice(RELAY)
                    self._clock.advance(later)

    # -- processes -------------------------------------------------------------------------------

    def _enter(self, script: tuple[InjectedFault, ...], number: int = 0) -> Process:
        process = Process(number or len(self._processes) + 1, self._engine, self._clock, script, self._stage)
        self._processes.append(process)
        self._stand_in.main = process
        process_var.set(process)
        return process

    def _whose(self) -> Process:
        return process_var.get() or self._processes[-1]

    def _let_lapse(self) -> None:
        self._clock.advance(self._target.flow.policy.lease + OVER)

    def _go_on_without(self, paused: Process) -> None:
        """Another process finds the lapsed run and continues it, on a thread without the first one's context."""
        self._let_lapse()
        other = threading.Thread(target=self._deliver_elsewhere, name="twiceproof-scenario")
        other.start()
        other.join()
        process_var.set(paused)
        self._stand_in.main = paused

    def _deliver_elsewhere(self) -> None:
        self._enter(())
        self._come_to_rest()

    # -- deliveries ------------------------------------------------------------------------------

    def _deliver_by(self, scenario: Scenario) -> None:
        if scenario.delivery == "at-once":
            self._deliver_at_once()
            return
        self._answer(self._deliver)
        if scenario.delivery == "later":
            self._clock.advance(LATER)
        for _ in range({"twice": 1, "later": 1, "thrice": 2}.get(scenario.delivery, 0)):
            self._answer(self._deliver)
        if scenario.delivery == "changed":
            self._answer(lambda: self._deliver(changed=True))

    def _deliver_at_once(self) -> None:
        process = self._whose()

        def deliver() -> None:
            process_var.set(process)
            self._answer(self._deliver)

        crowd = [threading.Thread(target=deliver, name=f"twiceproof-scenario-{number}") for number in range(CROWD)]
        self._clock.crowd = CROWD
        for one in crowd:
            one.start()
        for one in crowd:
            one.join()
        self._clock.crowd = 1

    def _answer(self, deliver: Callable[[], Any]) -> None:
        """A caller's error is part of the scenario, never its end."""
        try:
            deliver()
            self._answers.append("returned")
        except Killed:
            self._answers.append("killed")
        except Exception as error:  # noqa: BLE001 - ours, or the flow's own
            self._answers.append(type(error).__name__)
            self._why = _said(error)

    def _deliver(self, *, changed: bool = False) -> Any:
        args, kwargs = self._target.args, self._target.kwargs
        if changed:
            args, kwargs = other_payload(self._target.flow, args, kwargs) or (args, kwargs)
        given = self._target.call(*args, **kwargs)
        return asyncio.run(given) if inspect.iscoroutine(given) else given

    def _come_to_rest(self) -> str:
        """Deliver until the run ends, moving time on where it waits. Returns the state it rests in."""
        for _ in range(MOST_ROUNDS):
            try:
                state = self._state()
                if state in DEFINITE:
                    return state
                if not self._go_on():
                    return "waiting"
            except Killed:
                return "killed"
            except (InProgress, ClaimLost):
                self._let_lapse()
            except (NeedsReview, PriorFailure, PayloadMismatch) as error:
                if self._whose().dead:  # killed at the write that would have said so
                    return "killed"
                self._why = self._why or _said(error)
                return self._state()
            except Exception as error:  # noqa: BLE001 - the flow's own: the ledger says whether the run has ended
                self._why = _said(error)
                if not self._whose().dead and self._state() not in DEFINITE:
                    self._let_lapse()
        return "stuck"

    def _go_on(self) -> bool:
        """Deliver once more; if the run waits, send what it waits for, or advance the time. False: it waits for
        ever.
        """
        try:
            self._deliver()
        except Waiting as waiting:
            if self._senders.meet(waiting):
                return True
            if waiting.until is None:
                return False
            self._clock.advance(max(OVER, waiting.until - self._clock.now() + OVER))
        return True

    def _state(self) -> str:
        flow = self._target.flow
        key = flow.key(self._target.args, self._target.kwargs)
        return block(flow.handle(key).state())

    def _result(self) -> str:
        flow = self._target.flow
        try:
            value = block(flow.handle(flow.key(self._target.args, self._target.kwargs)).result(0.0))
        except Stale:
            return "overtaken"
        return REFERENCE.sub("res://…", msgspec.json.encode(value).decode())


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".removesuffix(": ").rstrip(".")
