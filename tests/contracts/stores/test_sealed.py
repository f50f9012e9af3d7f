"""Sealing: what is stored cannot be read, moved or changed without it being noticed, and keys can be rotated."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twiceproof import App, CannotOpen, Misuse
from twiceproof.flows.history.key_rotation import rotate
from twiceproof.operations import block
from twiceproof.prove.clocks import ManualClock
from twiceproof.records import Address, Batch, Conflict, Insert, Replace, Written
from twiceproof.server.tokens import Scope, create_token, find_token, hash_of
from twiceproof.stores.encryption import EncryptedEngine, Keyring, as_keyring, key_id_of
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.memory import MemoryEngine
from twiceproof.stores.open import open_store

AT = Address("default/charge/order:1", "claim", "self")
NEW, OLD = {"new": b"n" * 32}, {"old": b"o" * 32}
TEXT = "new:" + "bm5u" * 10 + "bm4="  # 32 times n


# -- the keyring ---------------------------------------------------------------------------------


@given(st.text(), st.text(min_size=1, max_size=20))
def test_what_was_sealed_opens_in_its_own_row(body: str, key: str) -> None:
    ring, at = Keyring(NEW), Address("s", "claim", key.replace("\0", "x"))
    try:
        body.encode()
    except UnicodeEncodeError:
        return  # a store refuses lone surrogates before they get here
    sealed = ring.seal(at, body)
    assert ring.open(at, sealed) == body
    assert sealed.isascii()
    assert key_id_of(sealed) == "new"


MOVES = [
    Address("acme/charge/order:1", "claim", "self"),
    Address("default/charge/order:2", "claim", "self"),
    Address("default/charge/order:1", "step", "self"),
    Address("default/charge/order:1", "claim", "other"),
    Address("default/charge/order:1c", "laim", "self"),
]


def opens_elsewhere(ring: Keyring) -> list[Address]:
    sealed = ring.seal(AT, '{"a":1}')
    return [at for at in MOVES if _opens(ring, at, sealed)]


def _opens(ring: Keyring, at: Address, sealed: str) -> bool:
    try:
        ring.open(at, sealed)
    except CannotOpen:
        return False
    return True


def repeated_nonces(ring: Keyring) -> bool:
    seals = [ring.seal(AT, "the same") for _ in range(1_000)]
    return len(set(seals)) < len(seals)


def test_a_row_moved_to_another_place_does_not_open() -> None:
    assert opens_elsewhere(Keyring(NEW)) == []


def test_no_nonce_is_used_twice() -> None:
    assert not repeated_nonces(Keyring(NEW))


class Unbound(Keyring):
    """Broken on purpose: nothing ties a body to its row."""

    def seal(self, at: Address, body: str) -> str:
        return super().seal(AT, body)

    def open(self, at: Address, body: str) -> str:
        return super().open(AT, body)


def test_a_keyring_without_associated_data_is_caught() -> None:
    assert opens_elsewhere(Unbound(NEW)) == MOVES


@pytest.mark.parametrize("period", [1, 7, 999])
def test_a_keyring_that_uses_nonces_again_is_caught(period: int) -> None:
    numbers = itertools.cycle(range(period))
    assert repeated_nonces(Keyring(NEW, entropy=lambda size: next(numbers).to_bytes(size, "big")))


@pytest.mark.parametrize("place", range(0, 60, 3))
def test_a_changed_letter_does_not_open(place: int) -> None:
    ring = Keyring(NEW)
    sealed = ring.seal(AT, '{"a":1}')
    start = len("sealed:1:new:")
    at = start + place % (len(sealed) - start)
    other = "A" if sealed[at] != "A" else "B"
    with pytest.raises(CannotOpen, match="changed, or moved"):
        ring.open(AT, sealed[:at] + other + sealed[at + 1 :])


@pytest.mark.parametrize("cut", [1, 5, 20, 40])
def test_a_body_cut_short_does_not_open(cut: int) -> None:
    ring = Keyring(NEW)
    with pytest.raises(CannotOpen):
        ring.open(AT, ring.seal(AT, "{}")[:-cut])


def test_a_missing_key_is_named() -> None:
    sealed = Keyring(OLD).seal(AT, "{}")
    with pytest.raises(CannotOpen, match=r"sealed with the key 'old', which is not here; put it into TWICEPROOF_KEYS"):
        Keyring(NEW).open(AT, sealed)
    assert Keyring({**NEW, **OLD}).open(AT, sealed) == "{}"


def test_the_first_key_seals_and_all_open() -> None:
    ring = Keyring({**NEW, **OLD})
    assert key_id_of(ring.seal(AT, "{}")) == "new"
    assert ring.open(AT, '{"plain": true}') == '{"plain": true}'


@pytest.mark.parametrize(
    "keys",
    [
        "nonsense",
        "a:b",
        "a:",
        ":QUFB",
        "a b",
        f"{TEXT},{TEXT}",
        "k:" + "QUFB" * 3,
        "k k:" + "QUFB" * 8,
        "é:" + "QUFB" * 8,
    ],
)
def test_keys_that_cannot_be_used_are_refused_and_not_repeated(keys: str) -> None:
    with pytest.raises(Misuse, match="Key number") as refused:
        as_keyring(keys)
    assert "QUFB" not in str(refused.value)
    assert "bm5u" not in str(refused.value)


def test_no_keys_are_no_keyring_and_a_repr_shows_ids_only() -> None:
    assert as_keyring("") is as_keyring("  ") is as_keyring(None) is None
    ring = as_keyring(f"{TEXT} old:{'b' * 43}=")
    assert ring is not None
    assert (repr(ring), ring.current) == ("Keyring(new, old)", "new")
    with pytest.raises(Misuse):
        Keyring({})


def test_settings_do_not_show_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWICEPROOF_KEYS", TEXT)
    with App("memory://") as app:
        assert "bm5u" not in repr(app.settings)


# -- the engine ----------------------------------------------------------------------------------


def engine(keys: dict[str, bytes], inner: Any) -> EncryptedEngine:
    return EncryptedEngine(inner, Keyring(keys))


def test_the_engine_below_sees_no_plain_body() -> None:
    inner = MemoryEngine()
    store = GroupedStore(engine(NEW, inner))
    store.write(Insert(AT, "secret", "held", draw=True)).block()
    store.write(Replace(AT, "secret too", "done", fence=1)).block()
    store.write(Replace(AT, None, "done", fence=1)).block()
    (raw,) = inner.scan("claim", None, None, None, 10).records
    assert "secret" not in raw.body
    assert store.read(AT).block().record.body == "secret too"  # type: ignore[union-attr]
    assert store.scan("claim").block().records[0].body == "secret too"
    conflict = store.write(Insert(AT, "x")).block()
    assert isinstance(conflict, Conflict)
    assert conflict.found is not None
    assert conflict.found.body == "secret too"


def test_one_row_that_does_not_open_harms_no_neighbour(caplog: Any) -> None:
    inner = MemoryEngine()
    bad, good = AT, Address("default/charge/order:2", "claim", "self")
    engine(OLD, inner).commit([Batch([Insert(bad, "b", queue="q", due_in=0.0)], "n1")])
    store = engine(NEW, inner)
    answers = store.commit(
        [
            Batch([Insert(bad, "x")], "n2"),
            Batch([Insert(good, "g", queue="q", due_in=0.0)], "n3"),
        ]
    )
    assert isinstance(answers[0], CannotOpen)
    assert isinstance(answers[1], Written)
    assert [record.at for record in store.due("claim", ["q"], 10, 5.0).records] == [good]
    assert "left lying" in caplog.text
    with pytest.raises(CannotOpen):
        store.fetch([bad])
    with pytest.raises(CannotOpen):
        store.scan("claim", None, None, None, 10)


def test_a_list_goes_on_without_a_bad_row_and_a_ledger_does_not(caplog: Any) -> None:
    """From a run's steps nothing may be missing, or what was done would be done again."""
    inner = MemoryEngine()
    store = engine(NEW, inner)
    spaces = ("default/charge/order:1", "~tokens")
    for space in spaces:
        for key in ("bad", "good"):
            store.commit([Batch([Insert(Address(space, "step", key), "b")], f"{space} {key}")])
        moved = inner.fetch([Address(space, "step", "good")])[0].record
        there = inner.fetch([Address(space, "step", "bad")])[0].record
        inner.commit([Batch([Replace(there.at, moved.body, version=there.version)], f"{space} moved")])
    found = store.scan("step", None, None, None, 10).records
    assert [(one.at.space, one.at.key) for one in found] == [(space, "good") for space in spaces]
    assert [one.at.key for one in store.scan("step", "~tokens", None, None, 10).records] == ["good"]
    page, whole = (one.scan("step", None, None, None, 10, True) for one in (store, inner))
    own = {record.at: cursor for record, cursor in zip(whole.records, whole.cursors, strict=True)}
    assert len(page.records) == 2 and list(page.cursors) == [own[one.at] for one in page.records]
    assert "left out: The step 'bad' of '~tokens' does not open" in caplog.text
    with pytest.raises(CannotOpen):
        store.scan("step", "default/charge/order:1", None, None, 10)
    with pytest.raises(CannotOpen):  # nothing of it opens: that is not an empty list
        store.scan("step", "~tokens", None, None, 1)


