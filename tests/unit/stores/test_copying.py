"""Whole ledgers are copied between SQLite and PostgreSQL: everything, once, and nothing is done again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from twiceproof import App, Misuse, NeedsReview, StoreUnavailable, StoreUnsafe, Waiting
from twiceproof.claims.claim import address_of
from twiceproof.errors import SchemaMismatch
from twiceproof.stores import copying
from twiceproof.stores.copying import LedgerBulk, copy_ledger, open_bulk, unlock_ledger
from twiceproof.stores.open import open_store
from twiceproof.stores.sqlite.bulk import SqliteBulk

Done = list[Any]
STORES = ["sqlite", pytest.param("postgres", marks=pytest.mark.server)]


@pytest.fixture
def place(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[str], str]:
    """The URL of a new ledger, by the store's name and the ledger's own."""

    def make(name: str) -> str:
        store, _, own = name.partition(":")
        if store == "postgres":
            dsn: str = request.getfixturevalue("postgres_dsn")
            return f"{dsn}{'&' if '?' in dsn else '?'}schema={own}"
        return f"sqlite:///{tmp_path / own}.db"

    return make


def shop(url: str, done: Done) -> tuple[App, Any, Any]:
    app = App(url)

    @app.once(key="charge:{order}")
    def charge(order: int) -> str:
        done.append(("charge", order))
        if order == 13:
            raise TimeoutError("no answer")
        return f"receipt {order}"

    @app.step(repeat="never")
    def pack(order: int) -> str:
        done.append(("pack", order))
        return f"parcel {order}" * (10_000 if order == 2 else 1)  # one is too large for the record

    @app.flow(key="order:{order}")
    def sync(order: int) -> str:
        parcel = pack(order)
        if order == 3:
            app.wait_for("paid", timeout="7d")
        return parcel

    return app, charge, sync


def work(charge: Any, sync: Any) -> list[Any]:
    results = [charge(order) for order in (1, 2)] + [sync(order) for order in (1, 2)]
    with pytest.raises(NeedsReview):
        charge(13)
    with pytest.raises(Waiting):
        sync(3)
    return results


@pytest.fixture
def filled(place: Callable[[str], str]) -> Iterator[tuple[str, Done, list[Any]]]:
    done: Done = []
    url = place("sqlite:source")
    app, charge, sync = shop(url, done)
    results = work(charge, sync)
    app.close()
    yield url, done, results


def copied(source: str, target: str, **options: Any) -> copying.CopyReport:
    with closing(open_bulk(source)) as one, closing(open_bulk(target, create=True)) as other:
        return copy_ledger(one, other, **options)


@pytest.mark.parametrize("store", STORES)
def test_nothing_is_done_again_on_the_copy(filled: Any, place: Callable[[str], str], store: str) -> None:
    url, done, results = filled
    target = place(f"{store}:target")
    report = copied(url, target)
    before = list(done)
    app, charge, sync = shop(target, done)
    with app:
        assert work(charge, sync) == results
        assert done == before
        app.deliver_to(flow="sync", key="order:3", name="paid", payload={})
        assert sync(3) == "parcel 3"
        assert charge(4) == "receipt 4"
        assert done == [*before, ("charge", 4)]
    assert report.records["run"] == 3
    assert report.records["claim"] == 3


@pytest.mark.parametrize("store", STORES)
def test_numbers_go_on_behind_those_of_the_copy(filled: Any, place: Callable[[str], str], store: str) -> None:
    url, _, _ = filled
    with closing(open_bulk(url)) as source:
        record = next(source.rows(size=100))[0][1]
        source.load([(99_999, record_with(record, version="9000000000000000"))], None)
    target = place(f"{store}:target")
    copied(url, target)
    app, charge, _ = shop(target, [])
    with app:
        charge(5)
        found = app.store.read(address_of("default", "charge", "charge:5")).block().record
        fence = found.fence if found else 0
    assert fence > 9_000_000_000_000_000


def record_with(record: Any, **changes: Any) -> Any:
    from msgspec import structs

    at = structs.replace(record.at, space="default/charge/other")
    return structs.replace(record, at=at, **changes)


@pytest.mark.parametrize("store", STORES)
def test_a_copy_that_was_broken_off_goes_on(
    filled: Any, place: Callable[[str], str], store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, _, _ = filled
    target, pages = place(f"{store}:target"), []
    monkeypatch.setattr(copying, "PAGE", 2)

    def stop(count: int, total: int) -> None:
        pages.append(count)
        if len(pages) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copied(url, target, progress=stop)
    with pytest.raises(SchemaMismatch, match="has not ended"):
        open_store(target)  # half a ledger would repeat what it lacks
    seen: list[int] = []
    report = copied(url, target, progress=lambda count, total: seen.append(count))
    assert report.resumed
    assert seen[0] == 6  # behind the four that were there
    with closing(open_bulk(url)) as source, closing(open_bulk(target)) as other:
        assert source.count() == other.count() == report.total


def test_a_source_in_use_is_refused_and_a_backup_of_it_is_not(filled: Any, place: Callable[[str], str]) -> None:
    url, done, _ = filled
    app, _, _ = shop(url, done)
    with app, app.claim("ship", "order:9"):
        with pytest.raises(StoreUnsafe, match="in use: leases are held in default/ship"):
            copied(url, place("sqlite:target"))
        report = copied(url, place("sqlite:backup"), in_use=True)
    assert report.total > 5


def test_a_source_that_changes_meanwhile_is_noticed(
    filled: Any, place: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, done, _ = filled
    monkeypatch.setattr(copying, "PAGE", 2)
    app, charge, _ = shop(url, done)
    target = place("sqlite:target")
    with app:
        with pytest.raises(StoreUnsafe, match="changed while it was copied"):
            copied(url, target, progress=lambda count, total: charge(100) if count == 2 else None)
        with pytest.raises(SchemaMismatch):
            open_store(target)
    assert copied(url, target).total > 5  # and again, now that nothing uses it
    open_store(target).close()


def test_a_target_that_holds_something_is_refused(filled: Any, place: Callable[[str], str]) -> None:
    url, _, _ = filled
    other = place("sqlite:other")
    app, charge, _ = shop(other, [])
    charge(1)
    app.close()
    with pytest.raises(Misuse, match="not empty"):
        copied(url, other)
    with pytest.raises(Misuse, match="same ledger"):
        copied(url, url)


def test_a_ledger_that_was_moved_is_refused_until_it_is_unlocked(filled: Any, place: Callable[[str], str]) -> None:
    url, _, _ = filled
    target = place("sqlite:target")
    copied(url, target, seal=True)
    with pytest.raises(SchemaMismatch, match="moved to another place"):
        open_store(url)
    open_store(target).close()
    with closing(open_bulk(url)) as source:
        assert unlock_ledger(source)
        assert not unlock_ledger(source)
    open_store(url).close()


@pytest.mark.parametrize("store", STORES)
def test_a_process_that_has_a_moved_ledger_open_does_nothing_more(place: Callable[[str], str], store: str) -> None:
    """It looks at the lock when it opens the ledger, which was before: a server that nobody stopped."""
    url, target, done = place(f"{store}:source"), place("sqlite:target"), []
    app, charge, sync = shop(url, done)
    with app:
        charge(1)
        copied(url, target, seal=True)
        for call in (charge, sync):
            with pytest.raises(SchemaMismatch, match=r"moved to another place.* twiceproof ledger unlock"):
                call(4)
        with pytest.raises(SchemaMismatch):
            sync.start(5)
        with suppress(SchemaMismatch):  # a store that reads first still knows the answer
            assert charge(1) == "receipt 1"
        assert done == [("charge", 1)]
        with closing(open_bulk(url)) as source:
            assert unlock_ledger(source)
        assert charge(4) == "receipt 4"


@pytest.mark.parametrize("store", STORES)
def test_nothing_is_written_to_a_source_after_it_was_compared(
    place: Callable[[str], str], store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, target, done = place(f"{store}:source"), place("sqlite:target"), []
    app, charge, _ = shop(url, done)
    refused: list[Exception] = []
    verify = copying._verify

    def charging(*given: Any) -> None:
        verify(*given)
        try:
            charge(5)
        except SchemaMismatch as error:
            refused.append(error)

    monkeypatch.setattr(copying, "_verify", charging)
    with app:
        charge(1)
        copied(url, target, seal=True)
    assert len(refused) == 1 and done == [("charge", 1)]


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("fails", [False, True])
def test_a_server_on_the_target_does_nothing_until_the_copy_is_complete(
    filled: Any, place: Callable[[str], str], store: str, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its records would be mixed with the copy, and be dropped with a copy that fails."""
    url, done, _ = filled
    target, verify = place(f"{store}:target"), copying._verify
    app, charge, _ = shop(target, done)
    before, refused = list(done), []

    def meddling(expected: Any, *given: Any) -> None:
        with pytest.raises(SchemaMismatch, match="a copy into it has not ended"):
            charge(5)
        refused.append(1)
        verify(copying._Summary() if fails else expected, *given)

    monkeypatch.setattr(copying, "_verify", meddling)
    with app:
        if fails:
            with pytest.raises(StoreUnsafe, match="was dropped"):
                copied(url, target)
            with pytest.raises(SchemaMismatch):
                charge(1)
        else:
            copied(url, target)
            assert charge(1) == "receipt 1" and charge(4) == "receipt 4"
    assert refused and done == [*before, *([] if fails else [("charge", 4)])]


