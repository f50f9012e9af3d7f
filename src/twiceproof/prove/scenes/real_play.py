"""One play with real processes: each life is a process of its own, and a kill is a SIGKILL."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Literal

from msgspec import structs

from ...stores.base import Engine
from ..clocks import ManualClock
from ..target import Target
from .fault import Fault
from .life import Ended, Gate, Life, Message, Paused, Told, Voice
from .outcome import Beat, Outcome
from .play import CROWD, OVER, Play
from .process import Process, Stage
from .scene import Scene
from .steps import Look

__all__ = ["RealPlay"]

Opening = Callable[[float], tuple[Engine, ManualClock]]
Part = Literal["all", "some", "rest", "one"]
IN_MEMORY = (
    "what is looked at lies in each process' own memory; with processes of their own it must lie outside: files, "
    "tables, HTTP, mail, or a world= that asks there"
)


class RealPlay:
    """`opening` gives a process its own connections, at the play's time. Time is handed from one to the next."""

    def __init__(self, target: Target, scene: Scene, opening: Opening, look: Look, begins: float) -> None:
        self._target = target
        self._scene = scene
        self._opening = opening
        self._look = look
        self._wall = begins
        self._gate: Gate | None = None
        self._begun = 0
        self._beats: list[Beat] = []
        self._fired = 0
        self._answers: list[str] = []

    def run(self) -> Outcome:
        for script in self._scene.scripts:
            self._follow(self._begin(script, "some"))
            self._let_lapse()
        if self._scene.delivery == "at-once":
            self._crowd()
        end = self._follow(self._begin((), "rest" if self._scene.delivery == "at-once" else "all"))
        if end is None:
            return Outcome("", error="the last process ended without a word", beats=tuple(self._beats))
        seen = self._look()
        return structs.replace(
            end, seen=seen, beats=tuple(self._beats), fired=self._fired, answers=tuple(self._answers),
            error="" if seen == end.seen else IN_MEMORY,
        )  # fmt: skip

    def _crowd(self) -> None:
        gate = self._gate = Gate()
        crowd = [self._begin((), "one") for _ in range(CROWD)]
        gate.open(len(crowd))
        for one in crowd:
            self._follow(one)

    # -- in the play -----------------------------------------------------------------------------

    def _begin(self, script: tuple[Fault, ...], part: Part) -> Life:
        self._begun += 1
        number = self._begun
        return Life(lambda voice: self._inside(voice, number, script, part))

    def _follow(self, life: Life) -> Outcome | None:
        """Until its end. None: it was killed."""
        end = None
        for message in life.messages():
            self._hear(message, life)
            if isinstance(message, Ended):
                end = message.outcome
                self._answers += end.answers
        return end

    def _hear(self, message: Message, life: Life) -> None:
        if isinstance(message, Paused):
            self._let_lapse()
            self._follow(self._begin((), "rest"))
            life.wake(self._wall)
            return
        self._wall = max(self._wall, message.wall)
        if isinstance(message, Told):
            self._beats.append(message.beat)
            self._fired += message.fired

    def _let_lapse(self) -> None:
        self._wall += self._target.flow.policy.lease + OVER

    # -- in a process of its own -----------------------------------------------------------------

    def _inside(self, voice: Voice, number: int, script: tuple[Fault, ...], part: Part) -> None:
        engine, clock = self._opening(self._wall)

        def pause(paused: Process) -> None:
            clock.advance(max(0.0, voice.pause() - clock.wall))

        def heard(beat: Beat, fired: int) -> None:
            voice.say(Told(beat, clock.wall, fired))

        stage = Stage(pause, self._scene.refuses, look=self._look, seen=self._look(), die=_die, heard=heard)
        if part == "one" and self._gate is not None:
            self._gate.wait()
        play = Play(self._target, self._scene, engine, clock, self._look, stage)
        voice.say(Ended(play.live(number, script, part), clock.wall))


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()
