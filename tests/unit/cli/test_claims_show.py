"""`twiceproof claims show`."""

from __future__ import annotations

import json

import pytest
from msgspec import Raw

from twiceproof.claims.claim import LostHold
from twiceproof.claims.results import Packed
from twiceproof.claims.states import ClaimRequest, claim_for
from twiceproof.operations import block

MORE_KEYS = {
    "fingerprint",
    "fence",
    "reason",
    "result_kept",
    "result",
    "spill",
    "fault",
    "settled",
    "result_until",
    "kept_until",
}


@pytest.fixture(autouse=True)
def filled(ledger):
    ledger.fill()


def test_the_json_shape_is_exact(run_json, claim_keys):
    answer = run_json("claims", "show", "ship", "order:timeout")
    assert set(answer) == {"claim", "evidence", "next"}
    assert set(answer["claim"]) == claim_keys | MORE_KEYS
    assert set(answer["claim"]["fault"]) == {"type", "message", "retryable"}


def test_a_result_keeps_its_digits(run, run_json):
    assert run_json("claims", "show", "ship", "order:done")["claim"]["result"] == {"parcel": "P-done", "price": 1.1}
    run("claims", "settle", "ship", "order:gone", "--happened", "--result", "[1.10, 12345678901234567890123]")
    text = run("claims", "show", "ship", "order:gone", "--json").stdout
    assert "1.10" in text
    assert "12345678901234567890123" in text


def test_people_see_everything_and_the_next_move(run):
    text = run("claims", "show", "ship", "order:timeout").stdout
    for word in ("review", "TimeoutError: no answer", "run_", "fingerprint", "whether its work was done is unknown"):
        assert word in text
    for verdict in ("--happened", "--did-not-happen", "--abandon"):
        assert f"claims settle {verdict}" in text


def test_the_next_move_can_be_typed(run, run_json, ledger):
    import shlex

    move = run_json("claims", "show", "ship", "order:timeout")["next"][1]
    words = shlex.split(move)
    assert words[:3] == ["twiceproof", "--store", ledger.url]
    run(*words[3:])
    assert run_json("claims", "show", "ship", "order:timeout")["claim"]["state"] == "failed"


@pytest.mark.parametrize(
    ("key", "moves"), [("done", 0), ("closed", 0), ("bug", 1), ("live", 1), ("gone", 3), ("timeout", 3)]
)
def test_only_what_needs_a_person_has_a_next_move(run_json, key, moves):
    assert len(run_json("claims", "show", "ship", f"order:{key}")["next"]) == moves


def test_a_claim_that_is_not_there_is_a_negative_answer(run):
    assert "claims list" in run("claims", "show", "ship", "order:nobody", code=1).stderr


def test_a_key_that_begins_with_a_dash_follows_two(run, ledger):
    ledger.hold("", key="-17")
    assert "-17" in run("claims", "show", "ship", "--", "-17").stdout


def test_a_long_result_is_cut_for_people_and_whole_in_json(run, run_json, ledger):
    text = json.dumps("x" * 5_000)
    run("claims", "settle", "ship", "order:gone", "--happened", "--result", text)
    shown = run("claims", "show", "ship", "order:gone").stdout
    assert len(shown) < 3_500
    assert "--json prints all" in shown
    assert run_json("claims", "show", "ship", "order:gone")["claim"]["result"] == "x" * 5_000


def test_a_result_beside_the_claim_is_shown_too(run_json, ledger):
    large = ledger.app.once(key="k", name="large")(lambda: "y" * 100_000)
    large()
    claim = run_json("claims", "show", "large", "k")["claim"]
    assert claim["result"] == "y" * 100_000
    assert claim["spill"]["ref"].startswith("res://")


def test_the_result_null_is_told_from_no_result(run, run_json):
    run("claims", "settle", "ship", "order:gone", "--happened", "--result", "null")
    run("claims", "settle", "ship", "order:timeout", "--happened")
    with_null = run_json("claims", "show", "ship", "order:gone")["claim"]
    without = run_json("claims", "show", "ship", "order:timeout")["claim"]
    assert (with_null["result_kept"], with_null["result"]) == (True, None)
    assert (without["result_kept"], without["result"]) == (False, None)


def test_evidence_of_a_late_holder_is_shown(run, run_json, ledger):
    ledger.back = 1_000.0
    held = ledger.hold("late", owner="the-late-one")
    ledger.back = 0.0
    run("claims", "settle", "ship", "order:late", "--abandon")
    ask = ClaimRequest(at=held.at, operation="ship", key="order:late", owner="the-late-one", lease=60.0)
    lost = block(ledger.app.claims.complete(held, claim_for(ask, 1), Packed(inline=Raw(b'{"parcel":"P-late"}'))))
    assert isinstance(lost, LostHold)
    (piece,) = run_json("claims", "show", "ship", "order:late")["evidence"]
    assert set(piece) == {"owner", "fence", "seen_at", "result_kept", "result", "spill", "fault"}
    assert piece["result"] == {"parcel": "P-late"}
    text = run("claims", "show", "ship", "order:late").stdout
    assert "Evidence" in text
    assert "P-late" in text


def test_evidence_of_a_holder_whose_claim_was_released_is_shown(run, run_json, ledger):
    """That is where its error leads to: what it did outside is known nowhere else."""
    held = ledger.hold("freed", owner="the-late-one")
    run("claims", "release", "ship", "order:freed", "--force", "--yes")
    ask = ClaimRequest(at=held.at, operation="ship", key="order:freed", owner="the-late-one", lease=60.0)
    block(ledger.app.claims.complete(held, claim_for(ask, 1), Packed(inline=Raw(b'{"parcel":"P-late"}'))))
    answer = run_json("claims", "show", "ship", "order:freed")
    assert (answer["claim"], answer["evidence"][0]["result"], answer["next"]) == (None, {"parcel": "P-late"}, [])
    text = run("claims", "show", "ship", "order:freed").stdout
    assert "The claim was released" in text
    assert "P-late" in text


def test_a_released_claim_of_which_nobody_reported_anything_is_not_found(run, ledger):
    ledger.hold("freed")
    run("claims", "release", "ship", "order:freed", "--force", "--yes")
    assert "There is no such claim" in run("claims", "show", "ship", "order:freed", code=1).stderr


@pytest.mark.parametrize("order", ["queued", "sleep"])
def test_a_run_that_goes_on_later_is_not_shown_as_kept_until_then(run_json, shop, order):
    shop.fill()
    assert run_json("claims", "show", "buy", f"order:{order}")["claim"]["kept_until"] is None


def test_a_run_that_is_done_is_shown_with_the_time_until_which_it_is_kept(run_json, shop):
    shop.fill()
    claim = run_json("claims", "show", "buy", "order:done")["claim"]
    assert claim["kept_until"] == pytest.approx(claim["updated_at"] + 30 * 86_400)
