"""`twiceproof consumers`, `twiceproof brokers` and `twiceproof consume`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from twiceproof.brokers.base import BrokerFinding, OutgoingMessage
from twiceproof.brokers.memory import MemoryBroker
from twiceproof.cli.main import cli

APP = """
from twiceproof import App
app = App("sqlite:///shop.db")
{broker}

@app.flow(key="order:{{order[id]}}", keep="7d")
def sync(order):
    return order["id"]

app.consume("main/orders", start=sync, poison="reject")

@app.consume("main/mails", inline=True, key="mail:{{headers[ce-id]}}", largest={largest})
async def send(body):
    print("sent", body)
"""
BROKER = 'app.broker("main", "memory://cli-consumers")'


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TWICEPROOF_STORE", "sqlite:///shop.db")
    monkeypatch.setattr(sys, "path", list(sys.path))
    write_app()
    yield
    sys.modules.pop("queueshop", None)


def write_app(*, broker: str = BROKER, largest: int = 1_000) -> None:
    Path("queueshop.py").write_text(APP.format(broker=broker, largest=largest))
    sys.modules.pop("queueshop", None)


def run(*args: str) -> Result:
    sys.modules.pop("queueshop", None)
    return CliRunner().invoke(cli, list(args))


@pytest.mark.usefixtures("here")
def test_consumers_are_listed_with_their_keys() -> None:
    done = run("consumers", "list", "queueshop:app")
    assert done.exit_code == 0
    orders, mails = done.stdout.splitlines()[1:3]
    assert orders.split()[:3] == ["main/orders", "orders", "sync"] and "the key of sync" in orders
    assert "reject" in orders and "7 d" in orders
    assert "(inline)" in mails and "mail:{headers[ce-id]}" in mails


@pytest.mark.usefixtures("here")
def test_a_consumer_without_a_broker_is_a_finding() -> None:
    write_app(broker="")
    done = run("consumers", "list", "queueshop:app")
    assert done.exit_code == 1 and 'app.broker("main"' in done.stdout
    shapes = json.loads(run("consumers", "list", "queueshop:app", "--json").stdout)["consumers"]
    assert [shape["broker_declared"] for shape in shapes] == [False, False]


@pytest.mark.usefixtures("here")
def test_brokers_are_listed_without_their_urls() -> None:
    done = run("brokers", "list", "queueshop:app")
    assert done.exit_code == 0 and "main/orders, main/mails" in done.stdout and "memory" not in done.stdout


@pytest.mark.usefixtures("here")
def test_the_doctor_shows_what_a_broker_says() -> None:
    done = run("brokers", "doctor", "queueshop:app")
    assert done.exit_code == 0 and "Messages end with the process" in done.stdout


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("wrong", ["", "mails", "connection"])
def test_the_doctor_counts_what_waits_in_the_queues_that_it_can_read(
    monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    found = [BrokerFinding("error", wrong, "It cannot be used.")] if wrong else []
    monkeypatch.setattr(MemoryBroker, "examine", lambda self, places=(): found)
    monkeypatch.setattr(MemoryBroker, "waiting", lambda self, place: {"orders": 1_234}.get(place))
    findings = json.loads(run("brokers", "doctor", "queueshop:app", "--json").stdout)["findings"]
    counted = [(one["subject"], one["text"]) for one in findings if one["level"] == "ok"]
    assert counted == ([] if wrong == "connection" else [("orders", "Messages that wait in it: 1,234.")])


@pytest.mark.usefixtures("here")
def test_the_doctor_names_claims_that_expire_before_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = [BrokerFinding("ok", "ORDERS", "It keeps messages.", keeps=14 * 86_400.0)]
    monkeypatch.setattr(MemoryBroker, "examine", lambda self, places=(): kept)
    findings = json.loads(run("brokers", "doctor", "queueshop:app", "--json").stdout)["findings"]
    (warning,) = [one["text"] for one in findings if one["level"] == "warning"]
    assert "main/orders for 14d, but they are forgotten here after 7d" in warning and "the flow sync" in warning


@pytest.mark.usefixtures("here")
def test_the_doctor_fails_where_a_queue_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(self: Any, places: Any = ()) -> list[BrokerFinding]:
        return [BrokerFinding("error", place, "There is no queue.") for place in places]

    monkeypatch.setattr(MemoryBroker, "examine", missing)
    done = run("brokers", "doctor", "queueshop:app")
    assert done.exit_code == 1 and done.stdout.count("There is no queue.") == 2


@pytest.mark.usefixtures("here")
def test_the_doctor_examines_routes_as_places_to_publish_to(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("queueshop.py").write_text(
        Path("queueshop.py").read_text()
        + "\napp.route('a.*', to='main', place='x')\napp.route('b', to='main')\napp.route('c.*', to='main')\n"
    )
    asked: list[list[str]] = []
    monkeypatch.setattr(MemoryBroker, "examine", lambda self, places=(): asked.append(list(places)) or [])
    assert run("brokers", "doctor", "queueshop:app").exit_code == 0
    assert [sorted(places) for places in asked] == [["mails", "orders"], ["b", "x"]]


@pytest.mark.usefixtures("here")
def test_consume_ends_when_every_consumer_has_stopped() -> None:
    Path("queueshop.py").write_text(
        APP.format(broker=BROKER, largest=1).replace('start=sync, poison="reject"', "inline=True")
        + "app.consumers.clear()\napp.consume('main/nokeys', inline=True)(send)\n"
    )
    broker = MemoryBroker.named("cli-consumers")
    broker.publish([OutgoingMessage("nokeys", "a", b"{}")], 1.0)
    stored = broker.queues.queues["nokeys"][0]
    stored.message = OutgoingMessage("nokeys", "", b"{}")
    done = run("consume", "queueshop:app")
    assert done.exit_code == 2 and "give key=" in done.output


@pytest.mark.usefixtures("here")
def test_a_dead_letter_of_an_async_consumer_is_replayed() -> None:
    write_app(largest=1)
    from twiceproof.cli.load import load_app
    from twiceproof.inbound.queues.reader import OpenedBroker, QueueReader

    broker = MemoryBroker()
    broker.publish([OutgoingMessage("mails", "m1", b'{"to": "ada"}', headers={"ce-id": "e1"})], 1.0)
    with load_app("queueshop:app") as app:
        reader = QueueReader(app.runtime, app.consumers["main/mails"], lambda: OpenedBroker(broker))
        while not reader.outcomes:
            reader.round(0.0)
        reader.stop()
        reader.run()
    write_app()
    done = run("hooks", "replay", "queueshop:app", "--all")
    assert done.exit_code == 0 and "sent {'to': 'ada'}" in done.output and "new" in done.output
    assert "No dead letters" in run("hooks", "dead-letters").output
