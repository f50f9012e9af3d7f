"""F11: a storm of duplicates: 1,000 keys, 50 callers each, in four processes on each store, and at two HTTP servers."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from msgspec import structs

from tests.acceptance.http_server import HttpServer
from tests.acceptance.places import Place
from tests.acceptance.wrappers import Wrapped
from tests.faults.catalogue import storm_callers
from tests.faults.catalogue.http_callers import HttpCallers
from tests.faults.catalogue.storm_verdict import BUSY, Answers, judged
from tests.faults.finding import Finding
from tests.faults.trial import NAMES, Trial
from twiceproof import App
from twiceproof.records import Insert, Replace

TITLE = "a storm of duplicates"
KEYS = 1_000
CALLERS = 50
CONTROL_KEYS, HTTP_CONTROL_KEYS = 20, 8
WAVE = 20  # keys that are delivered at the same time
ROOT = Path(__file__).parents[3]
SHOP = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from tests.faults.planted import plant_ordered
plant_ordered()
from twiceproof import App
app = App(best_effort=True)
"""


def run(trial: Trial, finding: Finding) -> None:
    keys = trial.times(KEYS)
    for store in trial.stores:
        on_a_store(trial, finding, store, keys)
    over_http(trial, finding, keys)


def on_a_store(trial: Trial, finding: Finding, store: str, keys: int) -> None:
    with trial.place(store) as place:
        answers = storm(trial, place, keys) + afterwards(place, keys)
        report(trial, finding, NAMES[store], keys, place, answers, late=1)
    control(trial, finding, store)


def report(trial: Trial, finding: Finding, where: str, keys: int, place: Place, answers: Answers, late: int) -> None:
    calls = keys * (CALLERS + late)
    for wrong in judged(keys, calls, place.effects(), answers):
        finding.violated(f"{where}, seed {trial.seed}: {wrong}")
    finding.reach(f"calls, {where}", keys * CALLERS, answers.total() - keys * late)
    finding.reach(f"effects, {where}", keys, len(place.effects()))
    finding.count(f"told to come back later, {where}", sum(n for (_, said), n in answers.items() if said == BUSY))


# -- in four processes ---------------------------------------------------------------------------


def storm(trial: Trial, place: Place, keys: int, wrap: Any = lambda engine: engine) -> Answers:
    alone(place, lambda app, answers: storm_callers.failed_before(app, range(0, keys, 4)))

    @contextlib.contextmanager
    def prepare(process: int) -> Iterator[Any]:
        calls = calls_of(trial, keys, process)
        deliver = storm_callers.awaited if process % 2 else storm_callers.blocked
        with place.app(wrap) as app:
            yield lambda answers: deliver(place, app, calls, answers, process)

    return storm_callers.at_once(prepare)


def calls_of(trial: Trial, keys: int, process: int) -> list[int]:
    """Return this process's share of all calls, in waves, so that calls for one key come close together."""
    calls = []
    for first in range(0, keys, WAVE):
        wave = [key for key in range(first, min(first + WAVE, keys)) for _ in range(CALLERS)]
        mine = wave[process :: storm_callers.PROCESSES]
        trial.dice("calls", process, first).shuffle(mine)
        calls += mine
    return calls


def afterwards(place: Place, keys: int) -> Answers:
    return alone(place, lambda app, answers: storm_callers.late(app, keys, answers))


def alone(place: Place, work: Callable[[App, Answers], object]) -> Answers:
    """In one process."""

    @contextlib.contextmanager
    def prepare(process: int) -> Iterator[Any]:
        with place.app() as app:
            yield lambda answers: work(app, answers)

    return storm_callers.at_once(prepare, processes=1)


# -- over HTTP -----------------------------------------------------------------------------------


def over_http(trial: Trial, finding: Finding, keys: int) -> None:
    store = "postgres" if "postgres" in trial.stores else trial.stores[0]
    where = f"HTTP on {NAMES[store]}"
    with trial.place(store) as place, servers(place) as addresses:
        last = HttpCallers(place, addresses, storm_callers.PROCESSES)
        asyncio.run(last.fail(range(0, keys, 4)))
        answers = http_storm(trial, place, addresses, keys)
        for order, bodies in asyncio.run(last.late(keys, answers)).items():
            if len(bodies) != 1:
                finding.violated(f"{where}, seed {trial.seed}: bytes: order:{order}: expected one body, seen {bodies}")
        report(trial, finding, where, keys, place, answers, late=len(addresses))
        (place.directory / "effects").unlink()
        http_storm(trial, place, addresses, HTTP_CONTROL_KEYS, looks=True)
        finding.control("over HTTP, callers who look instead of claiming", twice(place, HTTP_CONTROL_KEYS))


def http_storm(
    trial: Trial, place: Place, addresses: list[tuple[str, int]], keys: int, *, looks: bool = False
) -> Answers:
    @contextlib.contextmanager
    def prepare(process: int) -> Iterator[Any]:
        callers = HttpCallers(place, addresses, process, looks=looks)
        calls = calls_of(trial, keys, process)
        yield lambda answers: callers.call(calls, answers)

    return storm_callers.at_once(prepare)


@contextlib.contextmanager
def servers(place: Place) -> Iterator[list[tuple[str, int]]]:
    """Two, on one ledger."""
    url = place.url or f"sqlite:///{place.directory}/claims.db"
    with contextlib.ExitStack() as stack:
        both = [HttpServer(place.directory, "--no-worker", "--no-access-log", store=url, shop=SHOP) for _ in range(2)]
        for server in both:
            stack.callback(server.close)
        yield [server.address for server in both]


# -- controls ------------------------------------------------------------------------------------


class TakenTwice(Wrapped):
    """The protection taken away: a caller that found nothing inserts and gets the claim, even if there is a record by
    now.
    """

    def commit(self, batches: Any) -> Any:
        return self.inner.commit([structs.replace(batch, writes=self._overrun(batch)) for batch in batches])

    def _overrun(self, batch: Any) -> list[Any]:
        return [self._over(write) if isinstance(write, Insert) else write for write in batch.writes]

    def _over(self, write: Insert) -> Insert | Replace:
        found = self.inner.fetch([write.at])[0].record
        if found is None:
            return write
        return Replace(write.at, write.body, write.state, version=found.version, draw=True, lease=write.lease)


def control(trial: Trial, finding: Finding, store: str) -> None:
    with trial.place(store) as place:
        storm(trial, place, CONTROL_KEYS, TakenTwice)
        finding.control(f"a claim that is not atomic, {NAMES[store]}", twice(place, CONTROL_KEYS))


def twice(place: Place, keys: int) -> str:
    effects = Counter(line.split(" ", 2)[1] for line in place.effects())
    repeated = sum(1 for times in effects.values() if times > 1)
    return f"{repeated} of {keys} keys had more than one effect" if repeated else ""
