"""Which workers there are, which flows each serves, and what nobody carries out."""

from __future__ import annotations

import json
import logging
import threading
import time
from typing import Any

import pytest
from click.testing import CliRunner

from twiceproof import App, Misuse
from twiceproof.claims.retention import sweep
from twiceproof.cli.main import cli
from twiceproof.flows.workers.presence import LEASE, REMEMBERED, Presence, list_workers, stranded
from twiceproof.operations import block
from twiceproof.prove.clocks import ManualClock
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.memory import MemoryEngine


class Shop:
    """Apps on one store, with two flows, a schedule and a poll each."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.engine = MemoryEngine(self.clock)
        self.did: list[str] = []

    def app(self, version: str = "1", accepts: tuple[str, ...] = ()) -> Any:
        app: Any = App(GroupedStore(self.engine, clock=self.clock), clock=self.clock)

        @app.flow(key="order:{n}", version=version, accepts=accepts)
        def pay(n: int) -> None:
            self.did.append(f"pay {n}")

        @app.flow(key="parcel:{n}")
        def ship(n: int) -> None:
            self.did.append(f"ship {n}")

        @app.every("1m", name="clean")
        def clean() -> None:
            self.did.append("clean")

        @app.poll(every="1m", start=ship, name="parcels")
        def parcels(since: Any) -> list[int]:
            return [7]

        app.pay, app.ship = pay, ship
        return app


@pytest.fixture
def shop() -> Shop:
    return Shop()


def present(app: Any, name: str, *flows: str) -> Presence:
    return Presence(app.store, name, lambda: flows or ("pay@1", "ship@1"), 10)


# -- which flows ---------------------------------------------------------------------------------


def test_a_worker_serves_the_flows_it_was_given_with_their_schedules_and_polls(shop: Shop) -> None:
    app = shop.app()
    app.pay.start(1)
    app.ship.start(2)
    app.worker().run(until_idle=True)  # schedules and polls are where they fall due
    app.pay.start(3)
    app.ship.start(4)
    shop.did.clear()
    shop.clock.advance(61)
    app.worker(flows=["pay"]).run(until_idle=True)
    assert shop.did == ["pay 3"]
    app.worker(flows=["clean"]).run(until_idle=True)
    assert shop.did == ["pay 3", "clean"]
    app.worker(flows=["ship"]).run(until_idle=True)
    assert "ship 4" in shop.did


def test_a_poll_is_asked_by_whoever_serves_the_flow_that_it_starts(shop: Shop) -> None:
    app = shop.app()
    app.worker(flows=["pay"]).run(until_idle=True)
    assert shop.did == []
    app.worker(flows=["ship"]).run(until_idle=True)
    assert shop.did == ["ship 7"]


def test_without_a_choice_a_worker_serves_all(shop: Shop) -> None:
    app = shop.app()
    app.pay.start(1)
    app.ship.start(2)
    app.worker().run(until_idle=True)
    assert {"pay 1", "ship 2"} <= set(shop.did)


def test_a_flow_that_is_not_declared_is_refused_with_those_that_are(shop: Shop) -> None:
    with pytest.raises(Misuse, match="No flow is called refund; those that are declared: clean, pay, ship"):
        shop.app().worker(flows=["pay", "refund"])


# -- who is there --------------------------------------------------------------------------------


def test_a_worker_is_listed_while_it_gives_signs_of_life_and_gone_without(shop: Shop) -> None:
    app = shop.app()
    worker = present(app, "host:1:a-1", "ship@1", "pay@2")
    block(worker.beat())
    began = shop.clock.now()
    shop.clock.advance(LEASE - 1)
    block(worker.beat())
    shop.clock.advance(LEASE - 1)
    (listed,) = block(list_workers(app.store))
    assert (listed.name, listed.flows, listed.gone) == ("host:1:a-1", ("pay@2", "ship@1"), False)
    assert (listed.since, listed.last_heartbeat) == (began, began + LEASE - 1)
    shop.clock.advance(2)
    assert [one.gone for one in block(list_workers(app.store))] == [True]
    block(worker.beat())
    assert [one.gone for one in block(list_workers(app.store))] == [False]


def test_one_that_is_gone_is_forgotten_after_a_day(shop: Shop) -> None:
    app = shop.app()
    block(present(app, "host:1:a-1").beat())
    shop.clock.advance(LEASE + REMEMBERED - 1)
    block(sweep(app.store))
    assert len(block(list_workers(app.store))) == 1
    shop.clock.advance(2)
    block(sweep(app.store))
    assert block(list_workers(app.store)) == []


def test_a_worker_whose_record_was_taken_away_or_changed_is_there_again(shop: Shop) -> None:
    app = shop.app()
    one, namesake = present(app, "host:1:a-1"), present(app, "host:1:a-1")
    block(one.beat())
    block(namesake.beat())
    block(one.beat())
    shop.clock.advance(LEASE + REMEMBERED + 1)
    block(sweep(app.store))
    block(one.beat())
    assert [worker.gone for worker in block(list_workers(app.store))] == [False]


def test_a_worker_that_runs_is_listed_and_one_that_leaves_is_not(shop: Shop) -> None:
    app = shop.app()
    worker = app.worker(flows=["pay"], concurrency=3)
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    until(lambda: block(list_workers(app.store)))
    (listed,) = block(list_workers(app.store))
    assert (listed.flows, listed.concurrency, listed.gone) == (("pay@1",), 3, False)
    worker.drain()
    thread.join(30)
    assert block(list_workers(app.store)) == []


def until(condition: Any) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_worker_that_ends_when_idle_is_not_listed(shop: Shop) -> None:
    app = shop.app()
    seen: list[Any] = []

    @app.flow(key="look")
    def look() -> None:
        seen.extend(block(list_workers(app.store)))

    look.start()
    app.worker().run(until_idle=True)
    assert seen == []


# -- what nobody carries out ---------------------------------------------------------------------


def test_due_runs_of_a_version_that_no_living_worker_has_are_told(shop: Shop, caplog: Any) -> None:
    shop.app().pay.start(1)
    newer = shop.app(version="2")
    worker = present(newer, "new", "pay@2", "ship@1")
    with caplog.at_level(logging.WARNING):
        block(worker.beat())
    assert block(stranded(newer.store)) == {"pay@1": 1}
    (line,) = caplog.records
    assert "1 due runs of pay@1" in line.getMessage() and 'accepts=("1",)' in line.getMessage()


def test_what_another_worker_carries_out_is_no_news(shop: Shop, caplog: Any) -> None:
    old = shop.app()
    old.pay.start(1)
    block(present(old, "old", "pay@1").beat())
    with caplog.at_level(logging.WARNING):
        block(present(old, "new", "pay@2").beat())
    assert block(stranded(old.store)) == {} and not caplog.records
    shop.clock.advance(LEASE + 1)  # both are gone
    assert block(stranded(old.store)) == {"pay@1": 1}


def test_what_is_not_due_yet_or_done_is_not_counted(shop: Shop) -> None:
    app = shop.app()

    @app.flow(key="nap")
    def nap() -> None:
        app.sleep("1d")

    nap.start()
    app.pay.start(1)
    app.worker().run(until_idle=True)
    assert block(stranded(app.store)) == {}
    shop.clock.advance(86_401)
    assert block(stranded(app.store)) == {"nap@1": 1}


# -- on the command line -------------------------------------------------------------------------


def test_workers_list_shows_them_and_ends_with_1_if_runs_have_nobody(tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    with App(url) as app:

        @app.flow(key="order:{n}")
        def pay(n: int) -> None: ...

        assert told(url).output.startswith("No workers. Start one with: twiceproof work")
        block(Presence(app.store, "host:1:a-1", lambda: ("pay@1",), 10).beat())
        pay.start(1)
        shown = told(url)
        assert shown.exit_code == 0 and "host:1:a-1" in shown.output and "alive" in shown.output
        assert "pay@1" in shown.output
        block(Presence(app.store, "host:1:a-1", lambda: ("pay@2",), 10).beat())
        shown = told(url)
        assert shown.exit_code == 1 and "No live worker for 1 due run of pay@1" in shown.output
        shape = json.loads(told(url, "--json").output)
        assert shape["stranded"] == {"pay@1": 1}
        assert [(one["name"], one["flows"], one["gone"]) for one in shape["workers"]] == [
            ("host:1:a-1", ["pay@2"], False)
        ]


def told(url: str, *words: str) -> Any:
    return CliRunner().invoke(cli, ["--store", url, "workers", "list", *words])
