"""One thing, one key: a flow that declares its types is asked by it from Python, over HTTP and by a webhook."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import pytest
from msgspec import Raw, json

from tests.unit.flows.stage import Stage
from tests.unit.inbound.post import SECRET, Post, posted
from twiceproof import App
from twiceproof.claims.claim import claim_of
from twiceproof.operations import block
from twiceproof.server.routes.runs import Start, start_run


class Channel(Enum):
    WEB = "web"


@dataclass
class Order:
    id: str
    at: datetime
    total: Decimal
    day: date
    number: UUID
    channel: Channel = Channel.WEB


BERLIN = timezone(timedelta(hours=2))
ORDER = Order("17", datetime(2026, 3, 4, 14, tzinfo=BERLIN), Decimal("12.50"), date(2026, 3, 4), UUID(int=7))
SENT = {
    "id": "17",
    "at": "2026-03-04T14:00:00+02:00",
    "total": "12.50",
    "day": "2026-03-04",
    "number": str(UUID(int=7)),
    "seen_by": "a proxy",
}
FIELDS = ["at", "total", "day", "number", "channel"]


def over_http(app: App, flow: Any, body: Any) -> Any:
    return json.decode(block(start_run(flow.flow, Start(Raw(json.encode(body))))).body)


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("start", [lambda sync: sync(ORDER), lambda sync: sync.start(ORDER)], ids=["call", "start"])
def test_a_start_over_http_is_a_duplicate_of_the_call_with_the_same_values(
    stage: Stage, field: str, start: Any
) -> None:
    app = stage.process()

    @app.flow(key=f"shop:{{order.{field}}}", stable=["order"])
    def sync(order: Order) -> str:
        stage.do("sync")
        return order.at.isoformat()

    start(sync)
    heard = over_http(app, sync, SENT)
    assert (heard["started"], heard["key"]) == (False, sync.key(ORDER))
    app.worker().run(until_idle=True)
    assert stage.effects == {"sync": 1}
    assert sync(ORDER) == ORDER.at.isoformat()


@pytest.mark.parametrize("field", FIELDS)
def test_a_webhook_starts_the_run_that_a_call_finds(stage: Stage, field: str) -> None:
    app = stage.process()

    @app.flow(key=f"shop:{{order.{field}}}", stable=["order"])
    def sync(order: Order) -> str:
        stage.do("sync")
        return order.id

    app.webhook(Post(), secret=SECRET, start=sync)
    assert json.decode(app.receive(*posted(SENT)).body)["state"] == "new"
    app.worker().run(until_idle=True)
    assert sync(ORDER) == "17"
    assert stage.effects == {"sync": 1}


def test_what_was_sent_is_kept_as_it_was_sent(stage: Stage) -> None:
    """A later version of the flow may declare more of it."""
    app = stage.process()

    @app.flow(key="shop:{order.id}")
    def sync(order: Order) -> None: ...

    over_http(app, sync, SENT)
    work = json.decode(claim_of(stage.record("sync", "shop:17")).work)
    assert work["input"] == {"order": SENT}


@pytest.mark.parametrize(
    ("declared", "key", "sent", "expected"),
    [
        (Any, "shop:{order[at]}", SENT, "shop:2026-03-04T14:00:00+02:00"),
        (Order, "shop:{order[at]}", SENT, "shop:2026-03-04T14:00:00+02:00"),
        (Order, lambda order: f"shop:{order['total']}", SENT, "shop:12.50"),
        (str, "shop:{order}", "0012", "shop:0012"),
        (int, "shop:{order}", 12, "shop:12"),
        (float, "shop:{order}", 2, "shop:2"),
    ],
    ids=["undeclared", "by item", "a function of items", "text", "int", "an int for a float"],
)
def test_what_is_not_declared_or_asked_for_as_plain_data_stays_plain(
    stage: Stage, declared: Any, key: Any, sent: Any, expected: str
) -> None:
    app = stage.process()

    def sync(order: Any) -> None: ...

    sync.__annotations__ = {"order": declared, "return": None}
    flow = app.flow(key=key, stable=["order"])(sync)
    assert over_http(app, flow, sent)["key"] == expected


def test_the_same_instant_in_utc_has_one_text_in_a_key_however_it_is_given() -> None:
    """What a value's JSON text is, where it has but one."""
    app = App("memory://")

    @app.flow(key="shop:{at}", stable=["at"])
    def sync(at: Any) -> None: ...

    for value in (datetime(2026, 3, 4, 12, tzinfo=UTC), date(2026, 3, 4), UUID(int=7), Channel.WEB, 17, "0012", True):
        assert sync.key(value) == sync.key(json.decode(json.encode(value)))
    app.close()
