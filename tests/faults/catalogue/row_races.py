"""A scene of F21: many callers in several processes request the same rows, which are created once each.

A short run uses only SQLite; tests/unit/effects/test_sql_races.py has the other databases, with fewer callers.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

from tests.faults.finding import Finding
from tests.faults.trial import Trial
from tests.servers import MariadbServer, PostgresServer, Unavailable
from tests.unit.effects.sql_places import Place, sqlite_place
from tests.unit.effects.test_sql_races import LEVELS, race
from twiceproof.effects.sql_databases import database_of

CALLERS, KEYS = 50, 200  # in each of four processes
LEAST_CALLERS, LEAST_KEYS = 4, 20
CONNECTIONS = "300"  # each caller has one


def row_races(trial: Trial, finding: Finding) -> None:
    callers, keys = trial.times(CALLERS, LEAST_CALLERS), trial.times(KEYS, LEAST_KEYS)
    for name in ("sqlite", "postgresql", "mariadb") if trial.share >= 1 else ("sqlite",):
        try:
            with _places(name, trial) as places:
                for level in LEVELS if name != "sqlite" else LEVELS[-1:]:
                    for told in _wrong(next(places), level, callers, keys):
                        finding.violated(f"{name}, {level}: {told}")
                    finding.hit(f"rows created by many at once: {name}", keys)
        except Unavailable as why:
            finding.skipped.append(str(why))
    finding.reach("callers for the same rows, in each of four processes", callers, callers)


def _wrong(place: Place, level: str, callers: int, keys: int) -> list[str]:
    created = race(place, "find_or_create", level, callers, keys)
    rows = place.run("SELECT count(*) FROM customers")
    database_of(place.url).close_idle()
    right = created == Counter(range(keys)) and rows == [(keys,)]
    return [] if right else [f"{rows} rows, and {sum(created.values())} callers created one of {keys}"]


@contextlib.contextmanager
def _places(name: str, trial: Trial) -> Iterator[Iterator[Place]]:
    """Return a number of empty databases of one kind."""
    if name == "sqlite":
        here = trial.directory / "rows"
        here.mkdir()
        yield iter([sqlite_place(here)])
        return
    server: MariadbServer | PostgresServer
    if name == "mariadb":
        server = MariadbServer({"max-connections": CONNECTIONS})
    else:
        server = PostgresServer({"max_connections": CONNECTIONS})
    with server:
        yield (Place(server.create_database()) for _ in LEVELS)
