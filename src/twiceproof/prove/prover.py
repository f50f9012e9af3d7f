"""The prover: plays every scene of a flow, each in a process and on a store of its own, beside one clean run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain

from msgspec import structs

from ..clock import Clock, system_clock
from ..errors import Misuse
from .isolation import Vanished, apart
from .ledgers.ledgers import ledgers_at
from .report import Report
from .scenes.catalogue import after_clean, after_refusal, around_waits, during_recovery, during_undo, out_of_order
from .scenes.outcome import ACTS, Beat, Outcome
from .scenes.play import Play
from .scenes.real_play import RealPlay
from .scenes.scene import CLEAN, Scene
from .scenes.verdict import Verdict, is_missed, judge
from .target import Target, other_payload
from .worlds.world import Losing, World, losing
from .wrong import Wrong, declarations, wrong_declarations

__all__ = ["Prover"]

WAITS = "say what it waits for, with --callback name=FILE or --approve name (callbacks=, approve= in a test)"
TRIES = 3  # at a play whose threads did not come to the point where its fault was to happen
Shown = Callable[[int, int, str], None]
WORST = ("twice", "lost", "differs", "stuck", "failed", "broken")  # in this order


class Prover:
    """`only` picks scenes by name; `budget` is in seconds, and what it did not reach is said."""

    def __init__(
        self,
        target: Target,
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
        self._store = store
        self._only = only
        self._budget = budget
        self._depth = depth
        self._processes = processes
        self._clock = clock
        self._shown = shown
        self._outcomes: dict[str, Outcome] = {}
        self._compared: dict[str, str] = {}  # with which scene each was
        self._exchanges: list[tuple[Losing, int, str]] = []  # with the outside, in one clean run

    def run(self) -> Report:
        """The outside is left as it was found, and of the plays' ledgers nothing is left."""
        if self._processes and self._store.startswith("memory:"):
            raise Misuse("Processes of their own share no memory; leave --store out, or name a server's.")
        self._ledgers = ledgers_at(self._store)
        try:
            return self._run()
        finally:
            self._ledgers.close()
            self._world.reset()

    def _run(self) -> Report:
        until = None if self._budget is None else self._clock.monotonic() + self._budget
        clean = self._play(CLEAN)
        if clean.error or clean.state not in ("done", "review", "failed"):
            raise Misuse(
                f"One clean run must come to an end first, and this one is {clean.state}: {clean.error or WAITS}"
            )
        self._exchanges = [
            (world, number, asked) for world in losing(self._world) for number, asked in enumerate(world.exchanges(), 1)
        ]
        chosen = self._chosen(clean)
        verdicts: list[Verdict] = []
        for scene in chosen:
            if until is not None and self._clock.monotonic() >= until:
                break
            self._shown(len(verdicts), len(chosen), scene.name)
            beside = self._beside(scene)
            self._compared[scene.name] = beside.name
            verdicts.append(judge(scene, self._play(scene), self._play(beside)))
        return self._report(clean, len(chosen), verdicts)

    def _report(self, clean: Outcome, planned: int, verdicts: list[Verdict]) -> Report:
        worst = min((one for one in verdicts if not one.good), key=lambda one: WORST.index(one.word), default=None)
        beats: tuple[Beat, ...] = self._outcomes[worst.scene].beats if worst else ()
        flow = self._target.flow
        return Report(
            flow.name, flow.key(self._target.args, self._target.kwargs), _shown(self._store), planned, tuple(verdicts),
            clean.seen, _unobserved(clean), self._wrong(verdicts), beats, worst.scene if worst else "",
        )  # fmt: skip

    def _wrong(self, verdicts: list[Verdict]) -> tuple[Wrong, ...]:
        bad = [(one, self._outcomes[one.scene], self._outcomes[self._compared[one.scene]]) for one in verdicts]
        return wrong_declarations(
            declarations(self._target.app.steps), [found for found in bad if not found[0].good]
        )  # fmt: skip

    # -- scenes ----------------------------------------------------------------------------------

    def _scenes(self, clean: Outcome) -> Iterator[Scene]:
        asked = [asked for _, _, asked in self._exchanges]
        first = list(after_clean(clean, can_change=self._can_change(), exchanges=asked))
        yield from first
        yield from around_waits(clean)
        yield from out_of_order(1 + len(self._target.then))
        for refused in after_refusal(clean):
            yield refused
            yield from during_undo(refused, self._play(refused))
        if self._depth > 1:
            yield from chain.from_iterable(
                during_recovery(scene, self._play(scene)) for scene in first if scene.scripts
            )

    def _chosen(self, clean: Outcome) -> list[Scene]:
        """One that is asked for is looked for no further than it is found: later ones are known only by playing."""
        names = []
        for scene in self._scenes(clean) if self._only else ():
            if scene.name == self._only:
                return [scene]
            names.append(scene.name)
        if self._only:
            raise Misuse(f"There is no scene {self._only!r}; there are: {', '.join(names)}")
        return list(self._scenes(clean))

    def _can_change(self) -> bool:
        """Whether a changed payload still has the same key; otherwise it is another event."""
        flow, args, kwargs = self._target.flow, self._target.args, self._target.kwargs
        changed = other_payload(args, kwargs)
        return changed != (args, kwargs) and flow.key(*changed) == flow.key(args, kwargs)

    def _beside(self, scene: Scene) -> Scene:
        if scene.beside == CLEAN.name:
            return CLEAN
        clean = self._outcomes[CLEAN.name]
        others = chain(around_waits(clean), out_of_order(1 + len(self._target.then)), after_refusal(clean))
        return next(one for one in others if one.name == scene.beside)

    # -- playing ---------------------------------------------------------------------------------

    def _play(self, scene: Scene) -> Outcome:
        if scene.name not in self._outcomes:
            outcome = self._played(scene)
            for _ in range(TRIES - 1):
                if outcome.error or not is_missed(scene, outcome):
                    break
                outcome = self._played(scene)
            self._outcomes[scene.name] = outcome
        return self._outcomes[scene.name]

    def _played(self, scene: Scene) -> Outcome:
        self._world.reset()
        name = self._ledgers.prepare()
        try:
            with self._losing(scene) as lost:
                outcome = apart(lambda: self._perform(scene, name), Outcome)
            return structs.replace(outcome, fired=outcome.fired + sum(lost))
        except Vanished as error:
            return Outcome("", error=str(error))
        finally:
            self._ledgers.forget(name)

    @contextmanager
    def _losing(self, scene: Scene) -> Iterator[list[bool]]:
        """One of the outside's answers is lost; whether it came to that is known afterwards."""
        lost: list[bool] = []
        if not scene.loses:
            yield lost
            return
        world, number, _ = self._exchanges[scene.loses - 1]
        world.lose(number)
        yield lost
        lost.append(len(world.exchanges()) >= number)

    def _perform(self, scene: Scene, ledger: str) -> Outcome:
        """In the child. Nothing is closed: the child ends, and its ledger is removed by who outlives it."""
        if self._processes:
            return RealPlay(self._target, scene, partial(self._ledgers.open, ledger), self._world.look).run()
        engine, clock = self._ledgers.open(ledger)
        return Play(self._target, scene, engine, clock, self._world.look).run()


def _shown(store: str) -> str:
    """Never more than the scheme: the rest may hold a password."""
    return store.partition(":")[0]


def _unobserved(clean: Outcome) -> tuple[str, ...]:
    acted = [beat for beat in clean.beats if beat.what.endswith(ACTS)]
    seen = {beat.what.removesuffix(ACTS) for beat in acted if beat.world}
    return tuple(dict.fromkeys(step for step in clean.effects if step not in seen))
