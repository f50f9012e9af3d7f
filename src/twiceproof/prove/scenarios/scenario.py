"""Scenario, Fault, Outcome, and the pure verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from ...claims.claim import DONE, FAILED, REVIEW

__all__ = [
    "ACTS",
    "BODY",
    "CLEAN",
    "REFUSED",
    "Arriving",
    "Awaited",
    "Delivery",
    "InjectedFault",
    "Place",
    "ScenarioOutcome",
    "Scene",
    "TimelineEvent",
    "Verdict",
    "What",
    "Word",
    "gained",
    "is_missed",
    "judge",
]


What = Literal["kill", "lose", "pause"]
Place = Literal["write", "effect"]


class InjectedFault(Struct, frozen=True):
    """At the so-manieth ledger write or effect of a process: before it, or after it and before anything else.

    `kill` ends the process; `lose` makes the step's answer a time-out though its effect is done; `pause` stops the
    process until its lease is over and another has gone on.
    """

    what: What
    place: Place
    number: int
    after: bool = False

    def __str__(self) -> str:
        when = "after" if self.after else "before"
        return f"{self.what}:{self.place}{self.number}:{when}"


ACTS, REFUSED = " acts", " is refused"  # how beats about steps end
BODY = "outside of any step"


class TimelineEvent(Struct, frozen=True):
    """One moment of a play, for the picture of it. `world` is what the outside gained in it."""

    process: int
    what: str
    world: dict[str, int] = {}


class Awaited(Struct, frozen=True):
    """Something that the run waited for, and that somebody was there to send."""

    name: str
    approval: bool
    ends: bool  # whether its time can run out


class ScenarioOutcome(Struct, frozen=True):
    """`state` is the run's; `seen` what the outside holds at the end; `points` how far a process that lives gets."""

    state: str
    result: str = ""
    seen: dict[str, int] = {}
    beats: tuple[TimelineEvent, ...] = ()
    writes: int = 0
    effects: tuple[str, ...] = ()  # the steps that acted, in order
    fired: int = 0  # faults that came about, odd arrivals among them
    error: str = ""  # why there was nothing to compare
    arrivals: dict[str, int] = {}  # callbacks and decisions that the ledger took as the first
    awaited: tuple[Awaited, ...] = ()
    answers: tuple[str, ...] = ()
    why: str = ""  # what the last caller was told instead of a result
    cut: tuple[str, ...] = ()  # connections from before the play, which it may not use


Delivery = Literal["once", "twice", "at-once", "later", "changed"]
Arriving = Literal["once", "twice", "early", "late", "never", "raced"]


class Scene(Struct, frozen=True):
    """`scripts` holds the faults of the first process, the second, and so on; whoever comes after them lives."""

    name: str
    says: str
    scripts: tuple[tuple[InjectedFault, ...], ...] = ()
    delivery: Delivery = "once"
    refuses: str = ""  # the step that the outside refuses, for good
    arrives: str = ""  # the callback or approval that comes otherwise than once, in time
    arrival: Arriving = "once"
    order: tuple[int, ...] = ()  # in which the events come, where there are several
    loses: int = 0  # which of the outside's answers is lost on its way
    beside: str = "clean"  # which scene's world it is compared with


CLEAN = Scene("clean", "one delivery, nothing goes wrong")


Word = Literal["same", "parked", "failed", "twice", "lost", "differs", "stuck", "broken", "missed"]
GOOD: tuple[Word, ...] = ("same", "parked", "missed")


class Verdict(Struct, frozen=True):
    """`extra` happened more often than in one clean run, `missing` less often; `state` is what the run ended in."""

    scene: str
    says: str
    word: Word
    state: str
    extra: dict[str, int] = {}
    missing: dict[str, int] = {}
    detail: str = ""
    expected: int = 0  # effects of the play that it is compared with
    seen: int = 0

    @property
    def good(self) -> bool:
        return self.word in GOOD


def judge(
    scene: Scene, outcome: ScenarioOutcome, clean: ScenarioOutcome, before: Mapping[str, int] | None = None
) -> Verdict:
    """Nothing may happen twice. What is missing must be done by a person's word, or the run is not done."""
    seen, wanted = (Counter(gained(before or {}, one.seen)) for one in (outcome, clean))
    arrived = Counter(outcome.arrivals) - Counter(clean.arrivals)  # what the killed were told, nobody knows
    extra, missing = dict(seen - wanted + arrived), dict(wanted - seen)
    word, detail = _word(outcome, clean, extra, missing)
    if scene.order and word in ("twice", "lost"):
        word, detail = "differs", "another outside than when the events come in the order given"
    if word == "same" and is_missed(scene, outcome):
        word, detail = "missed", "its fault was never reached: this flow's threads do not take turns alike"
    counts = wanted.total(), (seen + arrived).total()
    return Verdict(scene.name, scene.says, word, outcome.state, extra, missing, detail, *counts)


def gained(before: Mapping[str, int], now: Mapping[str, int]) -> dict[str, int]:
    """What there is more of than before anything was played, and what is gone."""
    more, gone = Counter(now) - Counter(before), Counter(before) - Counter(now)
    return {**more, **{f"gone: {what}": count for what, count in gone.items()}}


def is_missed(scene: Scene, outcome: ScenarioOutcome) -> bool:
    return outcome.fired < sum(map(len, scene.scripts)) + bool(scene.loses) + bool(scene.arrives)


def _word(
    outcome: ScenarioOutcome, clean: ScenarioOutcome, extra: dict[str, int], missing: dict[str, int]
) -> tuple[Word, str]:
    if outcome.error:
        return "broken", outcome.error
    if extra:
        return "twice", "something happened that does not happen in one clean run"
    if outcome.state == REVIEW:
        return "parked", "a person decides"
    if outcome.state != clean.state:
        return _other_end(outcome, clean)
    if missing:
        return "lost", "the run has ended, and something did not happen"
    return ("same", "") if outcome.result == clean.result else ("differs", "another result than one clean run's")


def _other_end(outcome: ScenarioOutcome, clean: ScenarioOutcome) -> tuple[Word, str]:
    if outcome.state in (DONE, FAILED):
        return "failed", f"it ended {outcome.state}, and one clean run ends {clean.state}"
    return "stuck", "it never came to an end"
