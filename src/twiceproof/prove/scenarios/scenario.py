"""A scenario, its faults and its outcome, and the pure verdict."""

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
    "Scenario",
    "ScenarioOutcome",
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
    """At the n-th ledger write or effect of a process: before it, or after it and before anything else.

    `kill` ends the process; `lose` turns the step's answer into a time-out though its effect is done; `pause` stops
    the
    process until its lease has lapsed and another one has gone on.
    """

    what: What
    place: Place
    number: int
    after: bool = False

    def __str__(self) -> str:
        when = "after" if self.after else "before"
        return f"{self.what}:{self.place}{self.number}:{when}"


ACTS, REFUSED = " acts", " is refused"  # how timeline entries about steps end
BODY = "outside of any step"


class TimelineEvent(Struct, frozen=True):
    """One event of the timeline. `world` is what the outside gained in it."""

    process: int
    what: str
    world: dict[str, int] = {}


class Awaited(Struct, frozen=True):
    """Something that the run waited for and that a sender could deliver."""

    name: str
    approval: bool
    ends: bool  # whether it can time out


class ScenarioOutcome(Struct, frozen=True):
    """`state` is the run's; `seen` is the outside at the end; `points` counts the fault points of an undisturbed
    process.
    """

    state: str
    result: str = ""
    seen: dict[str, int] = {}
    beats: tuple[TimelineEvent, ...] = ()
    writes: int = 0
    effects: tuple[str, ...] = ()  # the steps that acted, in order
    fired: int = 0  # faults that happened, unusual arrivals included
    error: str = ""  # why nothing could be compared
    arrivals: dict[str, int] = {}  # callbacks and decisions that the ledger accepted as the first
    awaited: tuple[Awaited, ...] = ()
    answers: tuple[str, ...] = ()
    why: str = ""  # the error that the last caller got instead of a result
    cut: tuple[str, ...] = ()  # connections opened before the scenario, which it may not use


Delivery = Literal["once", "twice", "at-once", "later", "changed"]
Arriving = Literal["once", "twice", "early", "late", "never", "raced"]


class Scenario(Struct, frozen=True):
    """`scripts` holds the faults of the first process, the second, and so on; later processes are undisturbed."""

    name: str
    says: str
    scripts: tuple[tuple[InjectedFault, ...], ...] = ()
    delivery: Delivery = "once"
    refuses: str = ""  # the step that the outside refuses for good
    arrives: str = ""  # the callback or approval that does not arrive once and in time
    arrival: Arriving = "once"
    order: tuple[int, ...] = ()  # order of the events, where there are several
    loses: int = 0  # which answer of the outside is lost
    beside: str = "clean"  # the scenario whose outside it is compared with


CLEAN = Scenario("clean", "one delivery, nothing goes wrong")


Word = Literal["same", "parked", "failed", "twice", "lost", "differs", "stuck", "broken", "missed"]
GOOD: tuple[Word, ...] = ("same", "parked", "missed")


class Verdict(Struct, frozen=True):
    """`extra` happened more often than in one clean run, `missing` less often; `state` is the run's final state."""

    scenario: str
    says: str
    word: Word
    state: str
    extra: dict[str, int] = {}
    missing: dict[str, int] = {}
    detail: str = ""
    expected: int = 0  # effects of the scenario that it is compared with
    seen: int = 0

    @property
    def good(self) -> bool:
        return self.word in GOOD


def judge(
    scenario: Scenario, outcome: ScenarioOutcome, clean: ScenarioOutcome, before: Mapping[str, int] | None = None
) -> Verdict:
    """Judge an outcome: nothing may happen twice; what is missing must be left to a person, or the run not be done."""
    seen, wanted = (Counter(gained(before or {}, one.seen)) for one in (outcome, clean))
    arrived = Counter(outcome.arrivals) - Counter(clean.arrivals)  # the answers of killed callers are unknown
    extra, missing = dict(seen - wanted + arrived), dict(wanted - seen)
    word, detail = _word(outcome, clean, extra, missing)
    if scenario.order and word in ("twice", "lost"):
        word, detail = "differs", "another outside than when the events come in the order given"
    if word == "same" and is_missed(scenario, outcome):
        word, detail = "missed", "its fault was never reached: this flow's threads do not take turns alike"
    counts = wanted.total(), (seen + arrived).total()
    return Verdict(scenario.name, scenario.says, word, outcome.state, extra, missing, detail, *counts)


def gained(before: Mapping[str, int], now: Mapping[str, int]) -> dict[str, int]:
    """What the outside holds more than before anything ran, and what is gone."""
    more, gone = Counter(now) - Counter(before), Counter(before) - Counter(now)
    return {**more, **{f"gone: {what}": count for what, count in gone.items()}}


def is_missed(scenario: Scenario, outcome: ScenarioOutcome) -> bool:
    return outcome.fired < sum(map(len, scenario.scripts)) + bool(scenario.loses) + bool(scenario.arrives)


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
