"""An app whose ledger is in MariaDB: claims, flows, steps in the user's transaction, messages, views."""

from contextlib import closing
from urllib.parse import urlsplit

import pymysql
import pytest

from tests.contracts.stores.movable_mariadb import MovableMariadbEngine
from twiceproof import App
from twiceproof.errors import StoreError
from twiceproof.records import Address, Insert, Written
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.open import open_store

pytestmark = pytest.mark.server


@pytest.fixture
def app(mariadb_url):
    with App(mariadb_url) as app:
        yield app


def connect(url, user="root"):
    parts = urlsplit(url)
    return pymysql.connect(host=parts.hostname, port=parts.port, user=user, database=parts.path[1:])


@pytest.fixture
def shop(mariadb_url):
    with closing(connect(mariadb_url)) as db, db.cursor() as cursor:
        cursor.execute("CREATE TABLE stock (sku VARCHAR(20) PRIMARY KEY, left_over INT) ENGINE=InnoDB")
        cursor.execute("INSERT INTO stock VALUES ('apple', 10)")
        db.commit()
        yield db


def left(db):
    db.rollback()
    with db.cursor() as cursor:
        cursor.execute("SELECT left_over FROM stock")
        return cursor.fetchone()[0]


def test_a_claim_is_done_once(app):
    done = []

    @app.once(key="shop:order:{order[id]}")
    def charge(order):
        done.append(order["id"])
        return {"receipt": f"r-{order['id']}"}

    assert charge({"id": 1}) == charge({"id": 1}) == {"receipt": "r-1"}
    assert done == [1]


def test_a_flow_of_five_steps_is_taken_up_where_it_broke_off(app):
    done, fail = [], [True]

    @app.step(repeat="safe")
    def note(step: int) -> int:
        if step == 3 and fail and fail.pop():
            raise KeyboardInterrupt  # not an error of the step: the run is left as it is
        done.append(step)
        return step

    @app.flow(key="order:{order}")
    def sync(order: int) -> int:
        return sum(note(step) for step in range(5))

    with pytest.raises(KeyboardInterrupt):
        sync(1)
    assert done == [0, 1, 2]
    assert sync(1) == sync(1) == 10
    assert done == [0, 1, 2, 3, 4]


def test_flows_wait_and_schedules_come_round(mariadb_url):
    engine, done = MovableMariadbEngine(mariadb_url), []
    now = engine.fetch([Address("space", "claim", "self")])[0].now
    engine.advance(601 - now % 600)  # behind a tick: the next one is nearly ten minutes away
    with App(GroupedStore(engine)) as app:

        @app.step(repeat="safe")
        def note(word: str) -> str:
            done.append(word)
            return word

        @app.flow(key="order:{order}")
        def sync(order: int) -> str:
            note("before")
            app.sleep(30)
            paid = app.wait_for("paid", timeout="1h")
            return note(f"after {paid}")

        @app.every("10m")
        def tick() -> None:
            note("tick")

        handle = sync.start(1)
        app.worker().run(until_idle=True)
        assert done.count("before") == 1 and "tick" not in done
        engine.advance(60)
        app.worker().run(until_idle=True)
        assert not any(word.startswith("after") for word in done)
        app.deliver_to(flow="sync", key="order:1", name="paid", payload=17)
        app.worker().run(until_idle=True)
        assert done == ["before", "after 17"]
        engine.advance(660)
        app.worker().run(until_idle=True)
        assert done == ["before", "after 17", "tick"]
        assert handle.result() == "after 17"


def test_a_step_in_the_users_transaction_lands_with_its_entry_or_not_at_all(app, shop):
    fail = [True]

    @app.transaction
    def reserve(connection, count: int) -> int:
        with connection.cursor() as cursor:
            cursor.execute("UPDATE stock SET left_over = left_over - %s", (count,))
        if fail and fail.pop():
            raise RuntimeError("before the commit")
        return count

    @app.flow(key="order:{order}")
    def buy(order: int) -> int:
        return reserve(3)

    assert buy(1) == buy(1) == 3  # tried again after the error, whose work was rolled back
    assert fail == []
    assert left(shop) == 7


@pytest.mark.parametrize("commits", [True, False])
def test_a_message_is_published_if_its_transaction_was_committed(app, shop, commits):
    app.broker("main", "memory://mariadb-shop")
    app.route("orders.*", to="main", place="orders")
    with app.outbox(shop) as outbox:
        with shop.cursor() as cursor:
            cursor.execute("UPDATE stock SET left_over = 1")
        outbox.send("orders.paid", {"order": 17}, key=f"order:17:{commits}", order="order:17")
        outbox.send("orders.paid", {"order": 18}, key=f"order:18:{commits}")
    (shop.commit if commits else shop.rollback)()
    assert app.relay().run(until_idle=True) == 2 * commits


def test_the_rights_that_the_page_lists_are_enough(mariadb_url, mariadb_server):
    open_store(mariadb_url).close()
    database = urlsplit(mariadb_url).path[1:]
    with mariadb_server.connect() as admin, admin.cursor() as cursor:
        cursor.execute("CREATE OR REPLACE USER app")
        try:
            cursor.execute(f"GRANT SELECT ON {database}.* TO app")
            with pytest.raises(StoreError):
                used(mariadb_url.replace("root@", "app@"))
            cursor.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.* TO app")
            assert isinstance(used(mariadb_url.replace("root@", "app@")), Written)
        finally:
            cursor.execute("DROP USER app")


def used(url):
    with closing(open_store(url)) as store:
        return store.write(Insert(Address("space", "claim", "self"), "mine", draw=True)).block()


def test_the_views_show_claims_runs_and_steps(app, shop):
    @app.step(repeat="safe")
    def pack(name: str) -> str:
        return name

    @app.flow(key="parcel:{n}")
    def ship(n: int) -> str:
        return pack("é")

    ship(7)
    with shop.cursor() as cursor:
        cursor.execute("SELECT flow, `key`, state, result FROM twiceproof_runs")
        assert cursor.fetchall() == (("ship", "parcel:7", "done", '"é"'),)
        cursor.execute("SELECT step, state FROM twiceproof_steps")
        ((step, state),) = cursor.fetchall()
        assert step.startswith("pack") and state == "done"
