"""Runs every scenario in a forked child and compares it with one clean run."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import msgspec
from msgspec import structs

from ..clock import Clock, system_clock
from ..errors import Misuse
from ..flows.flow import Flow
from .checklist.rules import drawn_in_key
from .clocks import BEGINNING
from .diagnosis import WrongDeclaration, declarations, refuse_elsewhere, refuse_other, refuse_unfit, wrong_declarations
from .ledgers import ledgers_at
from .network_guard import NetworkGuard
from .report import ProofReport
from .scenarios.real_processes import RealPlay
from .scenarios.scenario import (
    ACTS,
    BODY,
    CLEAN,
    Scenario,
    ScenarioOutcome,
    ScenarioPlan,
    TimelineEvent,
    Verdict,
    gained,
    is_missed,
    judge,
)
from .scenarios.simulated import OVER, SimulatedScenario
from .socket_guard import AllowedDestinations, import_libpq
from .target import ProofTarget, other_payload
from .worlds.stand_in import open_places
from .worlds.world import LosesAnswers, World, losing, unanswered

__all__ = ["ChildVanished", "Prover", "in_child"]


T = TypeVar("T")


class ChildVanished(RuntimeError):
    """The child ended without an answer."""


def in_child(
    work: Callable[[], T],
    kind: type[T],
    *,
    seconds: float = 60.0,
    aloud: bool = True,
    guard: NetworkGuard | None = None,
) -> T:
    """Call a function in a forked child and return its answer, which travels as JSON.

    A child that takes too long is killed. `guard` limits its connections. Its output is not the parent's: it goes to
    stderr, or nowhere unless `aloud`.
    """
    sys.stdout.flush()  # or every child would flush the same buffered lines
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the child needs none of the parent's threads
        child = os.fork()
    if child == 0:
        os.close(reading)
        _answer(work, writing, seconds, aloud, guard)
    os.close(writing)
    try:
        with os.fdopen(reading, "rb") as pipe:
            text = pipe.read() if guard is None else guard.follow(pipe.fileno())
    except BaseException:  # the proof is interrupted: the scenario must not go on changing what is being restored
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        _, status = os.waitpid(child, 0)
    if not text:
        raise ChildVanished(f"the play ended without an answer ({_ending(status)})")
    return msgspec.json.decode(text, type=kind)


def _answer(work: Callable[[], object], writing: int, seconds: float, aloud: bool, guard: NetworkGuard | None) -> None:
    """Never returns: the child must not unwind the parent's stack."""
    code = 1
    _print_elsewhere(aloud)
    gc.freeze()  # a collection would touch, and so copy, every page of the parent's memory
    try:
        for number in (signal.SIGALRM, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        if guard is not None:
            guard.enter()
        text = msgspec.json.encode(work())
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(text)
        code = 0
    except BaseException:  # noqa: BLE001 - any error is reported here or nowhere
        traceback.print_exc(file=sys.stderr)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _print_elsewhere(aloud: bool) -> None:
    """Redirect output, also that of started programs."""
    if not aloud:
        logging.disable()  # a hundred scenarios would each report that they were killed
    nowhere = os.open(os.devnull, os.O_WRONLY)
    with contextlib.suppress(OSError):  # a process may have no stderr
        os.dup2(2 if aloud else nowhere, 1)
    sys.stdout = sys.stderr if aloud else os.fdopen(nowhere, "w")


def _ending(status: int) -> str:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return "it took too long" if number == signal.SIGALRM else f"signal {number}"
    return f"exit code {os.WEXITSTATUS(status)}"


TRIES = 3  # for scenarios whose threads never reached the point of their fault
Shown = Callable[[int, int, str], None]
WORST = ("twice", "lost", "differs", "stuck", "failed", "broken")  # in this order


class Prover:
    """Runs the scenarios. `only` picks one by name; `budget` is in seconds, and the report says what it left out."""

    def __init__(
        self,
        target: ProofTarget,
        world: World,
        *,
        store: str = "sqlite",
        only: str = "",
        budget: float | None = None,
        depth: int = 2,
        processes: bool = False,
        clock: Clock = system_clock,
        shown: Shown = lambda done, planned, name: None,
    ) -> None:
        self._target = target
        self._world = world
        self._store = "memory://" if store == "memory" else store
        self._only = only
        self._budget = budget
        self._depth = depth
        self._processes = processes
        self._clock = clock
        self._shown = shown
        self._outcomes: dict[str, ScenarioOutcome] = {}
        self._compared: dict[str, str] = {}  # outcomes, by the scenario they were compared with
        self._compares_result = True
        self._lies_in_memory: bool | None = None  # the outside; None: not known yet
        self._exchanges: list[tuple[LosesAnswers, int, str]] = []  # requests to the outside, in one clean run
        self._unanswered: dict[str, None] = {}  # reads for which a world had no answer

    def run(self) -> ProofReport:
        """Run all scenarios. The outside is restored, and all private ledgers are removed."""
        if self._processes and self._store.startswith("memory:"):
            raise Misuse("Processes of their own share no memory; leave --store out, or name a server's.")
        self._ledgers = ledgers_at(self._store)
        try:
            return self._run()
        finally:
            self._ledgers.close()
            self._world.reset()

    def _run(self) -> ProofReport:
        until = None if self._budget is None else self._clock.monotonic() + self._budget
        before = self._looked_at_first()
        clean = self._play(CLEAN)
        refuse_unfit(clean, before, self._target)
        clean = self._confirmed(clean)
        self._exchanges = [
            (world, number, asked) for world in losing(self._world) for number, asked in enumerate(world.exchanges(), 1)
        ]
        plan = self._plan(clean)
        verdicts: list[Verdict] = []
        for scenario in self._chosen(plan):
            if until is not None and self._clock.monotonic() >= until:
                break
            self._shown(len(verdicts), self._planned(plan), scenario.name)
            beside = plan.beside(scenario)
            self._compared[scenario.name] = beside.name
            verdict = judge(scenario, self._play(scenario), self._play(beside), before)
            if self._is_doubtful(scenario, verdict) and self._die_in_earnest(scenario):
                verdict = judge(scenario, self._play(scenario), self._play(beside), before)
            verdicts.append(verdict)
        return self._report(clean, before, self._planned(plan), verdicts)

    def _confirmed(self, clean: ScenarioOutcome) -> ScenarioOutcome:
        """Checked by a second clean run, as late as after two kills. A result that differs then is not compared."""
        again = self._played(CLEAN, begins=BEGINNING + 2 * (self._target.flow.policy.lease + OVER))
        refuse_other(clean, again)
        self._compares_result = clean.result == again.result
        self._outcomes[CLEAN.name] = self._comparable(clean)
        return self._outcomes[CLEAN.name]

    def _comparable(self, outcome: ScenarioOutcome) -> ScenarioOutcome:
        return outcome if self._compares_result else structs.replace(outcome, result="")

    def _looked_at_first(self) -> dict[str, int]:
        """Look at the outside before anything runs.

        What worlds and ledgers connect to here, scenarios may connect to as well.
        """
        import_libpq()
        self._allowed = AllowedDestinations([*self._target.real, *open_places()])
        name = self._ledgers.prepare()
        guard = NetworkGuard(self._allowed, learning=True)
        try:
            return in_child(lambda: self._first_look(name), dict[str, int], aloud=False, guard=guard)
        finally:
            self._ledgers.forget(name)
            self._asks_kernel = guard.asks_kernel

    def _first_look(self, ledger: str) -> dict[str, int]:
        self._ledgers.open(ledger)
        return self._world.look()

    def _report(
        self, clean: ScenarioOutcome, before: dict[str, int], planned: int, verdicts: list[Verdict]
    ) -> ProofReport:
        worst = min((one for one in verdicts if not one.good), key=lambda one: WORST.index(one.word), default=None)
        beats: tuple[TimelineEvent, ...] = self._outcomes[worst.scenario].beats if worst else ()
        flow = self._target.flow
        return ProofReport(
            flow.name,
            flow.key(self._target.args, self._target.kwargs),
            _shown(self._store),
            planned,
            tuple(verdicts),
            gained(before, clean.seen),
            _unobserved(clean),
            self._wrong(verdicts),
            beats,
            worst.scenario if worst else "",
            drawn_in_key(flow.asking),
            "kernel" if self._asks_kernel else "python",
            self._compares_result,
            tuple(self._unanswered),
        )

    def _wrong(self, verdicts: list[Verdict]) -> tuple[WrongDeclaration, ...]:
        bad = [(one, self._outcomes[one.scenario], self._outcomes[self._compared[one.scenario]]) for one in verdicts]
        return wrong_declarations(declarations(self._outcomes.values()), [found for found in bad if not found[0].good])

    # -- scenarios ----------------------------------------------------------------------------------

    def _plan(self, clean: ScenarioOutcome) -> ScenarioPlan:
        asked = [asked for _, _, asked in self._exchanges]
        target = self._target
        can_change = other_payload(target.flow, target.args, target.kwargs) is not None
        return ScenarioPlan(clean, can_change, asked, 1 + len(target.then), self._depth, isinstance(target.flow, Flow))

    def _chosen(self, plan: ScenarioPlan) -> Iterator[Scenario]:
        """A scenario that was asked for is planned only as far as needed:

        later ones are known only after running others.
        """
        names = []
        for scenario in plan.scenarios(self._play):
            if self._only in ("", scenario.name):
                yield scenario
            if scenario.name == self._only:
                return
            names.append(scenario.name)
        if self._only:
            raise Misuse(_no_scenario(self._only, names))

    def _planned(self, plan: ScenarioPlan) -> int:
        """As far as known from what has run."""
        return 1 if self._only else sum(1 for _ in plan.scenarios(lambda scenario: self._outcomes.get(scenario.name)))

    # -- playing ---------------------------------------------------------------------------------

    def _play(self, scenario: Scenario) -> ScenarioOutcome:
        if scenario.name not in self._outcomes:
            outcome = self._played(scenario)
            for _ in range(TRIES - 1):
                if outcome.error or not is_missed(scenario, outcome):
                    break
                outcome = self._played(scenario)
            self._outcomes[scenario.name] = self._comparable(outcome)
        return self._outcomes[scenario.name]

    def _is_doubtful(self, scenario: Scenario, verdict: Verdict) -> bool:
        """Simulated processes share their memory, and a killed one still runs its own `except` or `finally` blocks.

        Not for second kills, of which there are hundreds: the first kill shows the same.
        """
        if not scenario.scripts or self._processes or self._store.startswith("memory:"):
            return False
        if verdict.good:
            return len(scenario.scripts) == 1 and all(fault.what != "lose" for fault in scenario.scripts[0])
        return any(beat.what == BODY and beat.world.keys() & verdict.extra for beat in self._play(scenario).beats)

    def _die_in_earnest(self, scenario: Scenario) -> bool:
        """The same with real processes; False where that cannot be compared, because the outside is in memory."""
        if self._lies_in_memory is None:  # shown by a clean run: a killed one may leave nothing to see
            self._lies_in_memory = bool(self._played(CLEAN, real=True).error)
        if self._lies_in_memory:
            return False
        outcome = self._played(scenario, real=True)
        if outcome.error or is_missed(scenario, outcome):
            return False
        self._outcomes[scenario.name] = self._comparable(outcome)
        return True

    def _played(self, scenario: Scenario, *, real: bool = False, begins: float = BEGINNING) -> ScenarioOutcome:
        self._world.reset()
        name = self._ledgers.prepare()
        guard = NetworkGuard(self._allowed)
        try:
            with self._losing(scenario) as lost:
                outcome = in_child(
                    lambda: self._perform(scenario, name, real or self._processes, begins),
                    ScenarioOutcome,
                    aloud=bool(self._only),
                    guard=guard,
                )
            outcome = structs.replace(outcome, fired=outcome.fired + sum(lost))
            self._unanswered.update(dict.fromkeys(unanswered(self._world)))
        except ChildVanished as error:
            outcome = ScenarioOutcome("", error=str(error))
        finally:
            self._ledgers.forget(name)
        refuse_elsewhere("One clean run" if scenario is CLEAN else f"In {scenario.name} it", guard.noted)
        return structs.replace(outcome, cut=tuple(guard.cut))

    @contextmanager
    def _losing(self, scenario: Scenario) -> Iterator[list[bool]]:
        """One answer from the outside is lost; whether that happened is known afterwards."""
        lost: list[bool] = []
        if not scenario.loses:
            yield lost
            return
        world, number, _ = self._exchanges[scenario.loses - 1]
        world.lose(number)
        yield lost
        lost.append(len(world.exchanges()) >= number)

    def _perform(self, scenario: Scenario, ledger: str, real: bool, begins: float) -> ScenarioOutcome:
        """In the child. Nothing is closed: the child exits, and the parent removes its ledger."""
        if real:
            return RealPlay(self._target, scenario, partial(self._ledgers.open, ledger), self._world.look, begins).run()
        engine, clock = self._ledgers.open(ledger, begins)
        return SimulatedScenario(self._target, scenario, engine, clock, self._world.look).run()


def _shown(store: str) -> str:
    """Only the scheme: the rest may contain a password."""
    return store.partition(":")[0]


def _unobserved(clean: ScenarioOutcome) -> tuple[str, ...]:
    acted = [beat for beat in clean.beats if beat.what.endswith(ACTS)]
    seen = {beat.what.removesuffix(ACTS) for beat in acted if beat.world}
    return tuple(dict.fromkeys(step for step in clean.effects if step not in seen))


def _no_scenario(name: str, known: Sequence[str]) -> str:
    """Second kills are hundreds, each named after two others."""
    plain = [one for one in known if "+" not in one]
    twice = (
        f", and {len(known) - len(plain)} of two with a + between, which --all lists" if len(known) > len(plain) else ""
    )
    return f"There is no scenario {name!r}; there are: {', '.join(plain)}{twice}"
