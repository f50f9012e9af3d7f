"""`twiceproof ledger`: copy, back up, restore, unlock."""

from __future__ import annotations

import pytest

from twiceproof import App
from twiceproof.errors import SchemaMismatch


def receipts(url):
    with App(url) as app:
        return app.once(key="order:{n}", name="ship", stable=("n",))(lambda n: "done again")("done")


def test_a_ledger_is_copied_and_its_source_locked(ledger, run, run_json, tmp_path):
    ledger.call("done")
    ledger.app.close()
    target = f"sqlite:///{tmp_path / 'target.db'}"
    shape = run_json("ledger", "copy", ledger.url, target)
    assert shape["records"]["claim"] == shape["total"] == 1
    assert not shape["resumed"]
    assert receipts(target) == {"parcel": "P-done", "price": 1.10}
    with pytest.raises(SchemaMismatch, match="ledger unlock"):
        App(ledger.url)
    assert run("ledger", "unlock").stdout == "The ledger can be used again.\n"
    assert run_json("ledger", "unlock") == {"unlocked": False}
    assert receipts(ledger.url) == {"parcel": "P-done", "price": 1.10}


def test_a_source_that_is_to_be_kept_is_not_locked(ledger, run, tmp_path):
    ledger.call("done")
    ledger.app.close()
    told = run("ledger", "copy", ledger.url, f"sqlite:///{tmp_path / 'target.db'}", "--keep-source").stdout
    assert "1 record copied" in told
    assert "locked" not in told
    assert receipts(ledger.url) == {"parcel": "P-done", "price": 1.10}


def test_a_ledger_in_use_is_backed_up_and_restored(ledger, run, run_json, tmp_path):
    ledger.call("done")
    ledger.hold("live")
    backup, restored = tmp_path / "backup.db", f"sqlite:///{tmp_path / 'restored.db'}"
    assert run_json("ledger", "backup", str(backup))["records"] == {"claim": 2}
    assert "2 records restored" in run("--store", restored, "ledger", "restore", str(backup)).stdout
    assert receipts(restored) == {"parcel": "P-done", "price": 1.10}
    ledger.app.close()


def test_what_would_be_overwritten_is_refused(ledger, run, tmp_path):
    ledger.call("done")
    backup = tmp_path / "backup.db"
    run("ledger", "backup", str(backup))
    assert "never replaces a file" in run("ledger", "backup", str(backup), code=2).stderr
    assert "not empty" in run("ledger", "restore", str(backup), code=2).stderr
    ledger.app.close()


def test_a_ledger_in_use_is_not_moved(ledger, run, tmp_path):
    ledger.hold("live")
    told = run("ledger", "copy", ledger.url, f"sqlite:///{tmp_path / 'target.db'}", code=2).stderr
    assert "Stop the workers" in told
    ledger.app.close()
