"""A child process for tests: `python -m tests.contracts.stores.sqlite_child VERB FILE`; a line on stdin begins it."""

import ctypes
import multiprocessing
import os
import resource
import shutil
import signal
import sqlite3
import sys
import tempfile
from pathlib import Path

from click.testing import CliRunner

from twiceproof.cli.main import cli
from twiceproof.effects.sql_databases import SqlDatabase
from twiceproof.errors import StoreError
from twiceproof.records import Address, Insert, Written
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.sqlite.engine import SqliteEngine


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


def land(store, *keys):
    """Say each key when its write was acknowledged."""
    for key in keys:
        assert isinstance(store.write(Insert(at(key), "")).block(), Written)
        say(key)


def die():
    """At once, as by a power cut: nothing is tidied up."""
    os.kill(os.getpid(), signal.SIGKILL)


def open_and_close(path):
    open_store(path).close()
    ready()


def second_store(path):
    """Two modules of one process, each with an app of its own on one file."""
    first = open_store(path)
    land_quietly(first, "before")
    second = open_store(path)
    ready()
    land(first, "first")
    land(second, "second")
    die()


def second_store_closed(path):
    first = open_store(path)
    second = open_store(path)
    land_quietly(first, "before")
    second.close()
    ready()
    land(first, "first", "second")
    die()


def copied(path):
    """Somebody copies the files, in the very process that has them open."""
    store = open_store(path)
    land_quietly(store, "before")
    with tempfile.TemporaryDirectory() as elsewhere:
        for part in Path(path).parent.iterdir():
            shutil.copy(part, elsewhere)
    ready()
    land(store, "first", "second")
    die()


def looked_into(path, way):
    """Other code of this process opens the ledger and closes it again, while its first store goes on."""
    store = open_store(path)
    land_quietly(store, "before")
    OTHER_USERS[way](path)
    ready()
    land(store, "first", "second")
    die()


def run_command(*arguments):
    answer = CliRunner().invoke(cli, list(arguments))
    assert answer.exit_code in (0, 1), answer.output  # 1: the doctor warns of a file in memory


def sql_effect(path):
    database = SqlDatabase(f"sqlite:///{path}")
    with database.open() as connection:
        assert connection.run("SELECT count(*) FROM twiceproof_records").rows == [(1,)]
    database.close_idle()


OTHER_USERS = {
    "doctor": lambda path: run_command("--store", f"sqlite:///{path}", "doctor"),
    "backup": lambda path: run_command("--store", f"sqlite:///{path}", "ledger", "backup", f"{path}.backup"),
    "restore": lambda path: (
        OTHER_USERS["backup"](path),
        run_command("--store", f"sqlite:///{path}.new", "ledger", "restore", f"{path}.backup"),
    ),
    "list": lambda path: run_command("--store", f"sqlite:///{path}", "claims", "list"),
    "effect": sql_effect,
}


def land_quietly(store, key):
    assert isinstance(store.write(Insert(at(key), "")).block(), Written)


def forked(path, way):
    """A child goes on with the file; its parent is gone."""
    store = open_store(path)
    land_quietly(store, "before")
    gone, living = os.pipe()

    def child():
        os.close(living)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - multiprocessing closes it
        mine = open_store(path) if way == "new store" else store
        land_quietly(mine, "child")
        os.read(gone, 1)  # nothing comes: the parent has ended
        ready()
        assert mine.read(at("before")).block().record is not None
        land(mine, "first", "second")
        die()

    if way == "multiprocessing":
        keep = os.dup(0)  # its children read from nowhere

        def with_stdin():
            os.dup2(keep, 0)
            child()

        multiprocessing.get_context("fork").Process(target=with_stdin).start()
    elif os.fork() == 0:
        if way == "daemon":
            become_a_daemon(gone, living)
        child()
    os._exit(0)


def forked_unheard(path):
    """Python's hooks are not called: `os.fork` is not what forks."""
    store = open_store(path)
    land_quietly(store, "before")
    ready()
    pid = ctypes.PyDLL(None).fork()
    if pid == 0:
        try:
            store.write(Insert(at("child"), "")).block()
        except StoreError as error:
            say(type(error).__name__)
        os._exit(0)
    os.waitpid(pid, 0)
    say(type(store.write(Insert(at("parent"), "")).block()).__name__)


def count_orders(path):
    ready()
    db = sqlite3.connect(path)
    say(db.execute("SELECT count(*) FROM orders").fetchone()[0])
    db.close()


def become_a_daemon(*kept):
    """As a daemon does: twice forked, and without the descriptors of its parent."""
    os.setsid()
    if os.fork():
        os._exit(0)
    for descriptor in set(range(3, 256)) - set(kept):
        try:
            os.close(descriptor)
        except OSError:
            continue


if __name__ == "__main__":
    verbs = {
        verb.__name__: verb
        for verb in (
            race,
            migrate,
            write_for_ever,
            hold,
            fill,
            open_and_close,
            second_store,
            second_store_closed,
            looked_into,
            copied,
            forked,
            forked_unheard,
            count_orders,
        )
    }
    verbs[sys.argv[1]](*sys.argv[2:])
