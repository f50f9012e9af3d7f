"""On every store: a run is settled and goes on, is found by its ids, and is forgotten as a whole."""

from __future__ import annotations

import pytest

from twiceproof import NeedsReview
from twiceproof.claims.claim import address_of
from twiceproof.claims.retention import sweep
from twiceproof.operations import block
from twiceproof.records import kinds_beside_runs

DAY = 86_400.0


def declare(place, app):
    @app.step(repeat="safe")
    def reserve(order: int) -> str:
        place.do("reserve")
        return "A7"

    @app.step(external="bank:{result[id]}")
    def charge(order: int) -> dict[str, str]:
        place.do("charge")
        raise TimeoutError("no answer")

    @app.flow(key="order:{order}", name="buy", keep="1d")
    def buy(order: int) -> str:
        reserve(order)
        return charge(order)["id"]

    return buy


def test_a_run_is_settled_found_and_forgotten(place):
    app = place.app()
    try:
        buy = declare(place, app)
        with pytest.raises(NeedsReview):
            buy(1)
        assert [run.key for run in app.review(flow="buy")] == ["order:1"]
        assert app.settle_run("buy/order:1", "happened", by="ann", result={"id": "ch_1"}).state == "queued"
        assert buy(1) == "ch_1"
        assert place.effects() == ["reserve", "charge"]
        assert [link.key for link in app.ids("bank:ch_1")] == ["order:1"]
        place.advance(DAY + 1)
        assert block(sweep(app.store)).forgotten == 1
        space = address_of("default", "buy", "order:1").space
        for kind in ("run", *kinds_beside_runs()):
            assert list(app.store.scan(kind, space=space).block().records) == []
        assert app.ids("bank:ch_1") == []
    finally:
        app.close()
