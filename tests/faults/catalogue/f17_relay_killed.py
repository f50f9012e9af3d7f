"""F17: a relay killed at each boundary of publishing, or stopped past its lease; senders killed around the commit of
their transaction; the order that receivers see while relays are killed at any time.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partial

from tests.faults.catalogue.order_stage import OrderStage
from tests.faults.catalogue.relay_stage import (
    ALONE,
    COMMITTED,
    ENDS,
    HALF_MARKED,
    LONG_AFTER,
    MEANWHILE,
    ORDERED,
    POINTS,
    TWICE,
    UNHEARD,
    RelayStage,
    apart,
)
from tests.faults.catalogue.relay_zombies import LaneRaces, RelayZombies
from tests.faults.finding import Finding
from tests.faults.planted import outbox as bugs
from tests.faults.trial import NAMES, Trial

TITLE = "a relay killed at each boundary, senders around their commit"
KILLS = 3_000  # of relays, and of senders
ORDER_KEYS, MESSAGES = 200, 50_000
ZOMBIES, RACES = 500, 10_000
ZOMBIES_AT_ONCE = 25
SHORTER = 0.2  # of its share is in a short run: one process per kill is the most expensive part
PER_ROUND = 64
KILLED = -signal.SIGKILL
TRANSACTIONS = ("sqlite", "postgres")  # stores that a user's own rows may lie beside


def run(trial: Trial, finding: Finding) -> None:
    shorter = 1.0 if trial.share >= 1 else SHORTER
    kills = trial.times(round(KILLS * shorter))
    each = -(-kills // len(trial.stores))
    finding.reach("relays killed", kills, sum(relays_of(trial, finding, store, each) for store in trial.stores))
    with_transactions = [store for store in trial.stores if store in TRANSACTIONS]
    if with_transactions:
        each = -(-kills // len(with_transactions))
        killed = sum(senders_of(trial, finding, store, each) for store in with_transactions)
        finding.reach("senders killed", kills, killed)
    zombies(trial, finding, trial.times(round(ZOMBIES * shorter), len(trial.stores)))
    races(trial, finding, trial.times(round(RACES * shorter), len(trial.stores)))
    ordered(trial, finding, trial.times(round(MESSAGES * shorter)))
    control(trial, finding)


def relays_of(trial: Trial, finding: Finding, store: str, least: int) -> int:
    return _in_rounds(trial, finding, store, least, lambda stage, most: relays(stage, finding, most))


def senders_of(trial: Trial, finding: Finding, store: str, least: int) -> int:
    return _in_rounds(trial, finding, store, least, lambda stage, most: senders(stage, finding, most))


def _in_rounds(trial: Trial, finding: Finding, store: str, least: int, work: Callable[[RelayStage, int], int]) -> int:
    kills = 0
    while kills < least:
        with trial.place(store) as place:
            stage = RelayStage(place)
            kills += work(stage, min(PER_ROUND, least - kills))
        for sentence in stage.wrong:
            finding.violated(f"{NAMES[store]}, seed {trial.seed}: {sentence}")
    return kills


# -- relays --------------------------------------------------------------------------------------


def relays(stage: RelayStage, finding: Finding, most: int, plant: Callable[[], None] = lambda: None) -> int:
    cases = [(f"r{number}", POINTS[number % len(POINTS)]) for number in range(max(most, len(POINTS)))]
    tenants = [tenant for tenant, _ in cases]
    _must_end(stage, "sending", apart(lambda: stage.send(tenants)))
    for tenant, point in cases:
        ended = apart(partial(_planted, plant, partial(stage.relay, tenant, point)))
        if ended == KILLED:
            finding.hit(point)
        else:
            stage.wrong.append(f"{tenant}: a relay that was to die {point} ended with {ended}")
    before = stage.taken()
    stage.place.advance(LONG_AFTER)
    _must_end(stage, "recovering", apart(lambda: stage.recover(tenants)))
    stage.place.advance(2 * LONG_AFTER)
    _must_end(stage, "recovering", apart(lambda: stage.recover(tenants)))
    after = stage.taken()
    for tenant, point in cases:
        stage.wrong += judged(tenant, point, before.get(tenant, []), after.get(tenant, []))
    return len(cases)


def _planted(plant: Callable[[], None], work: Callable[[], None]) -> None:
    plant()
    work()


def _must_end(stage: RelayStage, what: str, ended: int) -> None:
    if ended:
        stage.wrong.append(f"{what} ended with {ended}")


def judged(tenant: str, point: str, before: list[str], taken: list[str]) -> list[str]:
    """Return the errors in what the broker took of one tenant's messages."""
    reached = POINTS.index(point) >= POINTS.index(UNHEARD)  # then one more was sent meanwhile
    lane = [*ORDERED, MEANWHILE] if reached else list(ORDERED)
    expected = {*ALONE, *lane}
    wrong = []
    if lost := sorted(expected - set(taken)):
        wrong.append(f"never published: {lost}")
    if foreign := sorted(set(taken) - expected):
        wrong.append(f"published under a key that no one sent: {foreign}")
    first = [name for name in dict.fromkeys(taken) if name in lane]
    if first != [name for name in lane if name in first]:
        wrong.append(f"out of order: {first}")
    twice = sorted({name for name in taken if taken.count(name) > 1})
    if twice and point not in TWICE:
        wrong.append(f"published twice: {twice}")
    if point == HALF_MARKED and (marked := [name for name in twice if name in ALONE]):
        wrong.append(f"published twice although it was marked: {marked}")
    if any(taken.count(name) > 2 for name in twice):
        wrong.append(f"published more than twice: {taken}")
    return [f"relay of {tenant} killed {point}, broker had {before}: {what}" for what in wrong]


