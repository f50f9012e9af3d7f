"""F7: nine kinds of trouble on the network, between the product and its servers and before the HTTP server."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from urllib.parse import quote

import pytest

from tests.acceptance.http_shop import SHOP, HttpShop
from tests.acceptance.later import pass_time
from tests.acceptance.places import Place
from tests.faults.catalogue.accounts import Accounts, asked_again, compared
from tests.faults.catalogue.lanes import HttpLane, Lane, StoreLane
from tests.faults.catalogue.toxic_plan import ANSWER, LOST_ACK, NINE
from tests.faults.catalogue.writers import LEASE
from tests.faults.finding import Finding
from tests.faults.trial import NAMES, Trial
from twiceproof.records import Batch, Outcome
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.postgres import engine as postgres
from twiceproof.stores.redis import url as redis_target

TITLE = "trouble on the network: nine kinds of it"
TIMES = 40  # each kind, at each place
CONTROL_TIMES = 6
LANES = 8
HTTP = "HTTP server"
ROOT = Path(__file__).parents[3]
PLANTED = "from tests.faults.planted import plant_ordered\nplant_ordered()\n"

Plan = list[tuple[str, str]]  # toxic, name of the run


def run(trial: Trial, finding: Finding) -> None:
    finding.skipped.append("SQLite: it has no network; the HTTP server on it is tried instead")
    times = trial.times(TIMES, 5)
    plan = [(toxic, f"{toxic}:{nth}") for nth in range(times) for toxic in NINE]
    with impatient():
        for store in ("postgres", "valkey"):
            if store in trial.stores:
                at_store(trial, finding, store, plan)
        at_door(trial, finding, plan)


@contextlib.contextmanager
def impatient() -> Iterator[None]:
    """Shorten the time-outs, so that a fault takes a third of a second instead of ten."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(postgres, "PATIENCE", ANSWER)
        patch.setattr(postgres, "SIDE_PATIENCE", ANSWER)
        patch.setitem(postgres.DEFAULTS, "connect_timeout", 2)
        patch.setattr(redis_target, "SECONDS_TO_ANSWER", ANSWER)
        yield


# -- stores --------------------------------------------------------------------------------------


def at_store(trial: Trial, finding: Finding, store: str, plan: Plan) -> None:
    with trial.place(store) as place:
        accounts = Accounts()
        wrong = let_loose(trial, finding, NAMES[store], plan, lambda nth: StoreLane(place, accounts, nth))
        told(finding, NAMES[store], accounts, wrong + judged(place, accounts))
    with trial.place(store) as place:
        accounts = Accounts()
        lost = [(LOST_ACK, f"control:{nth}") for nth in range(CONTROL_TIMES)]
        let_loose(trial, None, NAMES[store], lost, lambda nth: StoreLane(place, accounts, nth, Forgetful))
        finding.control(f"nonces, {NAMES[store]}", "; ".join(list(accounts.complaints())[:2]))


def judged(place: Place, accounts: Accounts) -> list[str]:
    pass_time(place, LEASE + 1)
    again = asyncio.run(asked_again(place, sorted(accounts.asked)))
    return [*accounts.complaints(), *compared(accounts, again["answers"], Counter(again["done"]))]


class Forgetful(GroupedStore):
    """The protection taken away: after a lost answer, a conflict with one's own write counts as another caller's."""

    def _recognise_lost_acknowledgement(self, batch: Batch, answer: Outcome) -> Outcome:
        return answer


# -- the door ------------------------------------------------------------------------------------


def at_door(trial: Trial, finding: Finding, plan: Plan) -> None:
    with served(trial.directory / "door") as shop:
        accounts = Accounts()
        wrong = let_loose(trial, finding, HTTP, plan, lambda nth: HttpLane("127.0.0.1", shop.port, accounts))
        told(finding, HTTP, accounts, [*wrong, *accounts.complaints(), *remembered(shop, accounts)])
        accounts = Accounts()
        lost = [(LOST_ACK, f"control:{nth}") for nth in range(CONTROL_TIMES)]
        let_loose(trial, None, HTTP, lost, lambda nth: HttpLane("127.0.0.1", shop.port, accounts, known=False))
        finding.control("request ids, HTTP server", "; ".join(list(accounts.complaints())[:2]))


@contextlib.contextmanager
def served(folder: Path) -> Iterator[HttpShop]:
    folder.mkdir()
    shop = HttpShop(folder)
    (folder / "shop.py").write_text(PLANTED + SHOP)
    try:
        yield shop.start(PYTHONPATH=f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    finally:
        shop.kill()


def remembered(shop: HttpShop, accounts: Accounts) -> Iterator[str]:
    """Ask again as another caller, without trouble on the network."""
    for key in sorted(accounts.asked):
        heard = shop("PUT", f"/v1/claims/network/{quote(key, safe='')}", {"payload": {"key": key}})
        if key in accounts.heard and (heard.status, heard["result"]) != (200, accounts.heard[key]):
            yield f"acknowledged and lost: {key}: {heard.status} {heard.body[:200]!r}"
        if heard.status == 201 and accounts.done[key]:
            yield f"done again: {key}: {accounts.done[key]} effects, and it can be claimed"


# -- the network ---------------------------------------------------------------------------------


def let_loose(trial: Trial, finding: Finding | None, where: str, plan: Plan, lane: Callable[[int], Lane]) -> list[str]:
    """Do all the runs on several lanes at once, since most of the time is spent waiting."""
    lanes: SimpleQueue[Lane] = SimpleQueue()
    opened = [lane(nth) for nth in range(min(LANES, len(plan)))]
    for one in opened:
        lanes.put(one)

    def on_a_lane(entry: tuple[str, str]) -> bool:
        toxic, name = entry
        taken = lanes.get()
        try:
            return taken.run(toxic, name, trial.dice("F7", where, name))
        finally:
            lanes.put(taken)

    with ThreadPoolExecutor(LANES) as pool:
        bitten = list(pool.map(on_a_lane, plan))
    for one in opened:
        one.close()
    if finding is not None:
        finding.reach(f"runs, {where}", len(plan), len(bitten))
        for (toxic, _), bit in zip(plan, bitten, strict=True):
            finding.hit(f"{toxic}, {where}", int(bit))
    return [wrong for one in opened for wrong in one.wrong]


def told(finding: Finding, where: str, accounts: Accounts, wrong: list[str]) -> None:
    for complaint in wrong:
        finding.violated(f"{where}, seed {finding.seed}: {complaint}")
    finding.count(f"acknowledged, {where}", len(accounts.heard))
    finding.count(f"no answer, {where}", len(accounts.asked) - len(accounts.heard))
