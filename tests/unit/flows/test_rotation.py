"""Rotation: everything is sealed anew, beside whoever is at work, and no fence or version is broken by it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.flows.resuming import resume
from tests.unit.flows.stage import Died, DyingEngine
from twiceproof import App, CannotOpen, Misuse, Waiting
from twiceproof.claims.claim import address_of
from twiceproof.claims.retention import sweep
from twiceproof.flows.history.key_rotation import RotationCount, _renew, keys_in_use, rotate
from twiceproof.operations import block
from twiceproof.prove.clocks import ManualClock
from twiceproof.records import RECORD_KINDS, Address, Batch, Insert, Replace
from twiceproof.stores.encryption import EncryptedEngine, Keyring
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.memory import MemoryEngine

NEW, OLD = {"new": b"n" * 32}, {"old": b"o" * 32}


class Vault:
    """One database, and processes with different keyrings on it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.inner = MemoryEngine(self.clock)

    def store(self, keys: dict[str, bytes]) -> GroupedStore:
        engine: Any = EncryptedEngine(self.inner, Keyring(keys)) if keys else self.inner
        return GroupedStore(engine, clock=self.clock)

    def app(self, keys: dict[str, bytes]) -> App:
        app = App(self.store(keys), clock=self.clock)
        app.tally._every = 3_600.0
        return app


@pytest.fixture
def vault() -> Vault:
    return Vault()


def shop(app: App, **options: Any) -> Any:
    @app.step(repeat="safe")
    def save(order: int) -> str:
        return f"saved {order}"

    @app.flow(key="order:{order}", name="sync", **options)
    def sync(order: int) -> str:
        saved = save(order)
        if order > 100:
            app.sleep("1h")
        return saved

    return sync


def test_every_row_is_counted_once(vault: Vault) -> None:
    app = vault.app(OLD)
    app.runtime.url = "https://shop.example.com"

    @app.flow(key="order:{order}")
    def paid(order: int) -> None:
        app.callback_url("paid")
        app.wait_for("paid")

    with pytest.raises(Waiting):
        paid(1)
    rows = [vault.inner.scan(kind, None, None, None, 100).records for kind in RECORD_KINDS]
    assert [record.at.kind for records in rows for record in records].count("callback") == 1
    assert keys_in_use(app.store) == {"old": sum(map(len, rows))}


def test_plain_and_old_rows_are_sealed_anew_and_stay_what_they_are(vault: Vault) -> None:
    for order, keys in enumerate([{}, OLD]):
        assert shop(vault.app(keys))(order) == f"saved {order}"
    store = vault.store({**NEW, **OLD})
    assert set(keys_in_use(store)) == {"", "old"}
    done = rotate(store)
    assert (done.sealed, done.left) == (6, 0)  # of each: the run, its step, its index record
    assert keys_in_use(store) == {"new": 6}
    assert rotate(store) == RotationCount(current=6)
    app = vault.app(NEW)
    for order in (0, 1):
        assert shop(app)(order) == f"saved {order}"


def test_the_time_at_which_something_was_done_stays(vault: Vault) -> None:
    app = vault.app(OLD)
    shop(app)(1)
    look = app.claims.look(address_of("default", "sync", "order:1", "run"))
    then = block(look).finished_at  # type: ignore[union-attr]
    vault.clock.advance(1_000)
    rotate(vault.store({**NEW, **OLD}))
    again = vault.app(NEW).claims.look(address_of("default", "sync", "order:1", "run"))
    assert block(again).finished_at == then  # type: ignore[union-attr]


def test_what_falls_due_still_does(vault: Vault) -> None:
    app = vault.app(OLD)
    with pytest.raises(Waiting):
        shop(app)(200)
    vault.clock.advance(1_800)
    assert rotate(vault.store({**NEW, **OLD})).left == 0
    other = vault.app(NEW)
    flow = shop(other)
    assert resume(other) == 0
    vault.clock.advance(1_801)
    assert resume(other) == 1
    assert flow(200) == "saved 200"


def test_what_is_held_is_left_to_its_holder(vault: Vault) -> None:
    """In the middle of a run, between two of its steps, everything is sealed anew."""
    app, seen = vault.app(OLD), []

    @app.step(repeat="never")
    def first() -> str:
        return "first"

    @app.step(repeat="never")
    def second() -> str:
        seen.append(rotate(vault.store({**NEW, **OLD})))
        return "second"

    @app.flow(key="order:{n}")
    def sync(n: int) -> list[str]:
        return [first(), second()]

    with app.claim("ship", "order:1") as claim:
        assert sync(1) == ["first", "second"]
        claim.result = "shipped"
    assert seen[0].sealed == 1  # the index record of the run
    assert seen[0].held >= 3
    assert sync(1) == ["first", "second"]
    done = rotate(vault.store({**NEW, **OLD}))
    assert (done.held, done.changed) == (0, 0)
    assert set(keys_in_use(vault.store(NEW))) == {"new"}


def test_a_run_that_was_cut_off_keeps_the_times_it_is_judged_by(vault: Vault) -> None:
    """When a step may have begun that left no trace is told from the last time in the ledger."""
    app, cut = vault.app(OLD), [True]

    @app.step(repeat="safe")
    def first() -> str:
        return "first"

    @app.step(repeat="safe")
    def second() -> str:
        if cut[0]:
            raise KeyboardInterrupt
        return "second"

    @app.flow(key="order:{n}", name="sync")
    def sync(n: int) -> list[str]:
        return [first(), second()]

    with pytest.raises(KeyboardInterrupt):
        sync(1)
    vault.clock.advance(60)
    assert rotate(vault.store({**NEW, **OLD})) == RotationCount(sealed=1, held=2)
    cut[0] = False
    assert sync(1) == ["first", "second"]
    assert rotate(vault.store({**NEW, **OLD})).left == 0


