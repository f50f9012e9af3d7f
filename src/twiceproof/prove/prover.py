"""Runs every scenario in a forked child and compares it with one clean run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from msgspec import structs

from ..clock import Clock, system_clock
from ..errors import Misuse
from ..flows.flow import Flow
from ..stores.base import Engine
from ..stores.open import sqlite_file
from .checklist.search import drawn_in_key
from .child import ChildVanished, in_child
from .clocks import BEGINNING, ManualClock
from .diagnosis import (
    WrongDeclaration,
    declarations,
    refuse_clean_run,
    refuse_elsewhere,
    refuse_other,
    wrong_declarations,
)
from .ledgers import ledgers_at
from .network_guard import NetworkGuard
from .report import ProofReport
from .scenarios.real_processes import RealScenario
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
from .worlds.broker import is_open as is_broker_open
from .worlds.stand_in import open_places
from .worlds.table import LedgerTables
from .worlds.world import ForgetsKeys, LosesAnswers, World, Worlds, forgetting, losing, unanswered

__all__ = ["Prover"]


TRIES = 3  # for scenarios whose threads never reached the point of their fault
Shown = Callable[[int, int, str], None]
WORST = ("twice", "lost", "differs", "stuck", "failed", "broken")  # in this order


class Prover:
    """Runs the scenarios. `only` picks one by name; `budget` is in seconds, and the report says what it left out.

    `tables` lie in the ledger's own database, and are copied into that of each scenario."""

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
        tables: Sequence[str] = (),
        clock: Clock = system_clock,
        shown: Shown = lambda done, planned, name: None,
    ) -> None:
        self._target = target
        self._tables = LedgerTables(tables)
        self._table_names = tuple(tables)
        self._world = Worlds([world, self._tables]) if tables else world
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
        source = sqlite_file(self._target.app.settings.store) if self._table_names else None
        self._ledgers = ledgers_at(self._store, self._table_names, source)
        try:
            return self._run()
        finally:
            self._ledgers.close()
            self._world.reset()

    def _run(self) -> ProofReport:
        until = None if self._budget is None else self._clock.monotonic() + self._budget
        before = self._looked_at_first()
        clean = self._outcome_of(CLEAN)
        refuse_clean_run(clean, before, self._target, self._table_names)
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
            verdict = judge(scenario, self._outcome_of(scenario), self._outcome_of(beside), before)
            if self._is_doubtful(scenario, verdict) and self._die_in_earnest(scenario):
                verdict = judge(scenario, self._outcome_of(scenario), self._outcome_of(beside), before)
            verdicts.append(verdict)
        return self._report(clean, before, self._planned(plan), verdicts)

    def _confirmed(self, clean: ScenarioOutcome) -> ScenarioOutcome:
        """Checked by a second clean run, as late as after two kills. A result that differs then is not compared."""
        again = self._run_scenario(CLEAN, begins=BEGINNING + 2 * (self._target.flow.policy.lease + OVER))
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
        self._tables.open(self._ledgers.url(ledger))
        return self._world.look()

    def _report(
        self, clean: ScenarioOutcome, before: dict[str, int], planned: int, verdicts: list[Verdict]
    ) -> ProofReport:
        worst = min((one for one in verdicts if not one.good), key=lambda one: WORST.index(one.word), default=None)
        events: tuple[TimelineEvent, ...] = self._outcomes[worst.scenario].events if worst else ()
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
            events,
            worst.scenario if worst else "",
            drawn_in_key(flow.claim_requests),
            "kernel" if self._asks_kernel else "python",
            self._compares_result,
            clean.state,
            clean.result,
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
        events, undoes = 1 + len(target.then), isinstance(target.flow, Flow)
        erring = [
            number
            for number, (world, _, request) in enumerate(self._exchanges, 1)
            if isinstance(world, ForgetsKeys) and world.repeats_errors_to(request)
        ]
        window = max((one.window for one in forgetting(self._world)), default=0.0)
        return ScenarioPlan(clean, can_change, asked, events, self._depth, undoes, is_broker_open(), erring, window)

    def _chosen(self, plan: ScenarioPlan) -> Iterator[Scenario]:
        """A scenario that was asked for is planned only as far as needed:

        later ones are known only after running others.
        """
        names = []
        for scenario in plan.scenarios(self._outcome_of):
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

    # -- running scenarios --------------------------------------------------------------------------

    def _outcome_of(self, scenario: Scenario) -> ScenarioOutcome:
        if scenario.name not in self._outcomes:
            outcome = self._run_scenario(scenario)
            for _ in range(TRIES - 1):
                if outcome.error or not is_missed(scenario, outcome):
                    break
                outcome = self._run_scenario(scenario)
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
        return any(
            event.what == BODY and event.world.keys() & verdict.extra for event in self._outcome_of(scenario).events
        )

    def _die_in_earnest(self, scenario: Scenario) -> bool:
        """The same with real processes; False where that cannot be compared, because the outside is in memory."""
        if self._lies_in_memory is None:  # shown by a clean run: a killed one may leave nothing to see
            self._lies_in_memory = bool(self._run_scenario(CLEAN, real=True).error)
        if self._lies_in_memory:
            return False
        outcome = self._run_scenario(scenario, real=True)
        if outcome.error or is_missed(scenario, outcome):
            return False
        self._outcomes[scenario.name] = self._comparable(outcome)
        return True

    def _run_scenario(self, scenario: Scenario, *, real: bool = False, begins: float = BEGINNING) -> ScenarioOutcome:
        self._world.reset()
        name = self._ledgers.prepare()
        guard = NetworkGuard(self._allowed)
        try:
            with self._disturbing(scenario) as lost:
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
    def _disturbing(self, scenario: Scenario) -> Iterator[list[bool]]:
        """One answer from the outside is lost, or an error; whether that happened is known afterwards."""
        happened: list[bool] = []
        which = scenario.loses or scenario.errs
        if not which:
            yield happened
            return
        world, number, _ = self._exchanges[which - 1]
        if scenario.loses:
            world.lose(number)
        elif isinstance(world, ForgetsKeys):
            world.err(number)
        yield happened
        happened.append(len(world.exchanges()) >= number)

    def _perform(self, scenario: Scenario, ledger: str, real: bool, begins: float) -> ScenarioOutcome:
        """In the child. Nothing is closed: the child exits, and the parent removes its ledger."""
        self._tables.open(self._ledgers.url(ledger))
        if real:
            return RealScenario(self._target, scenario, partial(self._opened, ledger), self._world.look, begins).run()
        engine, clock = self._opened(ledger, begins)
        return SimulatedScenario(self._target, scenario, engine, clock, self._world.look).run()

    def _opened(self, ledger: str, at: float) -> tuple[Engine, ManualClock]:
        """Providers forget keys by the scenario's clock."""
        engine, clock = self._ledgers.open(ledger, at)
        providers = forgetting(self._world)

        def tell(wall: float) -> None:
            for one in providers:
                one.set_time(wall)

        if providers:
            tell(clock.wall)
            clock.told = tell
        return engine, clock


def _shown(store: str) -> str:
    """Only the scheme: the rest may contain a password."""
    return store.partition(":")[0]


def _unobserved(clean: ScenarioOutcome) -> tuple[str, ...]:
    acted = [event for event in clean.events if event.what.endswith(ACTS)]
    seen = {event.what.removesuffix(ACTS) for event in acted if event.world}
    return tuple(dict.fromkeys(step for step in clean.effects if step not in seen))


def _no_scenario(name: str, known: Sequence[str]) -> str:
    """Second kills are hundreds, each named after two others."""
    plain = [one for one in known if "+" not in one]
    twice = (
        f", and {len(known) - len(plain)} of two with a + between, which --all lists" if len(known) > len(plain) else ""
    )
    return f"There is no scenario {name!r}; there are: {', '.join(plain)}{twice}"
