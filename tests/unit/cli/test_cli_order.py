"""What a person sees of a run that was dropped because a newer version was applied."""

from __future__ import annotations

import pytest

from twiceproof import Stale, by


def test_a_stale_run_is_done_and_says_why(ledger, run, run_json):
    @ledger.app.flow(key="{order}", name="sync", order=by(object="{order}", version="{v}"))
    def sync(order: str, v: int) -> None: ...

    sync("o1", 3)
    with pytest.raises(Stale):
        sync("o1", 2)
    shown = run("runs", "show", "sync/o1:2").stdout
    assert "stale: version 3 of o1 was let through before" in shown
    (row,) = [one for one in run_json("runs", "list", "--state", "done")["runs"] if one["key"] == "o1:2"]
    assert row["reason"].startswith("stale")
    result = run_json("runs", "show", "sync/o1:2")["result"]
    assert (result["stale"], result["version"], result["newest"]) == (True, "2", "3")