def test_a_database_holds_nothing_readable_of_what_passed_through(tmp_path: Path) -> None:
    from twiceproof import Happened, check

    app = App(f"sqlite:///{tmp_path}/shop.db", keys=TEXT)

    @app.step(repeat=check(lambda order: Happened("x")))
    def bill(order: dict[str, Any]) -> dict[str, str]:
        return {"invoice": "canary-result-77"}

    @app.transaction
    def book(connection: Any, order: dict[str, Any]) -> str:
        return "canary-joined-77"

    @app.flow(key="order:{order[id]}")
    def sync(order: dict[str, Any]) -> Any:
        big = {"big": "canary-large-77" * 10_000}
        return [bill(order), book(order), big]

    for _ in range(2):
        assert sync({"id": 1, "card": "canary-input-77"})[1] == "canary-joined-77"
    files = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    app.close()
    files += b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"canary" not in files
    assert b"order:1" in files, "keys are in the clear: they are what records are found by"


def test_rows_written_before_there_were_keys_are_read(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"

    def charge(n: int) -> str:
        return f"receipt {n} {os.urandom(4).hex()}"

    with App(url) as plain:
        first = plain.once(key="order:{n}")(charge)(1)
    with App(url, keys=TEXT) as app:
        assert app.once(key="order:{n}")(charge)(1) == first


def test_a_planted_row_that_is_not_sealed_is_believed_only_until_sealed_only_is_said(tmp_path: Path) -> None:
    """Whoever can write to the database, and has no key, says that it was done, and lets themselves in."""
    url = f"sqlite:///{tmp_path}/shop.db"

    def charge(n: int) -> str:
        return "charged"

    with App(url, keys=TEXT) as app:
        assert app.once(key="order:{n}")(charge)(1) == "charged"
    with App(url) as thief:
        thief.once(key="order:{n}", name="charge")(lambda n: "never charged")(2)
        token, _ = block(create_token(thief.store, "thief", "default", [Scope.ADMIN]))
    with App(url, keys=TEXT) as app:
        assert app.once(key="order:{n}")(charge)(2) == "never charged"
        assert block(find_token(app.store, hash_of(token))) is not None
    with App(url, keys=f"{TEXT} sealed-only") as app:
        assert app.once(key="order:{n}")(charge)(1) == app.once(key="order:{n}")(charge)(3) == "charged"
        with pytest.raises(CannotOpen, match="is not sealed, and TWICEPROOF_KEYS says sealed-only"):
            app.once(key="order:{n}")(charge)(2)
        with pytest.raises(CannotOpen):
            block(find_token(app.store, hash_of(token)))


def test_a_ledger_from_before_there_were_keys_is_moved_over(tmp_path: Path) -> None:
    url, only = f"sqlite:///{tmp_path}/shop.db", f"sealed-only,{TEXT}"

    def charge(n: int) -> str:
        return f"receipt {os.urandom(4).hex()}"

    with App(url) as plain:
        first = plain.once(key="order:{n}")(charge)(1)
    with App(url, keys=only) as app, pytest.raises(CannotOpen, match="run twiceproof encryption rotate"):
        app.once(key="order:{n}")(charge)(1)
    store = open_store(url, keys=TEXT)
    assert rotate(store).left == 0
    store.close()
    with App(url, keys=only) as app:
        assert app.once(key="order:{n}")(charge)(1) == first


def test_sealed_only_without_a_key_would_refuse_everything_and_is_refused_itself() -> None:
    with pytest.raises(Misuse, match="sealed-only needs a key"):
        as_keyring("sealed-only")
    assert as_keyring(f"{TEXT} sealed-only").plain is False  # type: ignore[union-attr]
    assert as_keyring(TEXT).plain is True  # type: ignore[union-attr]


def test_without_its_keys_a_sealed_ledger_says_so(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"

    def charge(n: int) -> str:
        return "receipt"

    with App(url, keys=TEXT) as app:
        app.once(key="order:{n}")(charge)(1)
    with App(url) as plain, pytest.raises(CannotOpen, match="set TWICEPROOF_KEYS"):
        plain.once(key="order:{n}")(charge)(1)


def test_the_doctor_says_that_values_are_sealed(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/l.db", keys=TEXT)
    assert [f.found for f in store.examine() if f.name == "sealing"] == ["stored values are sealed with the key 'new'"]
    store.close()


def test_a_clock_of_the_tests_is_passed_on() -> None:
    clock = ManualClock()
    assert open_store("memory://", clock=clock, keys=TEXT)._clock is clock
