"""A scenario, its faults and its outcome; the pure verdict; and the plan: which scenarios there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice, permutations
from typing import Literal

from msgspec import Struct

from ...claims.claim import DONE, FAILED, REVIEW

__all__ = [
    "ACTS",
    "BODY",
    "CLEAN",
    "REFUSED",
    "RELAY",
    "Arriving",
    "Awaited",
    "Delivery",
    "InjectedFault",
    "OutcomeOf",
    "Place",
    "Scenario",
    "ScenarioOutcome",
    "ScenarioPlan",
    "TimelineEvent",
    "Verdict",
    "What",
    "Word",
    "after_clean",
    "after_refusal",
    "around_waits",
    "at_providers",
    "during_recovery",
    "during_undo",
    "gained",
    "is_missed",
    "judge",
    "out_of_order",
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
RELAY = "the relay publishes"


class TimelineEvent(Struct, frozen=True):
    """One event of the timeline. `world` is what the outside gained in it; `kind` is how a step that acts may be
    repeated.
    """

    process: int
    what: str
    world: dict[str, int] = {}
    kind: str = ""


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
    events: tuple[TimelineEvent, ...] = ()
    writes: int = 0
    effects: tuple[str, ...] = ()  # the steps that acted, in order
    fired: int = 0  # faults that happened, unusual arrivals included
    error: str = ""  # why nothing could be compared
    arrivals: dict[str, int] = {}  # callbacks and decisions that the ledger accepted as the first
    awaited: tuple[Awaited, ...] = ()
    answers: tuple[str, ...] = ()
    why: str = ""  # the error that the last caller got instead of a result
    cut: tuple[str, ...] = ()  # connections opened before the scenario, which it may not use


Delivery = Literal["once", "twice", "thrice", "at-once", "later", "changed"]
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
    errs: int = 0  # which request is carried out, and answered with an error that its provider repeats
    idle: float = 0.0  # seconds until another process takes up what a killed one left
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
    unusual = (scenario.loses, scenario.errs, scenario.arrives)
    return outcome.fired < sum(map(len, scenario.scripts)) + sum(map(bool, unusual))


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


MOST_ORDERS = 24


def after_clean(
    clean: ScenarioOutcome, *, can_change: bool, exchanges: Sequence[str] = (), queued: bool = False
) -> Iterator[Scenario]:
    """Scenarios that follow from the fault points of one clean run, and from its requests to the outside."""
    yield Scenario("twice", "delivered twice, one after the other", delivery="twice")
    if queued:
        yield Scenario("thrice", "delivered three times, its acknowledgements lost", delivery="thrice")
    yield Scenario("at-once", "delivered eight times at once", delivery="at-once")
    yield Scenario("later", "delivered again an hour after it was done", delivery="later")
    if can_change:
        yield Scenario("changed", "delivered again with another payload under the same key", delivery="changed")
    yield from _kills(clean)
    for number, asked in enumerate(exchanges, 1):
        yield Scenario(f"answer-lost-{number}", f"{asked}: carried out, and its answer is lost", loses=number)
    for number, step in enumerate(clean.effects, 1):
        lost = InjectedFault("lose", "effect", number, after=True)
        yield Scenario(f"lost-{number}", f"{step} is done, and its answer is lost", ((lost,),))
        pause = InjectedFault("pause", "effect", number, after=True)
        yield Scenario(f"paused-{number}", f"paused past its lease when {step} had acted, then woken", ((pause,),))


def _kills(
    clean: ScenarioOutcome, refused: Scenario | None = None, writes: int = 0, effects: int = 0
) -> Iterator[Scenario]:
    """Kills before and after every write, before every effect, and between an effect and its record, from the
    given numbers of writes and effects on.
    """
    prefix, beside, refuses = (f"{refused.name}-", refused.name, refused.refuses) if refused else ("", "clean", "")
    for number in range(writes + 1, clean.writes + 1):
        for after in (False, True):
            kill = InjectedFault("kill", "write", number, after)
            when = "as soon as it landed" if after else "before it landed"
            yield Scenario(
                f"{prefix}kill-write-{number}{'-after' if after else '-before'}",
                f"killed at ledger write {number}, {when}",
                ((kill,),),
                beside=beside,
                refuses=refuses,
            )
    for number, step in enumerate(clean.effects[effects:], effects + 1):
        for after in (False, True):
            kill = InjectedFault("kill", "effect", number, after)
            when = f"between the effect of {step} and its record" if after else f"just before {step} acted"
            yield Scenario(
                f"{prefix}kill-effect-{number}{'-after' if after else '-before'}",
                f"killed {when}",
                ((kill,),),
                beside=beside,
                refuses=refuses,
            )


def at_providers(
    clean: ScenarioOutcome, exchanges: Sequence[str], erring: Sequence[int], window: float
) -> Iterator[Scenario]:
    """An error that a provider repeats for its key, and a key that it has forgotten when the step is taken up."""
    for number in erring:
        says = f"{exchanges[number - 1]}: carried out, and answered with an error that its provider repeats"
        yield Scenario(f"error-again-{number}", says, errs=number)
    for number, step in enumerate(clean.effects if window else (), 1):
        kill = InjectedFault("kill", "effect", number, after=True)
        says = f"killed between the effect of {step} and its record, and taken up when its provider has forgotten keys"
        yield Scenario(f"forgotten-{number}", says, ((kill,),), idle=window)


def around_waits(clean: ScenarioOutcome) -> Iterator[Scenario]:
    """Around waits: an arrival comes twice, too early, never or too late; two people decide at once."""
    for one in clean.awaited:
        name = one.name
        if one.approval:
            yield Scenario(
                f"raced-{name}", f"two decide about {name} at once, a third later", arrives=name, arrival="raced"
            )
            continue
        yield Scenario(
            f"sent-twice-{name}", f"{name} is sent twice, and once more later", arrives=name, arrival="twice"
        )
        yield Scenario(f"early-{name}", f"{name} comes before anybody waits for it", arrives=name, arrival="early")
        if one.ends:
            never = f"never-{name}"
            yield Scenario(never, f"{name} does not come", beside=never, arrives=name, arrival="never")
            yield Scenario(f"late-{name}", f"{name} comes after its time", beside=never, arrives=name, arrival="late")


def out_of_order(events: int) -> Iterator[Scenario]:
    """Every order of up to four events; of more, as many orders as four would have."""
    given = tuple(range(events))
    for order in islice(permutations(given), MOST_ORDERS) if events > 1 else ():
        says = ", ".join(str(number + 1) for number in order)
        yield Scenario(
            _order_name(order), f"the events come in the order {says}", beside=_order_name(given), order=order
        )


def _order_name(order: tuple[int, ...]) -> str:
    return "-".join(["order", *(str(number + 1) for number in order)])


def after_refusal(clean: ScenarioOutcome) -> Iterator[Scenario]:
    """Each step refused for good, so that the steps before it are undone."""
    for step in dict.fromkeys(clean.effects):
        yield Scenario(f"refused-{step}", f"{step} is refused for good", beside=f"refused-{step}", refuses=step)


def during_undo(refused: Scenario, outcome: ScenarioOutcome) -> Iterator[Scenario]:
    """Killed at every point after the refusal, while the earlier steps are undone."""
    events = outcome.events
    last = max((number for number, event in enumerate(events) if event.what.endswith(REFUSED)), default=0)
    writes = sum(event.what.startswith("write ") for event in events[:last])
    effects = sum(event.what.endswith(ACTS) for event in events[:last])
    return _kills(outcome, refused, writes, effects)


def during_recovery(scenario: Scenario, outcome: ScenarioOutcome) -> Iterator[Scenario]:
    """A second kill, at every write and effect of the process that recovered from the first."""
    if not any(fault.what == "kill" for script in scenario.scripts for fault in script):
        return
    for second in _kills(outcome):
        yield Scenario(
            f"{scenario.name}+{second.name}",
            f"{scenario.says}; then {second.says} in the recovery",
            (*scenario.scripts, *second.scripts),
            beside=scenario.beside,
            refuses=scenario.refuses,
        )


OutcomeOf = Callable[[Scenario], ScenarioOutcome | None]  # None: not yet


class ScenarioPlan(Struct, frozen=True):
    clean: ScenarioOutcome
    can_change: bool
    exchanges: Sequence[str]  # requests to the outside, in one clean run
    events: int
    depth: int
    undoes: bool = True  # a guarded function has no earlier steps to undo
    queued: bool = False  # whether a broker is part of it
    erring: Sequence[int] = ()  # the requests, by number, whose provider repeats its errors
    window: float = 0.0  # seconds after which every provider has forgotten a key; 0: none forgets

    def scenarios(self, outcome_of: OutcomeOf) -> Iterator[Scenario]:
        """The scenarios known so far: more become known as scenarios run."""
        first = list(after_clean(self.clean, can_change=self.can_change, exchanges=self.exchanges, queued=self.queued))
        yield from first
        yield from at_providers(self.clean, self.exchanges, self.erring, self.window)
        yield from around_waits(self.clean)
        yield from out_of_order(self.events)
        for refused in after_refusal(self.clean) if self.undoes else ():
            yield refused
            if (outcome := outcome_of(refused)) is not None:
                yield from during_undo(refused, outcome)
        for scenario in first if self.depth > 1 else ():
            if scenario.scripts and (outcome := outcome_of(scenario)) is not None:
                yield from during_recovery(scenario, outcome)

    def beside(self, scenario: Scenario) -> Scenario:
        """The scenario whose outside it is compared with."""
        if scenario.beside == CLEAN.name:
            return CLEAN
        return next(one for one in self._compared() if one.name == scenario.beside)

    def _compared(self) -> Iterator[Scenario]:
        yield from around_waits(self.clean)
        yield from out_of_order(self.events)
        yield from after_refusal(self.clean)
