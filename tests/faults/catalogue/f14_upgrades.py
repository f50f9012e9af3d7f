"""F14: ledgers of earlier releases are opened by this one and by a next one, and two releases work side by side."""

from __future__ import annotations

import importlib
import json
import logging
import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import redis

from tests.acceptance.children import Child
from tests.acceptance.later import pass_time
from tests.acceptance.places import Place
from tests.faults.catalogue.next_release import SideBySide, known_as, upgrade
from tests.faults.finding import Finding
from tests.faults.ledgers.copies import load
from tests.faults.ledgers.museum import Museum
from tests.faults.trial import NAMES, Trial
from twiceproof.stores.redis.codec import SCHEMA
from twiceproof.version import __version__

TITLE = "upgrades: ledgers of every release, and two releases at once"
LEDGERS = Path(__file__).parents[1] / "ledgers"
PLENTY = 120
STARTERS = 3  # processes that open a ledger at once
THIS, NEXT = "this release", "the next release"


def run(trial: Trial, finding: Finding) -> None:
    versions = sorted(folder.name for folder in LEDGERS.iterdir() if (folder / "about.json").exists())
    finding.reach("releases", 1, len(versions))
    if __version__ not in versions:
        finding.violated(f"no ledger of this version: write it with python -m tests.faults.ledgers ({__version__})")
    if len(versions) == 1:
        finding.skipped.append("the code of a past release beside this one: there is none yet; the next one is made up")
    for store in trial.stores:
        releases = [THIS] if store == "valkey" else [THIS, NEXT]
        taken_up = sum(look_around(trial, finding, store, at, by) for at in versions for by in releases)
        finding.reach(f"ledgers taken up again, {NAMES[store]}", len(versions) * len(releases), taken_up)
        beside(trial, finding, store)
    control(trial, finding, versions[0])


def look_around(trial: Trial, finding: Finding, store: str, version: str, release: str) -> int:
    """Open a ledger with this release, then with an invented next one, which migrates its schema."""
    for wrong in visited(trial, store, version, release):
        finding.violated(f"{NAMES[store]}, seed {trial.seed}, ledger of {version}, {release}: {wrong}")
    return 1


def visited(
    trial: Trial, store: str, version: str, release: str = THIS, first: Callable[[], object] = lambda: None
) -> list[str]:
    about = json.loads((LEDGERS / version / "about.json").read_text())[store]

    def become() -> None:
        if release == NEXT:
            upgrade(store)

    with trial.place(store) as place:
        load(store, LEDGERS / version, place)
        starters = [Child(lambda _: (become(), place.app().close())) for _ in range(STARTERS)]
        wrong = [f"opening: one of {STARTERS} at once ended with {end}" for end in [c.end() for c in starters] if end]

        def work(child: Child) -> None:
            signal.alarm(PLENTY)
            logging.disable(logging.ERROR)
            become()
            first()
            with place.app() as app:
                pass_time(place, about["written_at"] + 60 - app.store.scan("claim").block().now)
                child.tell(list(Museum(app, place).visit(about["effects"])))

        child = Child(work)
        told = child.hear()
        ended = child.end()
        if release == NEXT and known_as(place) != "SchemaMismatch":
            wrong.append("this release opens what the next one has upgraded")
    return wrong + ([f"broke off: it ended with {ended}"] if told is None else told)


# -- two releases at once ------------------------------------------------------------------------


def beside(trial: Trial, finding: Finding, store: str) -> None:
    """The next release migrates the schema while this one is working."""
    if store == "valkey":
        with trial.place(store) as place:
            refuse_newer_valkey(trial, finding, place)
        return
    with trial.place(store) as place:
        for wrong in SideBySide(place, store).run():
            finding.violated(f"{NAMES[store]}, seed {trial.seed}, two releases at once: {wrong}")
    finding.count(f"two releases at once, {NAMES[store]}")


def refuse_newer_valkey(trial: Trial, finding: Finding, place: Place) -> None:
    """A Redis store does not allow two releases at once: what a newer one wrote is refused and left unchanged."""
    with closing(redis.Redis.from_url(place.url)) as server:
        before = server.get("twiceproof:meta") or b""
        newer = before.replace(b'"schema":%d' % SCHEMA, b'"schema":%d' % (SCHEMA + 1))
        server.set("twiceproof:meta", newer)
        found = known_as(place)
        server.set("twiceproof:meta", before)
    if newer == before or found != "SchemaMismatch":
        finding.violated(f"Valkey, seed {trial.seed}: a newer schema: expected to be refused, seen {found}")
    finding.count("a newer release's store refused, Valkey")


# -- controls ------------------------------------------------------------------------------------


def control(trial: Trial, finding: Finding, version: str) -> None:
    for name, take_away in {"payloads hashed another way": other_hash, "another effect key": other_key}.items():
        wrong = visited(trial, trial.stores[0], version, first=take_away)
        wrong = [one for one in wrong if not one.startswith("broke off")]  # what it took away must be what is noticed
        finding.control(name, f"{len(wrong)} broken promises, first: {wrong[0][:100]}" if wrong else "")


def other_hash() -> None:
    hashing: Any = importlib.import_module("twiceproof.keys.canonical")  # its name in the package is the function's
    canonical = hashing.canonical
    hashing.canonical = lambda value: canonical(value) + b"\n"


def other_key() -> None:
    context: Any = importlib.import_module("twiceproof.flows.engine.context")
    derived = context.effect_key
    context.effect_key = lambda *given, **named: derived(*given, **named) + "x"
