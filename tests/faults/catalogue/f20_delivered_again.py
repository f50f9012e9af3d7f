"""F20: consumers killed at each boundary, and messages that are delivered one to five times, in any order."""

from __future__ import annotations

import logging
import signal
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from tests.acceptance.children import Child
from tests.acceptance.places import Place
from tests.faults.catalogue.consumer_stage import (
    LATER,
    POINTS,
    WAYS,
    ConsumerStage,
    consume_dealt,
)
from tests.faults.catalogue.relay_stage import apart
from tests.faults.finding import Finding
from tests.faults.trial import NAMES, Trial
from twiceproof.claims.claim import claim_of
from twiceproof.operations import block
from twiceproof.stores.base import scan_all

TITLE = "consumers killed at each boundary, messages delivered one to five times"
KILLS, MESSAGES = 2_000, 10_000
SHORTER = 0.5  # of its share is in a short run: one process per kill is the most expensive part
PER_ROUND = 54
PROCESSES, MOST_TIMES = 4, 5
KILLED = -signal.SIGKILL


def run(trial: Trial, finding: Finding) -> None:
    kills = trial.times(KILLS if trial.share >= 1 else round(KILLS * SHORTER))
    total = sum(killed(trial, finding, store, -(-kills // len(trial.stores))) for store in trial.stores)
    finding.reach("kills", kills, total)
    messages = trial.times(MESSAGES, 200)
    for store in trial.stores:
        delivered_again(trial, finding, store, -(-messages // len(trial.stores)))
    finding.reach("messages", messages, finding.counts.get("messages", 0))
    control(trial, finding)


# -- kills ---------------------------------------------------------------------------------------


def killed(trial: Trial, finding: Finding, store: str, least: int) -> int:
    kills = 0
    while kills < least:
        with trial.place(store) as place:
            stage = ConsumerStage(place)
            kills += consumers(stage, finding, max(len(POINTS) * len(WAYS), min(PER_ROUND, least - kills)))
        for sentence in stage.wrong:
            finding.violated(f"{NAMES[store]}, seed {trial.seed}: {sentence}")
    return kills


def consumers(stage: ConsumerStage, finding: Finding, most: int) -> int:
    ways = [(way, point) for point in POINTS for way in WAYS]
    cases = [(f"c{number}", *ways[number % len(ways)]) for number in range(most)]
    _must_end(stage, "preparing", apart(partial(stage.prepare, cases)))
    for case, way, point in cases:
        ended = apart(partial(stage.consume, case, way, point))
        if ended == KILLED:
            finding.hit(point)
        else:
            stage.wrong.append(f"{case}: a consumer that was to die {point} ended with {ended}")
    stage.place.advance(LATER)
    _must_end(stage, "recovering", apart(partial(stage.recover, cases)))
    stage.place.advance(2 * LATER)
    _must_end(stage, "recovering", apart(partial(stage.recover, cases)))
    stage.wrong += stage.judge(cases)
    return len(cases)


def _must_end(stage: ConsumerStage, what: str, ended: int) -> None:
    if ended:
        stage.wrong.append(f"{what} ended with {ended}")


# -- delivered again -----------------------------------------------------------------------------


def delivered_again(trial: Trial, finding: Finding, store: str, messages: int) -> None:
    dice = trial.dice("again", store)
    dealt = [number for number in range(messages) for _ in range(dice.randint(1, MOST_TIMES))]
    dice.shuffle(dealt)
    with trial.place(store) as place:
        outcomes = together(place, dealt)
        keys = runs_of(place)
    finding.count("messages", messages)
    finding.count("deliveries", len(dealt))
    if outcomes != {"new": messages, "duplicate": len(dealt) - messages}:
        finding.violated(f"{NAMES[store]}, seed {trial.seed}: {len(dealt)} deliveries of {messages} were {outcomes}")
    if Counter(keys) != Counter(str(number) for number in range(messages)):
        finding.violated(f"{NAMES[store]}, seed {trial.seed}: {messages} messages became {len(keys)} runs")


def together(place: Place, dealt: Sequence[int], *, control: bool = False) -> Counter[str]:
    """Deal the deliveries to processes that begin at the same time; return all outcomes."""
    hands = [dealt[number::PROCESSES] for number in range(PROCESSES)]
    children = [Child(_consuming(place, hand, control)) for hand in hands]
    for child in children:
        child.go()
    outcomes: Counter[str] = Counter()
    for child in children:
        outcomes.update(child.hear() or {"no answer": 1})
        child.end()
    return outcomes


def _consuming(place: Place, hand: Sequence[int], control: bool) -> Callable[[Child], None]:
    def work(child: Child) -> None:
        logging.disable(logging.ERROR)
        warnings.simplefilter("ignore")
        child.wait_for_go()
        child.tell(consume_dealt(place, hand, control=control))

    return work


def runs_of(place: Place) -> list[str]:
    with place.app() as app:
        return [claim_of(record).key for record in block(scan_all(app.store, "run"))]


# -- control -------------------------------------------------------------------------------------


def control(trial: Trial, finding: Finding) -> None:
    """With a key for each delivery, a message that is delivered again is new work."""
    messages = 50
    dealt = [number for number in range(messages) for _ in range(2)]
    with trial.place(trial.stores[0]) as place:
        outcomes = together(place, dealt, control=True)
    more = outcomes["new"] - messages
    finding.control("keys that stay the same", f"{more} messages were done twice" if more > 0 else "")