def test_a_run_whose_holder_died_is_left_until_somebody_goes_on_with_it(vault: Vault) -> None:
    engine = DyingEngine(EncryptedEngine(vault.inner, Keyring(OLD)), at=2)
    dying = App(GroupedStore(engine, clock=vault.clock), clock=vault.clock)
    with pytest.raises(Died):
        shop(dying)(1)
    vault.clock.advance(60)
    assert rotate(vault.store({**NEW, **OLD})) == RotationCount(sealed=1, held=1)
    assert shop(vault.app({**NEW, **OLD}))(1) == "saved 1"


def test_one_that_changes_meanwhile_is_not_written_over(vault: Vault) -> None:
    at = Address("default/x@order/a", "mark", "self")
    old, both = vault.store(OLD), vault.store({**NEW, **OLD})
    old.write(Insert(at, "1")).block()
    (raw,) = vault.inner.scan("mark", None, None, None, 10).records
    renewal = _renew(both, raw)
    found = next(renewal).block()
    claim = renewal.send(found).block()
    write = renewal.send(claim)
    old.write(Replace(at, "2", version=raw.version)).block()
    with pytest.raises(StopIteration) as end:
        renewal.send(write.block())
    assert end.value.value == "changed"
    assert both.read(at).block().record.body == "2"  # type: ignore[union-attr]
    assert block(_renew(both, raw)) == "changed"


def test_a_run_that_cannot_be_opened_does_not_keep_others_from_being_forgotten(vault: Vault) -> None:
    sync = shop(vault.app(OLD), keep="1d")
    sync(1)
    step = vault.inner.scan("step", None, None, None, 10).records[0]
    vault.clock.advance(1)
    app = vault.app({**NEW, **OLD})
    rotate(app.store)
    # All but its step, which is put back as it was.
    vault.inner.commit([Batch([Replace(step.at, step.body, step.state, version=_version(vault, step.at))], "n")])
    app = vault.app(NEW)
    shop(app, keep="1d")(2)
    vault.clock.advance(2 * 86_400)
    block(sweep(app.store))
    left = [record.at.space for record in vault.inner.scan("run", None, None, None, 10).records]
    assert left == ["default/sync/order:1"]


def _version(vault: Vault, at: Address) -> str:
    record = vault.inner.fetch([at])[0].record
    assert record is not None
    return record.version


def test_without_keys_there_is_nothing_to_rotate_to(vault: Vault) -> None:
    with pytest.raises(Misuse, match="TWICEPROOF_KEYS"):
        rotate(vault.store({}))
    assert keys_in_use(vault.store({})) == {}


def test_an_old_key_that_is_missing_stops_it_and_is_named(vault: Vault) -> None:
    shop(vault.app(OLD))(1)
    with pytest.raises(CannotOpen, match="'old'"):
        rotate(vault.store(NEW))
    assert keys_in_use(vault.store(NEW)) == {"old": 3}


def test_a_bad_row_does_not_keep_the_old_key_in_use_for_the_others(vault: Vault, caplog: Any) -> None:
    sync = shop(vault.app(OLD))
    for order in (1, 2, 3):
        sync(order)
    bad, other = (vault.inner.fetch([address_of("default", "sync", f"order:{n}", "run")])[0].record for n in (1, 2))
    assert bad is not None and other is not None
    vault.inner.commit([Batch([Replace(bad.at, other.body, bad.state, version=bad.version)], "moved")])
    done = rotate(vault.store({**NEW, **OLD}))
    assert done.shut and done.left == done.shut and done.sealed
    assert keys_in_use(vault.store(NEW)) == {"new": done.sealed, "old": done.shut}
    assert "order:1" in caplog.text and "order:2" not in caplog.text
    assert shop(vault.app(NEW))(3) == "saved 3"


def test_rotated_under_load_nothing_is_lost_and_the_old_key_can_go(tmp_path: Path) -> None:
    """Threads go on working, half of them with the old key in front, while everything is sealed anew, over and over."""
    from concurrent.futures import ThreadPoolExecutor

    from twiceproof.stores.sqlite.engine import SqliteEngine

    def opened(*rings: dict[str, bytes]) -> GroupedStore:
        engine = SqliteEngine(tmp_path / "shop.db", durability="process")
        return GroupedStore(
            EncryptedEngine(engine, Keyring({name: key for ring in rings for name, key in ring.items()}))
        )

    apps = [App(opened(OLD, NEW)), App(opened(NEW, OLD))]
    flows = [shop(app) for app in apps]
    with opened_store(opened(NEW, OLD)) as store, ThreadPoolExecutor(4) as pool:
        work = [pool.submit(flows[order % 2], order // 2) for order in range(80)]
        while not all(one.done() for one in work):
            rotate(store)
        results = [one.exception() for one in work]
        assert all(error is None or type(error).__name__ == "InProgress" for error in results), results
        apps[0].close()
        while rotate(store).left:
            pass
        assert set(keys_in_use(store)) == {"new"}
    apps[1].close()
    last = App(opened(NEW))
    assert [shop(last)(order) for order in range(40)] == [f"saved {order}" for order in range(40)]
    last.close()


@contextlib.contextmanager
def opened_store(store: GroupedStore) -> Iterator[GroupedStore]:
    yield store
    store.close()