# -- senders -------------------------------------------------------------------------------------


def senders(stage: RelayStage, finding: Finding, most: int) -> int:
    """Each driver and wrapper in turn."""
    from tests.faults.catalogue.sender_ways import ways_of

    ways = ways_of(stage.place)
    ends = [(end, way) for way in ways for end in ENDS]
    cases = [(f"s{number}", *ends[number % len(ends)]) for number in range(max(most, len(ends)))]
    _must_end(stage, "making a table", apart(stage.make_table))
    for tenant, end, way in cases:
        if apart(partial(stage.transact, tenant, end, way)) == KILLED:
            finding.hit(f"sender killed {end}")
            finding.count(f"senders {way.__name__.replace('_', ' ')}")
    _must_end(stage, "publishing", apart(lambda: stage.recover([tenant for tenant, _, _ in cases])))
    taken, committed = stage.taken(), 0
    for tenant, end, way in cases:
        found = sorted(taken.get(tenant, []))
        committed += end == COMMITTED
        if found != (["None", "o"] if end == COMMITTED else []):
            stage.wrong.append(f"sender {tenant} {way.__name__} killed {end}: published {found}")
    if stage.rows() != committed:
        stage.wrong.append(f"{stage.rows()} rows of {committed} committed transactions")
    return len(cases)


# -- zombies, and messages that race the removal of their lane -----------------------------------


def zombies(trial: Trial, finding: Finding, least: int) -> None:
    each, woken = -(-least // len(trial.stores)), 0
    for store in trial.stores:
        for first in range(0, each, ZOMBIES_AT_ONCE):
            count = min(ZOMBIES_AT_ONCE, each - first)
            with trial.place(store) as place:
                for sentence in RelayZombies(place).play(count):
                    finding.violated(f"{NAMES[store]}, seed {trial.seed}, woken up late: {sentence}")
            woken += count
    finding.reach("relays stopped past their lease", least, woken)
    with trial.place(trial.stores[0]) as place:
        wrong = RelayZombies(place, bugs.marks_without_version).play(3)
    bitten = sum(sentence.endswith("is sent") for sentence in wrong)
    finding.control("marks at the version that was handed out", f"{bitten} messages were marked" if bitten else "")


def races(trial: Trial, finding: Finding, least: int) -> None:
    each = -(-least // len(trial.stores))
    for store in trial.stores:
        with trial.place(store) as place:
            for sentence in LaneRaces(place).play(each):
                finding.violated(f"{NAMES[store]}, seed {trial.seed}, raced: {sentence}")
    finding.reach("messages that race the removal of their lane", least, each * len(trial.stores))


# -- order ---------------------------------------------------------------------------------------


def ordered(trial: Trial, finding: Finding, messages: int) -> None:
    """Eight relays, killed at any time, and a broker that refuses: each key's messages come in the order of commits."""
    keys = trial.times(ORDER_KEYS, 20)
    each = -(-messages // (keys * len(trial.stores)))
    for store in trial.stores:
        with trial.place(store) as place:
            stage = OrderStage(place, trial.dice("order", store), keys)
            for sentence in stage.play(each):
                finding.violated(f"{NAMES[store]}, seed {trial.seed}, order: {sentence}")
        finding.count("relays killed at any time", stage.kills)
    finding.reach("messages with an order key", messages, each * keys * len(trial.stores))
    with trial.place(trial.stores[0]) as place:
        wrong = OrderStage(place, trial.dice("no order"), 20, lanes=False).play(30)
    bitten = sum("out of order" in sentence for sentence in wrong)
    finding.control("lanes", f"{bitten} of 20 order keys were out of order" if bitten else "")


# -- control -------------------------------------------------------------------------------------


def control(trial: Trial, finding: Finding) -> None:
    """A relay that marks messages before it publishes them loses the ones that it was about to publish."""
    with trial.place(trial.stores[0]) as place:
        stage = RelayStage(place)
        relays(stage, Finding("", "", 0, 0.0), len(POINTS), bugs.mark_before_confirm)
    lost = [sentence for sentence in stage.wrong if "never published" in sentence]
    finding.control("marks that wait for the confirmation", f"{len(lost)} cases lost messages" if lost else "")
