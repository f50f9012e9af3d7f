"""The plan: all scenes of a flow, in the order they are played in. Some are known only by playing others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

from .catalogue import after_clean, after_refusal, around_waits, during_recovery, during_undo, out_of_order
from .outcome import Outcome
from .scene import CLEAN, Scene

__all__ = ["Plan", "Played"]

Played = Callable[[Scene], Outcome | None]  # None: not yet


class Plan(Struct, frozen=True):
    clean: Outcome
    can_change: bool
    exchanges: Sequence[str]  # with the outside, in one clean run
    events: int
    depth: int
    undoes: bool = True  # a guarded function has nothing before it that could be undone

    def scenes(self, played: Played) -> Iterator[Scene]:
        """What `played` knows nothing of yet gives rise to nothing yet."""
        first = list(after_clean(self.clean, can_change=self.can_change, exchanges=self.exchanges))
        yield from first
        yield from around_waits(self.clean)
        yield from out_of_order(self.events)
        for refused in after_refusal(self.clean) if self.undoes else ():
            yield refused
            if (outcome := played(refused)) is not None:
                yield from during_undo(refused, outcome)
        for scene in first if self.depth > 1 else ():
            if scene.scripts and (outcome := played(scene)) is not None:
                yield from during_recovery(scene, outcome)

    def beside(self, scene: Scene) -> Scene:
        """The scene whose world it is compared with."""
        if scene.beside == CLEAN.name:
            return CLEAN
        return next(one for one in self._compared() if one.name == scene.beside)

    def _compared(self) -> Iterator[Scene]:
        yield from around_waits(self.clean)
        yield from out_of_order(self.events)
        yield from after_refusal(self.clean)
