"""F21: the answer to an effect is lost, at every documented provider, and the process is killed around it.

The providers are stand-ins of ours in a process of their own: each behaves as its provider documents. The process of
the flow dies, from the store's view, at one of its commits; a new one takes over after its lease. Where a row is in the
ledger's own database, real processes are killed around the COMMIT.
"""

from __future__ import annotations

import random
from typing import Any

from msgspec import structs

from tests.faults.catalogue.effect_scenes import (
    forgotten_keys,
    killed_blocks,
    late_requests,
    replayed_errors,
    upserts,
)
from tests.faults.catalogue.row_commits import row_commits
from tests.faults.catalogue.row_races import row_races
from tests.faults.finding import Finding
from tests.faults.planted import plant_ordered
from tests.faults.trial import Trial
from tests.unit.flows.stage import Died, Stage
from tests.unit.prove.test_personalities import KEYED, described
from twiceproof import Waiting
from twiceproof.effects import http
from twiceproof.effects.http_client import shared_client
from twiceproof.effects.providers import Provider, providers
from twiceproof.prove.worlds.personalities import LOST_AT, ProviderWorld

TITLE = "answers to effects lost"
RUNS = 600
PLACES = (*LOST_AT, "before")  # `before`: lost on its way, and never carried out
MOST_COMMITS = 5
MOST_WAITS = 30
FIND = http.find("GET /search?reference={effect_key}", at="items[0]")


def run(trial: Trial, finding: Finding) -> None:
    plant_ordered()
    row_commits(trial, finding)  # first, because it forks and there are no threads yet
    finding.skipped.append("real providers: the stand-ins behave as documented on the date of their rows")
    worlds = {row.id: ProviderWorld(row.id, hosts=[f"api.{row.id}.test"]) for row in KEYED}
    try:
        runs = trial.times(RUNS, len(KEYED) * 2)
        for nth in range(runs):
            row = KEYED[nth % len(KEYED)]
            dice = trial.dice("run", nth)
            for complaint in one(worlds[row.id], row, dice, finding):
                finding.violated(f"{row.id}, seed {trial.seed}, run {nth}: {complaint}")
        finding.reach("effects", runs, runs)
        forgotten_keys(trial, finding, worlds, KEYED)
        replayed_errors(trial, finding, worlds, KEYED)
        late_requests(trial, finding)
        upserts(trial, finding)
        killed_blocks(trial, finding)
        row_races(trial, finding)
        control(trial, finding)
    finally:
        for world in worlds.values():
            world.close()
        shared_client().close()


def one(world: ProviderWorld, row: Provider, dice: random.Random, finding: Finding) -> list[str]:
    """One effect whose answer is lost, in a run that may be killed; returns what is wrong afterwards."""
    place, kill = dice.choice(PLACES), dice.choice([None, *range(2, MOST_COMMITS)])
    options = {"look": FIND} if dice.random() < 0.5 else {}
    world.reset()
    _lose(world, place)
    finding.hit(f"lost: {place}")
    stage = Stage()
    try:
        result = carried_through(stage, row, kill, options)
    finally:
        stage.close()
    done = sum(world.look().values())
    told = [] if done == 1 else [f"{done} effects for one step (lost: {place}, killed at commit {kill})"]
    return told if result == "r_1" else [*told, f"the result is {result!r}, and not that of the first effect"]


def _lose(world: ProviderWorld, place: str) -> None:
    if place == "before":
        world.lose_before(1)
    else:
        world.lose_at(1, place)


def carried_through(stage: Stage, row: Provider, kill: int | None, options: dict[str, Any]) -> Any:
    for at in (kill, None):
        flow = paying(stage, row, at, options)
        for _ in range(MOST_WAITS):
            try:
                return flow(17)
            except Waiting:
                stage.clock.advance(60)
            except Died:
                stage.lapse()
                stage.clock.advance(60)
                break
    return "no end"


def paying(stage: Stage, row: Provider, at: int | None, options: dict[str, Any]) -> Any:
    app = stage.process(at=at)

    @app.effect
    def pay(order: int) -> Any:
        return described(row, amount=order, **options)

    @app.flow(key="order:{order}", name="sync")
    def flow(order: int) -> Any:
        return pay(order)["id"]

    return flow


def control(trial: Trial, finding: Finding) -> None:
    """The protection taken away: a provider that accepts the key and ignores it."""
    row = structs.replace(providers()["stripe"], id="careless")
    with ProviderWorld("stripe", hosts=["api.careless.test"], ignores_keys=True) as world:
        world.lose_at(1, "silence")
        stage = Stage()
        carried_through(stage, row, None, {})
        stage.close()
        done = sum(world.look().values())
    finding.control("the provider's memory of keys", f"{done} effects for one step" if done > 1 else "")
