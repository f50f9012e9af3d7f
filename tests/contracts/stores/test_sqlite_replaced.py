"""An SQLite file that was replaced or removed under an open store: what is written to the old one is lost to all."""

import pytest

from twiceproof.errors import StoreUnsafe
from twiceproof.prove.clocks import ManualClock
from twiceproof.records import Address, Conflict, Insert, Written
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.open import open_store
from twiceproof.stores.sqlite.connection import LOOK_EVERY
from twiceproof.stores.sqlite.engine import SqliteEngine

AT = Address("shop/order:1", "claim", "self")


def claim(at=AT):
    return Insert(at, "mine", state="held", draw=True, lease=30.0)


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def place(tmp_path):
    return tmp_path / "ledger.db"


@pytest.fixture
def opened(place, clock):
    stores = []

    def open_():
        stores.append(GroupedStore(SqliteEngine(place, clock=clock), clock=clock))
        return stores[-1]

    yield open_
    for store in stores:
        store.close()


def move(place, to):
    """As somebody does who clears a place for a backup."""
    for part in ("", "-wal", "-shm"):
        place.with_name(place.name + part).rename(to.with_name(to.name + part))


def refused(store, clock):
    clock.advance(LOOK_EVERY)
    for _ in range(2):  # it does not pass because it was looked at just now
        with pytest.raises(StoreUnsafe, match="open the store again") as told:
            store.write(claim(Address("next", "claim", "self"))).block()
    (finding,) = told.value.findings
    assert (finding.level, finding.name) == ("refuse", "file")


def test_a_file_that_was_replaced_is_refused(opened, place, clock):
    """Or two who ask for one key are both told that they are first, and have the same fence."""
    store = opened()
    store.write(claim()).block()
    move(place, place.with_name("old.db"))
    assert isinstance(opened().write(claim()).block(), Written)
    refused(store, clock)


def test_a_file_that_was_removed_is_refused(opened, place, clock):
    store = opened()
    store.write(claim()).block()
    for part in place.parent.iterdir():
        part.unlink()
    refused(store, clock)
    assert not place.exists()  # nor is a new one made


def test_no_new_connection_leads_to_another_file(opened, place):
    """A store would read from one file and write to the other."""
    store = opened()
    store.write(claim()).block()
    move(place, place.with_name("old.db"))
    opened()
    store.engine._readers.close()
    with pytest.raises(StoreUnsafe):
        store.read(AT).block()


def test_a_file_that_is_back_is_served_again(opened, place, clock):
    store = opened()
    store.write(claim()).block()
    move(place, place.with_name("old.db"))
    refused(store, clock)
    move(place.with_name("old.db"), place)
    assert isinstance(store.write(claim()).block(), Conflict)


def test_a_file_that_others_write_to_and_tidy_up_is_the_same_file(opened, place, clock):
    """The twin."""
    store, other = opened(), opened()
    other.write(claim()).block()
    other.engine._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    other.engine._writer.execute("VACUUM")
    clock.advance(LOOK_EVERY)
    assert isinstance(store.write(claim()).block(), Conflict)


def test_a_process_that_goes_to_another_directory_keeps_its_file(tmp_path, monkeypatch):
    """As daemons do. A forked child opens its connections anew, and there may be another ledger by that name."""
    for name in ("home", "elsewhere"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        open_store("sqlite:///ledger.db").close()
    monkeypatch.chdir(tmp_path / "home")
    store = open_store("sqlite:///ledger.db")
    monkeypatch.chdir(tmp_path / "elsewhere")
    store.reset_after_fork()
    store.write(claim()).block()
    store.close()
    for name, there in (("home", True), ("elsewhere", False)):
        other = open_store(f"sqlite:///{tmp_path}/{name}/ledger.db")
        assert (other.read(AT).block().record is not None) is there
        other.close()
