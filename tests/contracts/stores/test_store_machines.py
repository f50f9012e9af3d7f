"""Every store does what the memory model does, whatever is asked of it in whatever order."""

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.contracts.stores.broken import BROKEN
from tests.contracts.stores.movable_mariadb import MovableMariadbEngine
from tests.contracts.stores.movable_redis import MovableRedisEngine
from tests.contracts.stores.movable_rows import advance, movable
from tests.contracts.stores.row_places import place  # noqa: F401
from twiceproof.prove.clocks import ManualClock, ShiftedClock
from twiceproof.prove.store_machine import StoreMachine
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.memory import MemoryEngine
from twiceproof.stores.postgres.engine import PostgresEngine
from twiceproof.stores.sqlite.engine import SqliteEngine

CLOCK = (
    "CREATE OR REPLACE FUNCTION twiceproof.twiceproof_now() RETURNS double precision LANGUAGE sql VOLATILE "
    "RETURN extract(epoch FROM clock_timestamp()) + {shift!r}"
)
# What the machine notices of the broken stores, every time: conditions, fences, content and indexes. The order of
# what is due takes luck to meet by chance; the contract's own tests look for it.
NOTICED = [
    "NoFenceCheck",
    "VersionIgnoredOnReplace",
    "VersionIgnoredOnRemove",
    "AbsenceNotChecked",
    "InsertOverwrites",
    "ConflictWithoutWhatWasFound",
    "HalfABatchLands",
    "ConflictNamesTheLastMisfit",
    "DrawKeepsTheOldFence",
    "CreatedAtOverwritten",
    "NotGivenIsKept",
    "DueNotHidden",
    "HidingKeepsTheVersion",
    "OtherQueuesToo",
    "OtherKindsToo",
    "IndexOfWhatWasDue",
    "IndexNotMovedByReplace",
    "EmptyStateMeansAny",
    "ScanIgnoresTheState",
    "StateIndexNotMended",
    "BodyNotGivenIsEmptied",
    "StaleRead",
]


def compare(store, advance, examples, steps=30):
    run(lambda: StoreMachine(store, advance), examples, steps, tuple(Phase))


def run(machine, examples, steps, phases, *, derandomize=True):
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            phases=phases,
            derandomize=derandomize,
            database=None,
            print_blob=False,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_the_memory_store_is_like_its_own_model():
    clock = ShiftedClock()
    compare(GroupedStore(MemoryEngine(clock), clock=clock), clock.advance, examples=60)


def test_sqlite_is_like_the_model(tmp_path):
    clock = ShiftedClock()
    store = GroupedStore(SqliteEngine(tmp_path / "s.db", clock=clock, durability="process"), clock=clock)
    compare(store, clock.advance, examples=60)
    store.close()


@pytest.mark.server
def test_postgres_is_like_the_model(postgres_dsn):
    store = GroupedStore(PostgresEngine(postgres_dsn))
    shift = 0.0
    with psycopg.connect(postgres_dsn, autocommit=True) as db:

        def advance(seconds):
            nonlocal shift
            shift += seconds
            db.execute(CLOCK.format(shift=shift))

        compare(store, advance, examples=30)
    store.close()


@pytest.mark.server
def test_mariadb_is_like_the_model(mariadb_url):
    engine = MovableMariadbEngine(mariadb_url)
    store = GroupedStore(engine)
    compare(store, engine.advance, examples=30)
    store.close()


@pytest.mark.server
def test_redis_is_like_the_model(redis_url):
    engine = MovableRedisEngine(redis_url)
    store = GroupedStore(engine)
    compare(store, engine.advance, examples=30)
    store.close()


@pytest.mark.server
def test_a_redis_cluster_is_like_the_model(cluster_url):
    engine = MovableRedisEngine(cluster_url)
    store = GroupedStore(engine)
    compare(store, engine.advance, examples=20, steps=20)
    store.close()


@pytest.mark.server
def test_a_store_of_rows_is_like_the_model(place):  # noqa: F811
    store = GroupedStore(movable(place.open().engine))
    compare(store, advance, examples=10, steps=20)
    store.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTICED)
def test_the_comparison_notices_a_broken_store(name):
    """The walks are random: what one run of them does not meet, another does. Five in a row never were in vain."""
    (broken,) = [broken for broken in BROKEN if broken.name == name]
    with pytest.raises(AssertionError):
        for _ in range(5):
            run(lambda: _against(broken), 200, 40, [Phase.generate], derandomize=False)


def _against(broken):
    clock = ManualClock()  # the real one's microseconds would make each run another
    return StoreMachine(broken.make(clock), clock.advance)
