"""Scenarios with real processes, killed by SIGKILL."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Literal

import msgspec
from msgspec import Struct, structs

from ...stores.base import Engine
from ..clocks import ManualClock
from ..target import ProofTarget
from .process import Look, Process, ScenarioStage
from .scenario import InjectedFault, Scenario, ScenarioOutcome, TimelineEvent
from .simulated import CROWD, OVER, SimulatedScenario

__all__ = [
    "ChildProcess",
    "EventPipe",
    "Message",
    "PausePoint",
    "Paused",
    "ProcessEnded",
    "ProcessEvent",
    "RealScenario",
]


LONGEST = 60.0


class ProcessEvent(Struct, frozen=True, tag="told"):
    """An event, the process' clock at it, and how many of its faults have happened."""

    event: TimelineEvent
    wall: float
    fired: int


class Paused(Struct, frozen=True, tag="paused"):
    """Stopped until it is given the time."""


class ProcessEnded(Struct, frozen=True, tag="ended"):
    outcome: ScenarioOutcome
    wall: float


Message = ProcessEvent | Paused | ProcessEnded


class EventPipe:
    """The process' own end of the pipes."""

    def __init__(self, saying: int, hearing: int) -> None:
        self._saying = saying
        self._hearing = hearing
        self._mutex = threading.Lock()

    def say(self, message: Message) -> None:
        line = msgspec.json.encode(message) + b"\n"
        with self._mutex:
            while line:
                line = line[os.write(self._saying, line) :]

    def pause(self) -> float:
        """Wait until the parent sends the time."""
        self.say(Paused())
        return float(os.read(self._hearing, 100))


class PausePoint:
    """Processes wait here until all have arrived: the first forked would be done before the last starts."""

    def __init__(self) -> None:
        self._arrived, self._arriving = os.pipe()
        self._opened, self._opening = os.pipe()

    def wait(self) -> None:
        os.close(self._opening)
        os.write(self._arriving, b".")
        os.close(self._arriving)
        os.read(self._opened, 1)

    def open(self, many: int) -> None:
        os.close(self._arriving)
        while many > 0 and (there := os.read(self._arrived, many)):  # end of file: the others have died
            many -= len(there)
        for end in (self._opening, self._opened, self._arrived):
            os.close(end)


class ChildProcess:
    """Starts with a fork. `messages` ends when the process does, for whatever reason."""

    def __init__(self, work: Callable[[EventPipe], None]) -> None:
        self._heard, saying = os.pipe()
        hearing, self._telling = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the child needs none of the parent's threads
            self._child = os.fork()
        if self._child == 0:
            _live(work, EventPipe(saying, hearing))
        os.close(saying)
        os.close(hearing)

    def messages(self) -> Iterator[Message]:
        with os.fdopen(self._heard, "rb") as lines:
            for line in lines:
                yield msgspec.json.decode(line, type=Message)
        os.close(self._telling)
        os.waitpid(self._child, 0)

    def wake(self, wall: float) -> None:
        os.write(self._telling, repr(wall).encode())


def _live(work: Callable[[EventPipe], None], pipe: EventPipe) -> None:
    """Never returns: the child must not unwind the parent's stack."""
    gc.freeze()
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, LONGEST)
        work(pipe)
    except BaseException:  # noqa: BLE001 - any error is reported here or nowhere
        traceback.print_exc(file=sys.stderr)
    finally:
        sys.stderr.flush()
        os._exit(0)


Opening = Callable[[float], tuple[Engine, ManualClock]]
Part = Literal["all", "some", "rest", "one"]
IN_MEMORY = (
    "what is looked at lies in each process' own memory; with processes of their own it must lie outside: files, "
    "tables, HTTP, mail, or a world= that asks there"
)


class RealScenario:
    """`opening` gives a process its own connections, at the scenario's time, which passes from one to the next."""

    def __init__(self, target: ProofTarget, scenario: Scenario, opening: Opening, look: Look, begins: float) -> None:
        self._target = target
        self._scenario = scenario
        self._opening = opening
        self._look = look
        self._wall = begins
        self._gate: PausePoint | None = None
        self._begun = 0
        self._events: list[TimelineEvent] = []
        self._fired = 0
        self._answers: list[str] = []

    def run(self) -> ScenarioOutcome:
        for script in self._scenario.scripts:
            self._follow(self._begin(script, "some"))
            self._let_lapse()
            self._wall += self._scenario.idle
        if self._scenario.delivery == "at-once":
            self._crowd()
        end = self._follow(self._begin((), "rest" if self._scenario.delivery == "at-once" else "all"))
        if end is None:
            return ScenarioOutcome("", error="the last process ended without a word", events=tuple(self._events))
        seen = self._look()
        return structs.replace(
            end,
            seen=seen,
            events=tuple(self._events),
            fired=self._fired,
            answers=tuple(self._answers),
            error="" if seen == end.seen else IN_MEMORY,
        )

    def _crowd(self) -> None:
        gate = self._gate = PausePoint()
        crowd = [self._begin((), "one") for _ in range(CROWD)]
        gate.open(len(crowd))
        for one in crowd:
            self._follow(one)

    # -- in the scenario's process -----------------------------------------------------------------------------

    def _begin(self, script: tuple[InjectedFault, ...], part: Part) -> ChildProcess:
        self._begun += 1
        number = self._begun
        return ChildProcess(lambda pipe: self._inside(pipe, number, script, part))

    def _follow(self, life: ChildProcess) -> ScenarioOutcome | None:
        """Follow a process to its end. None: it was killed."""
        end = None
        for message in life.messages():
            self._hear(message, life)
            if isinstance(message, ProcessEnded):
                end = message.outcome
                self._answers += end.answers
        return end

    def _hear(self, message: Message, life: ChildProcess) -> None:
        if isinstance(message, Paused):
            self._let_lapse()
            self._follow(self._begin((), "rest"))
            life.wake(self._wall)
            return
        self._wall = max(self._wall, message.wall)
        if isinstance(message, ProcessEvent):
            self._events.append(message.event)
            self._fired += message.fired

    def _let_lapse(self) -> None:
        self._wall += self._target.flow.policy.lease + OVER

    # -- in a process of its own -----------------------------------------------------------------

    def _inside(self, pipe: EventPipe, number: int, script: tuple[InjectedFault, ...], part: Part) -> None:
        engine, clock = self._opening(self._wall)

        def pause(paused: Process) -> None:
            clock.advance(max(0.0, pipe.pause() - clock.wall))

        def heard(event: TimelineEvent, fired: int) -> None:
            pipe.say(ProcessEvent(event, clock.wall, fired))

        stage = ScenarioStage(pause, self._scenario.refuses, look=self._look, seen=self._look(), die=_die, heard=heard)
        if part == "one" and self._gate is not None:
            self._gate.wait()
        scenario = SimulatedScenario(self._target, self._scenario, engine, clock, self._look, stage)
        pipe.say(ProcessEnded(scenario.live(number, script, part), clock.wall))


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()
