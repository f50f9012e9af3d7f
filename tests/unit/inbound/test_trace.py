"""`twiceproof trace`: one chain over two ledgers, from whichever of its keys one begins."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.unit.inbound.post import SECRET, Post, posted
from tests.unit.inbound.queues.post_office import PostOffice, runs
from twiceproof import App
from twiceproof.cli.main import cli
from twiceproof.flows.workers.log import RunFilter


class TwoApps:
    """A shop takes webhooks and sends messages; billing consumes them. Each has a ledger of its own."""

    def __init__(self, folder: Path) -> None:
        self.shop_url = f"sqlite:///{folder / 'shop.db'}"
        self.billing_url = f"sqlite:///{folder / 'billing.db'}"
        self.shop, self.billing = App(self.shop_url), App(self.billing_url)
        self.office = PostOffice(self.billing)
        self.calls: list[str] = []
        self._declare_shop()
        self._declare_billing()

    def _declare_shop(self) -> None:
        app = self.shop
        app.broker("main", self.office.broker)
        app.route("orders.paid", to="main", place="orders")
        app.route("orders.sent", to="main", place="mails")

        @app.step(repeat="never", external="billing:{result}")
        def charge(order: int) -> str:
            return f"ch_{order}"

        @app.flow(key="order:{event[order]}")
        def sync_order(event: dict[str, Any]) -> None:
            charge(event["order"])
            app.send("orders.paid", {"id": event["order"]}, key=f"order:{event['order']}:paid")
            app.send("orders.sent", {"id": event["order"]})

        app.webhook(Post(), secret=SECRET, start=sync_order)

    def _declare_billing(self) -> None:
        app = self.billing

        @app.step(repeat="never")
        def book(order: int) -> None:
            self.calls.append(app.correlation())
            logging.getLogger("shop").warning("booked %s", order)

        @app.flow(key="booking:{body[id]}")
        def book_order(body: dict[str, Any]) -> None:
            book(body["id"])

        app.consume("main/orders", start=book_order)

        @app.consume("main/mails", key="mail:{body[id]}", inline=True)
        def mail(body: dict[str, Any]) -> None:
            self.calls.append("mail")

    def play(self, order: int, event: str) -> None:
        assert self.shop.receive(*posted({"id": event, "order": order})).status == 200
        runs(self.shop)
        self.shop.relay().run(until_idle=True)
        for name in ("main/orders", "main/mails"):
            self.office.drain(self.office.reader(name))
        runs(self.billing)

    def close(self) -> None:
        self.office.close()
        self.shop.close()
        self.billing.close()


@pytest.fixture
def two(tmp_path: Path) -> Iterator[TwoApps]:
    made = TwoApps(tmp_path)
    yield made
    made.close()


def run(two: TwoApps, key: str, *more: str) -> Result:
    return CliRunner().invoke(cli, ["trace", key, "--store", two.shop_url, *more])


def links(two: TwoApps, key: str) -> list[dict[str, Any]]:
    done = run(two, key, "--also", two.billing_url, "--json")
    assert done.exit_code == 0, done.output
    shape = json.loads(done.stdout)
    assert list(shape) == ["key", "ledgers", "links"] and shape["ledgers"] == [two.shop_url, two.billing_url]
    found: list[dict[str, Any]] = shape["links"]
    return found


def told(found: list[dict[str, Any]]) -> list[tuple[int, str, str, int]]:
    return [(link["depth"], link["kind"], link["name"], link["ledger"]) for link in found]


WHOLE = [
    (0, "claim", "", 1),
    (1, "run", "sync_order/order:17", 1),
    (2, "effect", "charge", 1),
    (2, "message", "orders.paid to main", 1),
    (3, "run", "book_order/booking:17", 2),
    (4, "effect", "book", 2),
    (2, "message", "orders.sent to main", 1),
    (3, "claim", "orders.sent", 2),
]


def test_the_chain_goes_from_the_event_to_the_consumers_effect(two: TwoApps) -> None:
    two.play(17, "evt_17")
    two.play(18, "evt_18")  # has a chain of its own
    found = links(two, "evt_17")
    assert told(found) == WHOLE
    assert found[0]["id"].endswith("/evt_17") and found[2]["external"] == "billing:ch_17"
    assert {link["state"] for link in found} == {"done", "sent"}


def test_every_key_of_the_chain_leads_to_its_event(two: TwoApps) -> None:
    two.play(17, "evt_17")
    two.play(18, "evt_18")
    whole = links(two, "evt_17")
    begins = [
        *("order:17", "sync_order/order:17", whole[1]["id"], whole[2]["id"], "billing:ch_17"),
        *("order:17:paid", "booking:17", whole[4]["id"], whole[5]["id"], "mail:17"),
    ]
    for key in begins:
        found = told(links(two, key))
        assert found[:2] == WHOLE[:2], key
        assert set(found) <= set(WHOLE), key


def test_a_message_leads_to_its_event_and_to_its_own_consumer(two: TwoApps) -> None:
    two.play(17, "evt_17")
    assert told(links(two, "order:17:paid")) == WHOLE[:6]


def test_one_correlation_id_reaches_the_consumers_call_its_logs_and_the_message(
    two: TwoApps, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.handler.addFilter(RunFilter())
    two.play(17, "evt_17")
    found = links(two, "evt_17")
    known = {link["correlation"] for link in found if link["correlation"]}
    assert known == {found[1]["id"]}
    assert two.calls == ["mail", *known]
    (line,) = [record for record in caplog.records if record.message == "booked 17"]
    assert line.correlation == found[1]["id"]  # type: ignore[attr-defined]
    shown = CliRunner().invoke(cli, ["messages", "show", "order:17:paid", "--store", two.shop_url, "--json"])
    assert json.loads(shown.stdout)["headers"]["correlation-id"] == found[1]["id"]
    assert {link["kind"] for link in links(two, found[1]["id"])} == {"claim", "run", "effect", "message"}


def test_as_text_with_one_ledger_and_with_two(two: TwoApps) -> None:
    two.play(17, "evt_17")
    alone = run(two, "evt_17").stdout.splitlines()
    assert [line.split()[0] for line in alone[:5]] == ["LINK", "claim", "run", "effect", "message"]
    assert alone[-1].startswith("Correlation id in logs and headers: run_") and "LEDGER" not in alone[0]
    both = run(two, "evt_17", "--also", two.billing_url).stdout
    assert "LEDGER" in both and f"Ledger 2: {two.billing_url}" in both and "book_order/booking:17" in both


def test_an_unknown_key_exits_with_1_and_names_the_next_move(two: TwoApps) -> None:
    two.play(17, "evt_17")
    done = run(two, "evt_99")
    assert done.exit_code == 1 and "--also URL" in done.output
    assert run(two, "evt_99", "--json").exit_code == 1


def test_another_tenants_chain_is_not_shown(two: TwoApps) -> None:
    two.play(17, "evt_17")
    assert run(two, "evt_17", "--tenant", "other").exit_code == 1


def test_a_redelivered_event_adds_no_link(two: TwoApps) -> None:
    two.play(17, "evt_17")
    two.play(17, "evt_17")
    assert told(links(two, "evt_17")) == WHOLE
