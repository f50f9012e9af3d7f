"""F14: a ledger outlives its release: what every past one left replays, and two releases work side by side."""

from __future__ import annotations

import importlib
import json
import logging
import re
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import redis

from tests.acceptance.children import Child
from tests.acceptance.later import pass_time
from tests.acceptance.places import Place
from tests.faults.catalogue.next_release import SideBySide, known_as
from tests.faults.finding import Finding
from tests.faults.ledgers.copies import load
from tests.faults.ledgers.museum import Museum
from tests.faults.trial import NAMES, Trial
from twiceproof.stores.postgres.primary import migration_sql
from twiceproof.stores.redis.codec import SCHEMA
from twiceproof.stores.sql import migrations
from twiceproof.stores.sqlite.schema import statements
from twiceproof.version import __version__

TITLE = "upgrades: ledgers of every release, and two releases at once"
LEDGERS = Path(__file__).parents[1] / "ledgers"
PLENTY = 120
VIEW = re.compile(r"^(CREATE|DROP) VIEW", re.MULTILINE)
STARTERS = 3  # processes that open an old schema at once


def run(trial: Trial, finding: Finding) -> None:
    versions = sorted(folder.name for folder in LEDGERS.iterdir() if (folder / "about.json").exists())
    finding.reach("releases", 1, len(versions))
    if __version__ not in versions:
        finding.violated(f"no ledger of this version: write it with python -m tests.faults.ledgers ({__version__})")
    if len(versions) == 1:
        finding.skipped.append("the code of a past release beside this one: there is none yet; the next one is made up")
    for store in trial.stores:
        schemas = [0, *earlier(trial, store)]
        taken_up = sum(look_around(trial, finding, store, at, schema) for at in versions for schema in schemas)
        finding.reach(f"ledgers taken up again, {NAMES[store]}", len(versions) * len(schemas), taken_up)
        beside(trial, finding, store)
    control(trial, finding, versions[0])


def earlier(trial: Trial, store: str) -> list[int]:
    """The schemas before this one, where there are schemas; in a short run, one of them."""
    schemas = list(range(1, len(migrations(store)))) if store in ("sqlite", "postgres") else []
    return schemas if trial.share >= 1 else schemas[trial.seed % max(1, len(schemas)) :][:1]


def look_around(trial: Trial, finding: Finding, store: str, version: str, schema: int) -> int:
    """As it was written; and as an earlier schema would have had it."""
    for wrong in visited(trial, store, version, schema):
        where = f"ledger of {version}, schema {schema or 'its own'}"
        finding.violated(f"{NAMES[store]}, seed {trial.seed}, {where}: {wrong}")
    return 1


def visited(
    trial: Trial, store: str, version: str, schema: int = 0, first: Callable[[], object] = lambda: None
) -> list[str]:
    about = json.loads((LEDGERS / version / "about.json").read_text())[store]
    with trial.place(store) as place:
        load(store, LEDGERS / version, place)
        if schema:
            lower(store, place, schema)
        starters = [Child(lambda _: place.app().close()) for _ in range(STARTERS)]
        wrong = [f"opening: one of {STARTERS} at once ended with {end}" for end in [c.end() for c in starters] if end]

        def work(child: Child) -> None:
            signal.alarm(PLENTY)
            logging.disable(logging.ERROR)
            first()
            with place.app() as app:
                pass_time(place, about["written_at"] + 60 - app.store.scan("claim").block().now)
                child.tell(list(Museum(app, place).visit(about["effects"])))

        child = Child(work)
        told = child.hear()
        ended = child.end()
    return wrong + ([f"broke off: it ended with {ended}"] if told is None else told)


def lower(store: str, place: Place, schema: int) -> None:
    """Back to an earlier schema: what came later is made anew by the migrations."""
    if store == "sqlite":
        with closing(sqlite3.connect(place.directory / "claims.db")) as db, db:
            for (view,) in db.execute("SELECT name FROM sqlite_master WHERE type='view'").fetchall():
                db.execute(f"DROP VIEW {view}")
            for migration in migrations("sqlite")[:schema]:
                for statement in filter(VIEW.search, statements(migration.sql)):
                    db.execute(statement)
            db.execute("DELETE FROM twiceproof_migrations WHERE number > ?", (schema,))
        return
    with psycopg.connect(place.url, autocommit=True) as db:
        copy = db.execute("SELECT row_to_json(t)::text FROM twiceproof.twiceproof_records t").fetchall()
        (last,) = db.execute("SELECT last_value FROM twiceproof.twiceproof_number").fetchone() or (1,)
        db.execute("DROP SCHEMA twiceproof CASCADE")
        db.execute("CREATE SCHEMA twiceproof")
        db.execute("CREATE TABLE twiceproof.twiceproof_migrations (number int PRIMARY KEY, name text NOT NULL)")
        for migration in migrations("postgres")[:schema]:
            db.execute(migration_sql(migration))
            db.execute(
                "INSERT INTO twiceproof.twiceproof_migrations VALUES (%s, %s)", (migration.number, migration.name)
            )
        for row in copy:
            db.execute(
                "INSERT INTO twiceproof.twiceproof_records OVERRIDING SYSTEM VALUE"
                " SELECT * FROM json_populate_record(NULL::twiceproof.twiceproof_records, %s::json)",
                row,
            )
        db.execute("SELECT setval('twiceproof.twiceproof_number', %s)", (last,))
        ids = "pg_get_serial_sequence('twiceproof.twiceproof_records', 'id')"
        db.execute(f"SELECT setval({ids}, max(id)) FROM twiceproof.twiceproof_records")


# -- two releases at once ------------------------------------------------------------------------


def beside(trial: Trial, finding: Finding, store: str) -> None:
    """This release is at work when the next one comes and brings the schema up to its own."""
    if store == "valkey":
        with trial.place(store) as place:
            refuse_newer_valkey(trial, finding, place)
        return
    with trial.place(store) as place:
        for wrong in SideBySide(place, store).run():
            finding.violated(f"{NAMES[store]}, seed {trial.seed}, two releases at once: {wrong}")
    finding.count(f"two releases at once, {NAMES[store]}")


def refuse_newer_valkey(trial: Trial, finding: Finding, place: Place) -> None:
    """Two releases at once are not for a Redis store: what a newer one wrote is refused, and left as it is."""
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
        finding.control(name, f"{len(wrong)} broken promises, first: {wrong[0][:100]}" if wrong else "")


def other_hash() -> None:
    hashing: Any = importlib.import_module("twiceproof.keys.fingerprint")  # its name in the package is the function's
    canonical = hashing.canonical
    hashing.canonical = lambda value: canonical(value) + b"\n"


def other_key() -> None:
    context: Any = importlib.import_module("twiceproof.flows.engine.context")
    derived = context.effect_key
    context.effect_key = lambda *given, **named: derived(*given, **named) + "x"
