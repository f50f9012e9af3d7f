"""F2: a worker killed at each system call that writes, syncs, sends or receives: in the middle of a commit."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial

from tests.acceptance.children import Child
from tests.acceptance.places import Place
from tests.faults.catalogue.killing.round import Played
from tests.faults.catalogue.killing.strace import why_not
from tests.faults.catalogue.killing.syscalls import CALLS, Call, Syscalls
from tests.faults.catalogue.killing.total import Total, apart
from tests.faults.finding import OFTEN, SELDOM, Finding
from tests.faults.trial import NAMES, Trial
from twiceproof.effects import repeat

TITLE = "a worker killed at its n-th system call"
RUNS = 60  # in each store, including every n of every kind of call
ROUND = 30


def run(trial: Trial, finding: Finding) -> None:
    if why := why_not():
        finding.skipped.append(f"all of it: {why}")
        return
    killed = 0
    for store in trial.stores:
        total = Total(trial, store, finding)
        calls = drawn(counts(trial, store), trial.share >= 1, trial.times(RUNS), trial.dice("F2", store))
        for first in range(0, len(calls), ROUND):
            some = calls[first : first + ROUND]
            total.add(f"calls {first}", partial(played, some))
        for call, times in total.played.hits.items():
            finding.hit(f"{NAMES[store]}: {call}", times)
        total.played.hits.clear()
        total.tell()
        killed += total.played.kills
        finding.count(f"kills, {NAMES[store]}", total.played.kills)
    finding.reach("runs killed at a system call", trial.times(50 * len(trial.stores)), killed)
    control(trial, finding)


def played(calls: Sequence[Call], place: Place) -> Played:
    return Syscalls(place, calls).play()


def counts(trial: Trial, store: str) -> dict[str, int]:
    """Of a clean run."""
    with trial.place(store) as place:
        child = Child(lambda child: child.tell(Syscalls(place, [Call("", 0)]).count(CALLS[store])))
        heard: dict[str, int] = child.hear() or {}
        child.end()
        return heard


def drawn(made: dict[str, int], whole: bool, least: int, dice: random.Random) -> list[Call]:
    """Every n of each kind of call, repeated until there are enough; in a short run some of each kind."""
    calls: list[Call] = []
    for name, times in made.items():
        enough = max(least // len(made), 2 * (OFTEN if whole else SELDOM))  # some survive: not all runs make all calls
        ns = [nth for _ in range(-(-enough // times)) for nth in range(1, times + 1)]
        calls += [Call(name, nth) for nth in (ns if whole else dice.sample(ns, enough))]
    return calls


def control(trial: Trial, finding: Finding) -> None:
    """Without the recorded start, one of these kills comes between the effect and its record, and it is done again."""
    store = trial.stores[0]
    name = CALLS[store][0]
    made = counts(trial, store)[name]
    calls = [Call(name, nth) for nth in range(made - 8, made + 1)]

    def bare(place: Place) -> Played:
        repeat.Declared.writes_intent = property(lambda self: False)  # type: ignore[method-assign,assignment]
        return Syscalls(place, calls).play()

    wrong = [what for what in apart(trial, store, bare).violations if "each once" in what]
    finding.control("the intent before a step never repeated", "; ".join(wrong[:2]))
