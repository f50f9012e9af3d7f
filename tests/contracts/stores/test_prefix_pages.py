"""Pages by prefix of SQL stores: a record that stays put is met once, whatever comes and goes while a page is read."""

import contextlib

import pytest

from twiceproof.records import Address, Insert, Remove
from twiceproof.stores.mariadb import scans as mariadb_scans
from twiceproof.stores.open import open_store
from twiceproof.stores.postgres import scans as postgres_scans
from twiceproof.stores.sqlite import engine as sqlite_engine
from twiceproof.stores.sqlite import rows as sqlite_rows

LOOKED_AT, ALL, CLAIMS = 20, range(100, 200), range(105, 200, 10)


def space(nth):
    return f"acme/{nth}"


class Between:
    """SQLite's reader, and what is done before it is asked for the border."""

    def __init__(self, db, work):
        self._db, self._work = db, work

    def execute(self, sql, values=()):
        if sql == sqlite_engine.BORDER:
            self._work()
        return self._db.execute(sql, values)


def sqlite(request, patch, work):
    patch.setattr(sqlite_rows, "MOST_LOOKED_AT", LOOKED_AT)
    store = open_store(f"sqlite:///{request.getfixturevalue('tmp_path')}/ledger.db")
    reader = store.engine._reader

    @contextlib.contextmanager
    def reading():
        with reader() as db:
            yield Between(db, lambda: work(store))

    patch.setattr(store.engine, "_reader", reading)
    return store


def on_server(module, name, fixture):
    def opened(request, patch, work):
        patch.setattr(module, "MOST_LOOKED_AT", LOOKED_AT)
        store, scan = open_store(request.getfixturevalue(fixture)), getattr(module, name)
        is_short = scan.is_short
        patch.setattr(scan, "is_short", lambda asked, rows: (work(store), is_short(asked, rows))[1])
        return store

    return opened


STORES = {
    "sqlite": sqlite,
    "postgres": on_server(postgres_scans, "PostgresPrefixScan", "postgres_dsn"),
    "mariadb": on_server(mariadb_scans, "MariadbPrefixScan", "mariadb_url"),
}


def come(store):
    for nth in range(10):
        store.write(Insert(Address(f"{space(100)}/{nth}", "run", "self"), "")).block()


def go(store):
    for nth in set(range(100, 115)) - set(CLAIMS):
        found = store.read(Address(space(nth), "run", "self")).block().record
        store.write(Remove(found.at, version=found.version)).block()


@pytest.mark.server
@pytest.mark.parametrize("state", [None, "done"])
@pytest.mark.parametrize("work", [come, go])
@pytest.mark.parametrize("kind", STORES)
def test_what_comes_and_goes_moves_no_other_record_to_another_page(request, monkeypatch, kind, work, state):
    left = [work]
    store = STORES[kind](request, monkeypatch, lambda store: left.pop()(store) if left else None)
    for nth in ALL:
        store.write(Insert(Address(space(nth), "claim" if nth in CLAIMS else "run", "self"), "", "done")).block()
    seen, after, pages = [], None, 0
    while not pages or after is not None:
        page = store.scan("claim", state=state, prefix="acme/", after=after, limit=50).block()
        seen, after, pages = [*seen, *page.records], page.after, pages + 1
    store.close()
    assert [record.at.space for record in seen] == [space(nth) for nth in CLAIMS]
    assert not left and pages >= 4
