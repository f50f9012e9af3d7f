"""A process of its own for tests: `python -m tests.stores.sqlite_child VERB FILE …`, begun by a line on stdin."""

import resource
import sqlite3
import sys
from pathlib import Path

from twiceproof.errors import StoreError
from twiceproof.records import Address, Insert, Written
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.sqlite import SqliteEngine


def say(*words):
    print(*words, flush=True)


def at(key):
    return Address("shop", "claim", str(key))


def ready():
    say("ready")
    sys.stdin.readline()


def open_store(path, **options):
    return GroupedStore(SqliteEngine(Path(path)), **options)


def race(path, count):
    """Insert each key, and say how many were won."""
    store = open_store(path)
    ready()
    wins = [key for key in range(int(count)) if isinstance(store.write(Insert(at(key), "")).block(), Written)]
    say(*wins)


def migrate(path):
    ready()
    open_store(path).close()
    say("migrated")


def write_for_ever(path):
    """Say the name of each key when its write was acknowledged."""
    store = open_store(path)
    ready()
    for key in range(1_000_000):
        assert isinstance(store.write(Insert(at(key), "x" * 500)).block(), Written)
        say(key)


def hold(path):
    """Hold the write lock until told to let go."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("BEGIN IMMEDIATE")
    ready()
    db.execute("COMMIT")
    say("let go")


def fill(path, bytes_):
    """Write until a limit on the file's size stops it; then lift the limit and write again."""
    store = open_store(path, patience=0.05)
    ready()
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(bytes_), hard))
    acknowledged = []
    try:
        for key in range(10_000):
            assert isinstance(store.write(Insert(at(key), "x" * 1_000)).block(), Written)
            acknowledged.append(key)
    except StoreError as error:
        say(type(error).__name__, len(acknowledged))
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    missing = [key for key in acknowledged if store.read(at(key)).block().record is None]
    say(len(missing))
    say(type(store.write(Insert(at("after"), "")).block()).__name__)
    store.close()


if __name__ == "__main__":
    verbs = {verb.__name__: verb for verb in (race, migrate, write_for_ever, hold, fill)}
    verbs[sys.argv[1]](*sys.argv[2:])
