"""DynamoDB, Azure Table Storage, etcd, MariaDB: a claim beside the usual one statement of the same driver.

The usual way is one request that inserts the claim if it is absent, each caller with a connection of its own. A second
one sets it to done if it is still ours.
"""

from __future__ import annotations

import base64
import http.client
import itertools
import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from msgspec import Struct
from tests.servers.azurite import Azurite
from tests.servers.dynamodb import MinistackDynamoDb
from tests.servers.etcd import EtcdCluster
from tests.servers.mariadb import MariadbServer

from twiceproof import App
from twiceproof.stores.mariadb.schema import connection_parameters

from ..callers import ONE, TASKS, One, Threads, count_in
from ..contenders import ours
from ..findings import Findings, rows_beside
from ..goals import line
from ..plan import Plan
from ..progress import Progress
from ..rounds import Contender, Slots, compete
from ..series import Series, fastest, ratio, spread

__all__ = ["ROW_STORES", "measure_row_store"]


class Usual(Struct, frozen=True):
    """A store's URL, and the usual way beside it: `insert` a claim of this name; `finish` it, given the answer."""

    url: str
    insert: Callable[[str], Any]
    finish: Callable[[str, Any], object]

    def both(self, name: str) -> None:
        self.finish(name, self.insert(name))


def measure_row_store(name: str, plan: Plan, progress: Progress) -> Findings:
    with ExitStack() as stack:
        usual = stack.enter_context(ROW_STORES[name]())
        app = App(usual.url)
        stack.callback(app.close)
        heats = _Heats(name, usual, app, plan, progress)
        findings = heats.one()
        findings.add(heats.many())
        if hasattr(app.store.engine, "table"):  # type: ignore[attr-defined]
            findings.add(heats.requests())
        return findings


class _Heats:
    """Contenders that are compared with each other run in the same heat."""

    def __init__(self, name: str, usual: Usual, app: App, plan: Plan, progress: Progress) -> None:
        self._name = name
        self._usual = usual
        self._app = app
        self._slots = Slots(plan.rounds, plan.slot)
        self._progress = progress
        self._keys = map(str, itertools.count())

    def one(self) -> Findings:
        usual = [
            Contender("the usual request", One(lambda _: self._usual.insert(next(self._keys)))),
            Contender("the usual two", One(lambda _: self._usual.both(next(self._keys)))),
        ]
        insert, two, take, both = self._compete(
            ONE, [*usual, ours.taking(self._app, ONE), ours.completing(self._app, ONE)]
        )
        return self._found(ONE, "row store, one", insert, take, two, both)

    def many(self) -> Findings:
        """The usual way is whichever is faster here: one caller in a loop, or a thread with a connection for each."""
        usual = [each for act in (self._usual.insert, self._usual.both) for each in self._ways(act)]
        *others, take, both = self._compete(
            TASKS, [*usual, ours.taking(self._app, TASKS), ours.completing(self._app, TASKS)]
        )
        goal = GROUPED.get(self._name, "row store, many")
        return self._found(TASKS, goal, fastest(others[:2]), take, fastest(others[2:]), both)

    def _ways(self, act: Callable[[str], object]) -> list[Contender]:
        one = One(lambda _: act(next(self._keys)))
        threads = Threads(count_in(TASKS), lambda _: act(next(self._keys)))
        return [Contender("one in a loop", one), Contender("the usual way", threads)]

    def requests(self) -> Findings:
        """How many requests a claim, taken and completed, and a replay of it take."""
        table = self._app.store.engine.table  # type: ignore[attr-defined]
        claims, replay = ours.completing(self._app, ONE), ours.replaying(self._app, 20)[0]
        before = table.requests
        claims.callers.time(20)
        between = table.requests
        replay.callers.time(20)
        counted = (("requests", between - before), ("requests, replay", table.requests - between))
        return Findings([], [line(f"row store {what}", self._name, spread([count / 20])) for what, count in counted])

    def _found(self, callers: str, goal: str, insert: Series, take: Series, two: Series, both: Series) -> Findings:
        part = f"{self._name}, {callers}"
        return Findings(
            [*rows_beside(part, insert, [insert, take]), *rows_beside(part, two, [two, both])],
            [
                line(goal, self._name, ratio(take, insert)),
                line("row store, both", self._name, ratio(both, two), callers),
            ],
        )

    def _compete(self, callers: str, contenders: list[Contender]) -> list[Series]:
        with self._progress.heat(f"{self._name}, {callers}", self._slots.rounds) as step:
            return compete(contenders, self._slots, step)


