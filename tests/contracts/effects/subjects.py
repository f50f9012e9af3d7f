"""The ready-made effects, each with its destination and the faults that can be played there."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.effects.books import BooksSimulator
from tests.servers.address import closed_port, free_port
from tests.servers.dovecot import Dovecot
from tests.unit.effects.mailbox import mailbox
from tests.unit.effects.sql_places import lost_connection, open_place
from twiceproof import App
from twiceproof.effects import dataverse, files, http, mail, s3, sql, table
from twiceproof.effects.base import Effect
from twiceproof.effects.sql_connection import SqlConnection
from twiceproof.effects.sql_databases import database_of
from twiceproof.prove.effect_contract import EffectTrial
from twiceproof.prove.simulators import (
    AirtableSimulator,
    DataverseSimulator,
    GmailSimulator,
    GraphSimulator,
    SharePointSimulator,
    SheetsSimulator,
)
from twiceproof.prove.simulators.server import SimulatedAnswer, Simulator

Undo = Callable[[], None]
TOKEN = "secret-canary"
ORDER = {"id": "17", "total": "9.90"}


Making = Callable[[pytest.FixtureRequest, Path, pytest.MonkeyPatch], contextlib.AbstractContextManager[EffectTrial]]


# -- files ---------------------------------------------------------------------------------------------


def _file_subject(make: Callable[[Path], Effect[Any]], path: Path, patch: pytest.MonkeyPatch) -> EffectTrial:
    def state() -> dict[str, bytes]:
        return {one.name: one.read_bytes() for one in path.parent.iterdir()}

    def lose() -> None:
        def fail(*_: Any) -> None:
            patch.undo()
            raise files.OutcomeUnknown("the machine was about to tell")

        patch.setattr(files, "_sync_folder", fail)

    def refuse() -> None:
        def fail(*_: Any) -> int:
            patch.undo()
            raise OSError(28, "No space left on device")

        patch.setattr(files.os, "write", fail)

    def count() -> int:
        return path.read_bytes().count(b"order 17") if path.exists() else 0

    away = make(path.parent / "not mounted" / "x")
    return EffectTrial(make(path), state, count, lose, refuse, away)


@contextlib.contextmanager
def file_written(request: pytest.FixtureRequest, folder: Path, patch: pytest.MonkeyPatch) -> Iterator[EffectTrial]:
    yield _file_subject(lambda path: files.write(path, "order 17\n"), folder / "orders", patch)


@contextlib.contextmanager
def file_created(request: pytest.FixtureRequest, folder: Path, patch: pytest.MonkeyPatch) -> Iterator[EffectTrial]:
    yield _file_subject(lambda path: files.create(path, "order 17\n"), folder / "orders", patch)


@contextlib.contextmanager
def record_appended(request: pytest.FixtureRequest, folder: Path, patch: pytest.MonkeyPatch) -> Iterator[EffectTrial]:
    path = folder / "orders"
    path.write_text("an older line\n")
    subject = _file_subject(lambda path: files.append(path, {"what": "order 17"}), path, patch)
    subject.carried = path.read_text
    yield subject


# -- mail ----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def mail_sent(request: pytest.FixtureRequest, folder: Path, patch: pytest.MonkeyPatch) -> Iterator[EffectTrial]:
    server: Dovecot = request.getfixturevalue("dovecot")
    user = f"contract-{folder.name}"
    message = mail.message(sender="shop@example.org", to="ada@example.org", subject="Order 17", text="Thank you")
    with mailbox() as (box, port), closed_port() as away:
        box.on_mail = lambda data: server.store(user, data)

        def sending(imap_port: int) -> Effect[Any]:
            look = mail.imap(server.host, user=user, password=server.password, port=imap_port, tls=False, copies=True)
            return mail.send(message, via=mail.smtp("127.0.0.1", port=port, tls="none"), look=look)

        def says(answer: str) -> Callable[[], None]:
            return lambda: setattr(box, "says", answer)

        yield EffectTrial(
            sending(server.port),
            lambda: len(box.mails),
            lambda: len(box.mails),
            says(""),
            lambda: box.refuses.update({"ada@example.org": "550 no"}),
            sending(away),
            concurrent=False,  # nothing at a mail server stops a second copy: the step's claim does
            carried=lambda: str(box.mails[0]),
        )


# -- S3 ------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def object_put(request: pytest.FixtureRequest, folder: Path, patch: pytest.MonkeyPatch) -> Iterator[EffectTrial]:
    endpoint: str = request.getfixturevalue("s3_endpoint")
    client = request.getfixturevalue("s3_client")
    name = folder.name.lower().replace("_", "-")[:40] + "-bucket"
    client.create_bucket(Bucket=name)
    where = s3.bucket(name, endpoint=endpoint, region="us-east-1")
    effect = s3.put(where, "orders/17", b"9.90")
    real = s3.ObjectPut._put

    def state() -> list[Any]:
        found = client.list_objects_v2(Bucket=name).get("Contents", [])
        return [(one["Key"], one["ETag"], one["LastModified"]) for one in found if one["Key"] != s3.PROBE]

    def lose() -> None:
        def put(self: Any, key: str, *given: Any) -> Any:
            answer = real(self, key, *given)
            if key != s3.PROBE:
                patch.undo()
                raise ConnectionResetError("the answer is lost")
            return answer

        patch.setattr(s3.ObjectPut, "_put", put)

    def refuse() -> None:
        client.delete_bucket(Bucket=name)

    def carried() -> str:
        return str(client.head_object(Bucket=name, Key="orders/17")["Metadata"])

    with closed_port() as port:
        nobody = s3.bucket(name, endpoint=f"http://127.0.0.1:{port}", region="us-east-1")
        away = s3.put(nobody, "orders/17", b"9.90")
        yield EffectTrial(effect, state, lambda: len(state()), lose, refuse, away, carried=carried)


# -- simulated services --------------------------------------------------------------------------------


def _simulated(
    simulator: Simulator, make: Callable[[str], Effect[Any]], rows: Callable[[], list[Any]], method: str
) -> EffectTrial:
    def requested() -> str:
        return str([one.headers for one in simulator.requests if one.method == method])

    def refuse() -> None:
        simulator.refuse(method, SimulatedAnswer(403, {"error": {"code": "0x80040220", "message": "not allowed"}}))

    def count() -> int:
        return sum("17" in str(row) for row in rows())

    return EffectTrial(
        make(simulator.url),
        rows,
        count,
        lambda: simulator.lose_answer(method),
        refuse,
        make(f"http://127.0.0.1:{free_port()}"),
        carried=lambda: f"{rows()} {requested()}",
        blind=lambda: simulator.refuse("GET", SimulatedAnswer(503)),
    )


REFERENCE = http.find("GET /invoices?reference={effect_key}", at="items[0]")


def _request(
    make: Callable[[str], Effect[Any]], method: str = "POST", *, marks: bool = False, concurrent: bool = True
) -> Making:
    """A request to a service of its own. `marks`: what it does is counted by the marks in the shared document."""

    @contextlib.contextmanager
    def making(request: pytest.FixtureRequest, folder: Path, patch: pytest.MonkeyPatch) -> Iterator[EffectTrial]:
        with BooksSimulator() as books:

            def rows() -> list[Any]:
                return list(books.document.get("applied", ())) if marks else list(books.rows)

            made = _simulated(books, make, rows, method)
            made.count, made.concurrent = (lambda: len(rows())), concurrent
            yield made

    return making


def _added(document: dict[str, Any]) -> dict[str, Any]:
    return {**document, "total": document["total"] + 17}


def _dataverse(make: Callable[[Any], Effect[Any]], rows: tuple[dict[str, Any], ...] = ()) -> Making:
    @contextlib.contextmanager
    def making(request: pytest.FixtureRequest, folder: Path, patch: pytest.MonkeyPatch) -> Iterator[EffectTrial]:
        with DataverseSimulator({"shop_orders": ["shop_id"]}, token=TOKEN) as simulator:
            for row in rows:
                simulator.insert("shop_orders", row)
            yield _simulated(
                simulator,
                lambda url: make(dataverse.environment(url, lambda: TOKEN, timeout=5)),
                lambda: [row for row in simulator.rows("shop_orders") if "shop_total" in row],
                "PATCH",
            )

    return making


def _table(simulator: Callable[[], Any], make: Callable[[str], Any]) -> Making:
    @contextlib.contextmanager
    def making(request: pytest.FixtureRequest, folder: Path, patch: pytest.MonkeyPatch) -> Iterator[EffectTrial]:
        with App("memory://") as app, simulator() as running:

            def finding(url: str) -> Effect[Any]:
                rows = make(url)
                return table.find_or_create(rows, {"id": "17"}, {"total": "9.90"}, claims=None if rows.unique else app)

            yield _simulated(running, finding, lambda: list(running.rows), "POST")

    return making


def _drafted(simulator: Callable[[], Any], via: Callable[[str], Any]) -> Making:
    @contextlib.contextmanager
    def making(request: pytest.FixtureRequest, folder: Path, patch: pytest.MonkeyPatch) -> Iterator[EffectTrial]:
        message = mail.message(sender="shop@example.org", to="ada@example.org", subject="Order 17", text="Thank you")
        with simulator() as running:
            made = _simulated(running, lambda url: mail.send(message, via=via(url)), lambda: list(running.sent), "POST")
            made.lose_answer = lambda: running.lose_answer("POST", "/send")
            made.concurrent = False  # two drafts could both be sent: the step's claim keeps attempts apart
            yield made

    return making


# -- SQL -----------------------------------------------------------------------------------------------


def _row(verb: str, server: str) -> Making:
    @contextlib.contextmanager
    def making(request: pytest.FixtureRequest, folder: Path, patch: pytest.MonkeyPatch) -> Iterator[EffectTrial]:
        place = open_place(server, request, folder)
        place.run("CREATE TABLE orders (id VARCHAR(40) PRIMARY KEY, total VARCHAR(9) NOT NULL, made_by TEXT)")

        def asking(db: Any) -> Effect[Any]:
            made: Effect[Any] = getattr(sql, verb)(
                db, "orders", key={"id": "17"}, values={"total": "9.90"}, mark="made_by"
            )
            return made

        def rows() -> list[Any]:
            return place.run("SELECT * FROM orders")

        def lose() -> None:
            answer = SqlConnection.run

            def run(connection: SqlConnection, text: str, values: Any = ()) -> Any:
                found = answer(connection, text, values)
                if "INSERT" in text:
                    patch.undo()
                    raise lost_connection(connection.dialect)
                return found

            patch.setattr(SqlConnection, "run", run)

        yield EffectTrial(
            asking(place.url),
            rows,
            lambda: len(rows()),
            lose,
            lambda: place.run("DROP TABLE orders"),
            asking("postgresql://u:secret-canary@127.0.0.1:1/shop"),
            carried=lambda: str(rows()),
        )
        database_of(place.url).close_idle()

    return making


SUBJECTS: dict[str, Making] = {
    "sql.find_or_create, SQLite": _row("find_or_create", "sqlite"),
    "sql.upsert, SQLite": _row("upsert", "sqlite"),
    "sql.insert_once, SQLite": _row("insert_once", "sqlite"),
    "sql.find_or_create, PostgreSQL": _row("find_or_create", "postgresql"),
    "sql.upsert, PostgreSQL": _row("upsert", "postgresql"),
    "sql.find_or_create, MariaDB": _row("find_or_create", "mariadb"),
    "sql.insert_once, MariaDB": _row("insert_once", "mariadb"),
    "files.write": file_written,
    "files.create": file_created,
    "files.append": record_appended,
    "mail.send": mail_sent,
    "s3.put": object_put,
    "http.post with a look, simulated": _request(
        lambda url: http.post(
            f"{url}/invoices", json={"reference": http.KEY}, look=REFERENCE, auth=lambda: TOKEN, timeout=5, result=dict
        ),
        concurrent=False,  # nothing there stops a second one: the step's claim does
    ),
    "http.post with a key, simulated": _request(
        lambda url: http.post(
            f"{url}/invoices",
            json={"reference": http.KEY},
            look=REFERENCE,
            provider="stripe",
            auth=lambda: TOKEN,
            timeout=5,
            result=dict,
        )
    ),
    "http.put, simulated": _request(
        lambda url: http.put(
            f"{url}/customers/17",
            json={"name": "Ann"},
            look=http.find("GET /customers/17", absent=404),
            repeat="safe",
            auth=lambda: TOKEN,
            timeout=5,
            result=dict,
        ),
        "PUT",
    ),
    "http.change, simulated": _request(
        lambda url: http.change(f"{url}/document", _added, mark="applied", auth=lambda: TOKEN, timeout=5),
        "PUT",
        marks=True,
    ),
    "dataverse.upsert, simulated": _dataverse(
        lambda org: dataverse.upsert(org, "shop_orders", {"shop_id": "17"}, {"shop_total": "9.90"})
    ),
    "dataverse.create_only, simulated": _dataverse(
        lambda org: dataverse.create_only(
            org, "shop_orders", {"shop_id": "17"}, {"shop_total": "9.90"}, mark="shop_effect"
        )
    ),
    "dataverse.change, simulated": _dataverse(
        lambda org: dataverse.change(
            org,
            "shop_orders",
            {"shop_id": "17"},
            lambda row: {"shop_total": "1" * (len(row.get("shop_total", "")) + 1)},
            mark="shop_effect",
        ),
        ({"shop_id": "17"},),
    ),
    "airtable, simulated": _table(
        AirtableSimulator, lambda url: table.airtable("app1", "Orders", auth=lambda: TOKEN, url=url, timeout=5)
    ),
    "sheets, simulated": _table(
        lambda: SheetsSimulator(["id", "total"]),
        lambda url: table.sheets("doc1", "Orders", auth=lambda: TOKEN, url=url, timeout=5),
    ),
    "mail by Graph, simulated": _drafted(
        GraphSimulator, lambda url: mail.graph(auth=lambda: TOKEN, url=url, timeout=5)
    ),
    "mail by Gmail, simulated": _drafted(
        GmailSimulator, lambda url: mail.gmail(auth=lambda: TOKEN, url=url, timeout=5)
    ),
    "sharepoint, simulated": _table(
        SharePointSimulator, lambda url: table.sharepoint("site", "Orders", auth=lambda: TOKEN, url=url, timeout=5)
    ),
    "sharepoint with a unique column, simulated": _table(
        lambda: SharePointSimulator(unique="id"),
        lambda url: table.sharepoint("site", "Orders", auth=lambda: TOKEN, unique=True, url=url, timeout=5),
    ),
}
