"""F17: a relay killed at each boundary of publishing, and senders killed around the commit of their transaction."""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partial

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
from tests.faults.finding import Finding
from tests.faults.planted import outbox as bugs
from tests.faults.trial import NAMES, Trial

TITLE = "a relay killed at each boundary, senders around their commit"
KILLS = 3_000
SHORTER = 0.35  # of its share is in a short run: a process for each kill is what costs most
PER_ROUND = 64
KILLED = -signal.SIGKILL


def run(trial: Trial, finding: Finding) -> None:
    kills = trial.times(KILLS if trial.share >= 1 else round(KILLS * SHORTER))
    total = sum(killed(trial, finding, store, -(-kills // len(trial.stores))) for store in trial.stores)
    finding.reach("kills", kills, total)
    control(trial, finding)


def killed(trial: Trial, finding: Finding, store: str, least: int) -> int:
    kills = 0
    while kills < least:
        with trial.place(store) as place:
            stage = RelayStage(place)
            some = min(PER_ROUND, least - kills)
            if stage.has_transactions:
                kills += senders(stage, finding, max(len(ENDS), some // 3))
            kills += relays(stage, finding, max(len(POINTS), some - some // 3))
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
    """What is wrong with what the broker took of one tenant's messages."""
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
    cases = [(f"s{number}", ENDS[number % len(ENDS)]) for number in range(most)]
    _must_end(stage, "making a table", apart(stage.make_table))
    for tenant, end in cases:
        if apart(partial(stage.transact, tenant, end)) == KILLED:
            finding.hit(f"sender killed {end}")
    _must_end(stage, "publishing", apart(lambda: stage.recover([tenant for tenant, _ in cases])))
    rows, taken = set(stage.rows()), stage.taken()
    for tenant, end in cases:
        there, found = tenant in rows, sorted(taken.get(tenant, []))
        if there != (end == COMMITTED) or found != (["None", "o"] if there else []):
            stage.wrong.append(f"sender {tenant} killed {end}: its row is {'' if there else 'not '}there, and {found}")
    return len(cases)


# -- control -------------------------------------------------------------------------------------


def control(trial: Trial, finding: Finding) -> None:
    """A relay that marks messages before it publishes them loses what it was about to publish."""
    with trial.place(trial.stores[0]) as place:
        stage = RelayStage(place)
        relays(stage, Finding("", "", 0, 0.0), len(POINTS), bugs.mark_before_confirm)
    lost = [sentence for sentence in stage.wrong if "never published" in sentence]
    finding.control("marks that wait for the confirmation", f"{len(lost)} cases lost messages" if lost else "")
