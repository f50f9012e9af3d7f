"""`twiceproof keys`: make one, count rows per key, seal anew."""

from __future__ import annotations

import pytest

from twiceproof import App
from twiceproof.claims.claim import address_of
from twiceproof.flows.history.key_rotation import keys_in_use
from twiceproof.operations import block
from twiceproof.records import Address, Insert, Replace
from twiceproof.server.tokens import find_token, hash_of
from twiceproof.stores.encryption import as_keyring
from twiceproof.stores.open import open_store


@pytest.fixture
def key(run, monkeypatch):
    """Made by the command, and put where it belongs."""

    def make(*older):
        made = run("encryption", "new-key").stdout.strip()
        monkeypatch.setenv("TWICEPROOF_KEYS", " ".join((made, *older)))
        return made

    return make


def charge(ledger, n):
    with App(ledger.url) as app:
        app.once(key="order:{n}", name="charge")(lambda n: f"receipt {n}")(n)


def test_a_key_that_is_made_can_be_used(run):
    first, second = (run("encryption", "new-key").stdout.strip() for _ in range(2))
    assert first != second
    assert as_keyring(f"{first} {second}").ids == (first.partition(":")[0], second.partition(":")[0])


def test_rotation_from_plain_by_way_of_two_keys(ledger, run, run_json, key):
    charge(ledger, 1)
    assert run_json("encryption", "status") == {"keys": [{"key_id": "", "rows": 1, "status": "accepted"}]}
    old = key()
    charge(ledger, 2)
    assert run_json("encryption", "rotate")["reencrypted"] == 1
    new = key(old)
    charge(ledger, 3)
    here = {row["status"]: row["rows"] for row in run_json("encryption", "status")["keys"]}
    assert here == {"current": 1, "decrypts": 2}
    assert "2 rows re-encrypted; 1 already had the current key." in run("encryption", "rotate").stdout
    key_here = {row["status"]: row["rows"] for row in run_json("encryption", "status")["keys"]}
    assert key_here == {"current": 3, "decrypts": 0}
    assert new.partition(":")[0] in run("encryption", "status").stdout


def test_a_missing_key_is_shown_and_ends_with_1(ledger, run, run_json, key):
    key()
    charge(ledger, 1)
    key()
    assert [row["status"] for row in run_json("encryption", "status", code=1)["keys"]] == ["current", "missing"]
    assert "missing" in run("encryption", "status", code=1).stdout


def test_plain_rows_are_shown_as_refused_where_only_sealed_ones_are_believed(ledger, run, run_json, key, monkeypatch):
    charge(ledger, 1)
    keys = key()
    monkeypatch.setenv("TWICEPROOF_KEYS", f"{keys} sealed-only")
    assert [row["status"] for row in run_json("encryption", "status", code=1)["keys"]] == ["current", "refused"]
    assert "put it back" in run("encryption", "rotate", code=3).stderr
    monkeypatch.setenv("TWICEPROOF_KEYS", keys)
    run("encryption", "rotate")
    monkeypatch.setenv("TWICEPROOF_KEYS", f"{keys} sealed-only")
    assert [(row["status"], row["rows"]) for row in run_json("encryption", "status")["keys"]] == [("current", 1)]


def test_a_token_is_sealed_and_valid_where_only_sealed_rows_are_believed(ledger, run, run_json, key, monkeypatch):
    made = key()
    monkeypatch.setenv("TWICEPROOF_KEYS", f"{made} sealed-only")
    token = run_json("tokens", "create", "ops", "--scope", "read")
    assert [name for name, rows in keys_in_use(open_store(ledger.url)).items() if rows] == [made.partition(":")[0]]
    with App(ledger.url, keys=f"{made} sealed-only") as app:
        assert block(find_token(app.store, hash_of(token["token"]))).name == "ops"
    assert run_json("tokens", "revoke", "ops")["state"] == "revoked"


def test_a_planted_row_keeps_no_token_from_being_revoked_and_the_doctor_refuses_it(
    ledger, run, run_json, key, monkeypatch
):
    monkeypatch.setenv("TWICEPROOF_KEYS", f"{key()} sealed-only")
    run("tokens", "create", "ops", "--scope", "read")
    for order in (1, 2):
        charge(ledger, order)
    monkeypatch.setattr("twiceproof.stores.sqlite.doctor.mount_kind", lambda path: "ext4")
    run("doctor")
    plain = open_store(ledger.url)
    plain.write(Insert(Address("~tokens", "token", "0" * 64), '{"id": "tok_0", "scopes": ["admin"]}', "live")).block()
    there = plain.read(address_of("default", "charge", "order:1")).block().record
    plain.write(Replace(there.at, "{}", there.state, version=there.version)).block()
    plain.close()
    assert [row["name"] for row in run_json("tokens", "list")["tokens"]] == ["ops"]
    assert run_json("tokens", "revoke", "ops")["state"] == "revoked"
    assert [row["key"] for row in run_json("claims", "list", "--state", "all")["claims"]] == ["order:2"]
    assert "not sealed" in run("doctor", code=2).stdout


def test_what_is_sealed_is_shown_to_who_has_the_key_and_told_to_who_has_not(ledger, run, key, monkeypatch):
    key()
    charge(ledger, 1)
    assert "receipt 1" in run("claims", "show", "charge", "order:1").stdout
    monkeypatch.delenv("TWICEPROOF_KEYS")
    refused = run("claims", "show", "charge", "order:1", code=3)
    assert "set TWICEPROOF_KEYS" in refused.stderr + refused.stdout


def test_keys_are_never_printed(ledger, run, key):
    made = key()
    charge(ledger, 1)
    said = "".join(
        run(*words).output for words in (["encryption", "status"], ["encryption", "rotate"], ["claims", "list"])
    )
    assert made.partition(":")[2] not in said


def test_a_key_is_also_made_as_a_document(run_json):
    made = run_json("encryption", "new-key")
    assert as_keyring(made["key"]).ids == (made["key"].partition(":")[0],)


@pytest.mark.parametrize("left", ["", "another"], ids=["no key", "another key"])
def test_the_doctor_refuses_a_ledger_that_cannot_be_opened_here(ledger, run, run_json, key, monkeypatch, left):
    """Every worker started beside it would meet CannotOpen."""
    key()
    charge(ledger, 1)
    monkeypatch.setattr("twiceproof.stores.sqlite.doctor.mount_kind", lambda path: "ext4")
    assert run("doctor").exit_code == 0
    monkeypatch.setenv("TWICEPROOF_KEYS", run("encryption", "new-key").stdout.strip() if left else "")
    report = run_json("doctor", code=2)
    assert [finding["name"] for finding in report["findings"] if finding["level"] == "refuse"] == ["sealing"]
