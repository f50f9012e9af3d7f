"""A message that parks is reported once per target and quiet period, also if the relay that parked it died."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.outbox.stand_in import NO_ROUTE, StandInBroker
from twiceproof import App, Notice, Retry
from twiceproof.operations import block
from twiceproof.prove.clocks import ManualClock


def declared(app: App, told: list[Notice] | None) -> StandInBroker:
    broker = StandInBroker()
    app.broker("main", broker, retry=Retry(attempts=1))
    app.route("orders.*", to="main")
    if told is not None:
        app.notify(told.append, name="ops")
    return broker


def park(app: App, broker: StandInBroker, *keys: str, order: str | None = None) -> None:
    for key in keys:
        broker.always[key] = NO_ROUTE
        app.send("orders.paid", 1, key=key, order=order)
    app.relay().run(until_idle=True)


@pytest.mark.parametrize("order", [None, "order:17"])
def test_parked_messages_are_one_notice(order: str | None) -> None:
    told: list[Notice] = []
    with App("memory://") as app:
        broker = declared(app, told)
        park(app, broker, "a", *(() if order else ("b",)), order=order)
    (notice,) = told
    assert (notice.event, notice.type, notice.operation) == ("message", "message.parked", "main")
    assert notice.count == (1 if order else 2) and "no such queue" in notice.line
    assert notice.look == "twiceproof messages list --state parked --to main"


def test_a_message_that_is_published_after_a_refusal_is_no_notice() -> None:
    told: list[Notice] = []
    with App("memory://") as app:
        broker = declared(app, told)
        app.send("orders.paid", 1, key="a")
        app.relay().run(until_idle=True)
        assert broker.keys == ["a"]
    assert told == []


def test_one_that_was_resent_before_the_notice_is_not_reported() -> None:
    from twiceproof.outbox.queries import resend

    told: list[Notice] = []
    with App("memory://") as app:
        park(app, declared(app, told), "a")
        block(resend(app.store, "default", "a", by="ann"))
    assert told == []


def test_a_worker_that_starts_reports_what_a_killed_relay_had_parked(tmp_path: Path) -> None:
    told: list[Notice] = []
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    with App(url) as dying:
        park(dying, declared(dying, None), "a")
    with App(url) as app:
        declared(app, told)
        app.worker().run(until_idle=True)
    assert [notice.key for notice in told] == ["a"]


def test_messages_that_wait_for_long_are_one_notice() -> None:
    told: list[Notice] = []
    clock = ManualClock()
    with App("memory://", clock=clock) as app:
        broker = declared(app, told)
        broker.away = True
        for key in ("a", "b"):
            app.send("orders.paid", 1, key=key)
        app.send("orders.paid", 1, key="later", delay="1d")
        app.send("orders.paid", 1, key="ordered", order="o")
        look_for_what_needs_attention(app)
        clock.advance(14 * 60)
        look_for_what_needs_attention(app)
        assert told == []
        clock.advance(61)
        look_for_what_needs_attention(app)
        (notice,) = told
        assert (notice.event, notice.type, notice.operation, notice.count) == (
            "late-message",
            "message.late",
            "main",
            3,
        )
        assert notice.look == "twiceproof messages list --to main"
        clock.advance(3_600)
        look_for_what_needs_attention(app)  # it was said
        assert len(told) == 1


def look_for_what_needs_attention(app: App) -> None:
    """As a worker does now and then."""
    (incidents,) = app.incidents
    block(incidents.scan_store())
    incidents.flush()