@contextmanager
def _dynamodb() -> Iterator[Usual]:
    import boto3

    os.environ.setdefault("AWS_ACCESS_KEY_ID", "testing")
    os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "testing")
    with MinistackDynamoDb() as server:
        client: Any = boto3.client("dynamodb", "us-east-1", endpoint_url=f"http://{server.host}:{server.port}")
        key = [{"AttributeName": "id", "KeyType": "HASH"}]
        kinds = [{"AttributeName": "id", "AttributeType": "S"}]
        client.create_table(
            TableName="claims", KeySchema=key, AttributeDefinitions=kinds, BillingMode="PAY_PER_REQUEST"
        )

        def insert(name: str) -> None:
            item = {"id": {"S": name}, "s": {"S": "held"}, "by": {"S": "me"}}
            client.put_item(TableName="claims", Item=item, ConditionExpression="attribute_not_exists(id)")

        def finish(name: str, _: Any) -> None:
            client.update_item(
                TableName="claims",
                Key={"id": {"S": name}},
                UpdateExpression="SET s = :s",
                ConditionExpression="#b = :b",
                ExpressionAttributeNames={"#b": "by"},
                ExpressionAttributeValues={":s": {"S": "done"}, ":b": {"S": "me"}},
            )

        yield Usual(server.url("ledger"), insert, finish)


@contextmanager
def _azure_table() -> Iterator[Usual]:
    from azure.core import MatchConditions
    from azure.data.tables import TableClient

    with Azurite() as server:
        os.environ["AZURE_STORAGE_CONNECTION_STRING"] = server.connection_string()
        client: Any = TableClient.from_connection_string(server.connection_string(), "claims")
        client.create_table()

        def insert(name: str) -> Any:
            return client.create_entity({"PartitionKey": name, "RowKey": "c", "s": "held"})

        def finish(name: str, made: Any) -> None:
            entity = {"PartitionKey": name, "RowKey": "c", "s": "done"}
            client.update_entity(entity, etag=made["etag"], match_condition=MatchConditions.IfNotModified)

        yield Usual("azure-table:///ledger", insert, finish)


class _Links:
    """Connections of the usual way, open before the clock runs: a round's threads are new ones."""

    def __init__(self, connect: Callable[[], Any]) -> None:
        self._idle = [connect() for _ in range(count_in(TASKS))]

    @contextmanager
    def one(self) -> Iterator[Any]:
        link = self._idle.pop()
        yield link
        self._idle.append(link)


@contextmanager
def _etcd() -> Iterator[Usual]:
    cluster = EtcdCluster()
    try:
        cluster.start()
        links = _Links(lambda: http.client.HTTPConnection(cluster.host, cluster.port))

        def ask(body: Any) -> Any:
            with links.one() as link:
                link.request("POST", "/v3/kv/txn", json.dumps(body).encode())
                return json.loads(link.getresponse().read())

        def insert(name: str) -> Any:
            return ask(_put(_etcd_key(name), "0", "aGVsZA=="))["header"]["revision"]

        def finish(name: str, revision: Any) -> None:
            ask(_put(_etcd_key(name), revision, "ZG9uZQ=="))

        yield Usual(f"etcd://{cluster.hosts}/ledger", insert, finish)
    finally:
        cluster.close()


@contextmanager
def _mariadb() -> Iterator[Usual]:
    """The usual way has a connection for each caller, and each statement commits by itself."""
    import pymysql

    with MariadbServer(disk=True) as server:
        url = server.create_database()
        parameters = connection_parameters(url)
        links = _Links(lambda: pymysql.connect(**parameters, autocommit=True))

        def run(sql: str, values: tuple[str, ...] = ()) -> None:
            with links.one() as link, link.cursor() as cursor:
                cursor.execute(sql, values)

        run("CREATE TABLE claims (id VARBINARY(255) PRIMARY KEY, s VARCHAR(9), held_by VARCHAR(9)) ENGINE=InnoDB")

        def insert(name: str) -> None:
            run("INSERT INTO claims VALUES (%s, 'held', 'me')", (name,))

        def finish(name: str, _: Any) -> None:
            run("UPDATE claims SET s = 'done' WHERE id = %s AND held_by = 'me'", (name,))

        yield Usual(url, insert, finish)


def _etcd_key(name: str) -> str:
    return base64.b64encode(f"raw/{name}".encode()).decode()


def _put(key: str, revision: str, value: str) -> dict[str, Any]:
    compared = {"target": "MOD", "result": "EQUAL", "key": key, "mod_revision": revision}
    return {"compare": [compared], "success": [{"request_put": {"key": key, "value": value}}]}


GROUPED = {"etcd": "row store, grouped", "mariadb": "row store, grouped"}  # many claims share a request
ROW_STORES = {"dynamodb": _dynamodb, "azure-table": _azure_table, "etcd": _etcd, "mariadb": _mariadb}