def test_a_source_whose_copy_fails_can_be_used(
    filled: Any, place: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, done, _ = filled

    def fail(*_: Any) -> None:
        raise StoreUnsafe("the target is gone", findings=[])

    monkeypatch.setattr(copying, "_verify", fail)
    with pytest.raises(StoreUnsafe, match="gone"):
        copied(url, place("sqlite:target"), seal=True)
    app, charge, _ = shop(url, done)
    with app:
        assert charge(5) == "receipt 5"


def test_a_target_whose_unlocking_gets_no_answer_leaves_the_source_locked(
    filled: Any, place: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target may be in use already."""
    url, target, unlock = filled[0], place("sqlite:target"), SqliteBulk.set_lock

    def lost(self: SqliteBulk, lock: Any) -> None:
        unlock(self, lock)
        if lock is None:
            raise StoreUnavailable("no answer")

    monkeypatch.setattr(SqliteBulk, "set_lock", lost)
    with pytest.raises(StoreUnavailable):
        copied(url, target, seal=True)
    monkeypatch.undo()
    with pytest.raises(SchemaMismatch, match="moved"):
        open_store(url)
    open_store(target).close()


def test_a_copy_under_way_cannot_be_unlocked(filled: Any, place: Callable[[str], str]) -> None:
    url, _, _ = filled
    target = place("sqlite:target")

    def stop(count: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copied(url, target, progress=stop)
    with closing(open_bulk(target)) as half, pytest.raises(Misuse, match="has not ended"):
        unlock_ledger(half)
    with pytest.raises(Misuse, match="another ledger"):
        copied(place("sqlite:third-" + _new(place)), target)


def _new(place: Callable[[str], str]) -> str:
    shop(place("sqlite:third-x"), [])[0].close()
    return "x"


def test_sealed_bodies_are_copied_as_they_are(place: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWICEPROOF_KEYS", "k1:" + "A" * 43 + "=")
    done: Done = []
    app, charge, _ = shop(place("sqlite:source"), done)
    charge(1)
    app.close()
    copied(place("sqlite:source"), place("sqlite:target"))
    with closing(open_bulk(place("sqlite:target"))) as target:
        assert b"receipt 1" not in b"".join(record.body.encode() for page in target.rows(size=9) for _, record in page)
    again, charge, _ = shop(place("sqlite:target"), done)
    with again:
        assert charge(1) == "receipt 1"
    assert done == [("charge", 1)]


def test_other_stores_are_refused() -> None:
    with pytest.raises(Misuse, match="sqlite:///FILE and postgresql"):
        open_bulk("redis://localhost")


def test_both_bulks_have_the_seam() -> None:
    from twiceproof.stores.postgres.bulk import PostgresBulk
    from twiceproof.stores.sqlite.bulk import SqliteBulk

    wanted = {name for name in vars(LedgerBulk) if not name.startswith("_")} - {"identity"}
    assert all(wanted <= set(vars(bulk)) for bulk in (SqliteBulk, PostgresBulk))
