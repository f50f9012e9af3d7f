"""A run of a flow in a file with every verb, and the servers that count outside what it did."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.acceptance.journeys import LEASE, Hook, Journey, nothing
from tests.acceptance.later import pass_time
from tests.unit.effects.mailbox import mailbox
from twiceproof import Absent, App, Happened, Waiting, load_flows
from twiceproof.app.functions import wrapped_flow
from twiceproof.errors import StepFailed
from twiceproof.operations import block
from twiceproof.outbox.queries import list_messages

__all__ = ["EveryVerb", "Outside", "outside"]

FLOW = """\
flow: every
input: {order: integer}
key: order:{order}
lease: LEASE
uses: [web, chat, mail, shop, builder]
steps:
  - set: {twice: =order * 2}
  - step: looked
    http: GET web /look/{order}
  - step: put
    http: PUT web /safe/{order}
    repeat: safe
  - step: charge
    http: POST web /keyed/{order}
    repeat: keyed
  - step: invoice
    http: POST web /checked/{order}
    repeat: {settle: 0, check: "GET web /checked/{order}", found: body}
  - step: row
    sql: shop
    upsert: {table: orders, by: [id], row: {id: =order, twice: =twice}}
  - step: taken
    sql: shop
    run: UPDATE stock SET taken = taken + 1 WHERE id = :id
    with: {id: =order}
    repeat:
      settle: 0
      check: {sql: shop, query: "SELECT 1 AS found FROM stock WHERE id = :id AND taken > 0", with: {id: =order}}
  - step: python
    call: tests.acceptance.file_journeys:act
    with: {order: =order}
    repeat: {settle: 0, check: "tests.acceptance.file_journeys:find"}
  - notify: chat
    step: told
    text: order {order}
    repeat: safe
  - step: report
    keep: '"report of " + text(order)'
    name: report-{order}.txt
  - publish: orders.done
    payload: {order: =order}
  - step: below
    flow: part
    with: {order: =order}
  - each: '["a", "b", "c"]'
    as: sku
    id: "{sku}"
    do:
      - {step: stock, http: "POST web /item/{order}/{sku}", repeat: keyed}
  - together:
      - {step: left, http: "POST web /left/{order}", repeat: keyed}
      - {step: right, http: "POST web /right/{order}", repeat: keyed}
  - choose:
      - when: order < 0
        do: [{fail: never}]
      - else: [{set: {chosen: true}}]
  - sleep: 20s
  - wait: paid
  - approve: ship
  - step: agent
    remote: ssh builder
    command: [run, "{order}"]
    callback: finished
    timeout: 6h
  - step: mail
    mail: mail
    to: ada@example.com
    subject: order {order}
    text: done
    repeat: never
returns: {paid: =paid, by: =ship.by, agent: =agent.ok}
"""
PART = """\
flow: part
input: {order: integer}
key: part:{order}
lease: LEASE
uses: [web]
steps:
  - {step: inner, http: "POST web /inner/{order}", repeat: keyed}
returns: =order
"""
RESULT = {"paid": "money", "by": "ann", "agent": True}
KEYED = ("keyed", "item", "left", "right", "inner")
RUNNING: list[EveryVerb] = []  # whose Python functions are called: the last one


class Outside:
    """What was asked of it, by path: how often, and under which keys. A read finds what was done before."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.keys: dict[str, set[str]] = {}
        self.mails: Counter[str] = Counter()
        self._mutex = threading.Lock()

    def ask(self, method: str, path: str, key: str) -> tuple[int, Any]:
        with self._mutex:
            if method == "GET":
                return (200, {"path": path}) if path.startswith("/look") or self.asked[path] else (404, {})
            self.asked[path] += 1
            self.keys.setdefault(path, set()).add(key)
        return 200, {"path": path}


@contextmanager
def outside(folder: Path) -> Iterator[Outside]:
    """A web service, a mail server, a database, and the files of the flow that uses them."""
    made = Outside()

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            status, value = made.ask(self.command, self.path, self.headers.get("idempotency-key", ""))
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PUT = answer  # noqa: N815 - the names it looks for

        def log_message(self, *_: Any) -> None:
            return None

    with mailbox() as (box, mail), ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        box.on_mail = lambda content: made.mails.update([subject_of(content)])
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        with closing(sqlite3.connect(folder / "shop.db")) as shop, shop:
            shop.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, twice INTEGER)")
            shop.execute("CREATE TABLE stock (id INTEGER PRIMARY KEY, taken INTEGER)")
            shop.executemany("INSERT INTO stock VALUES (?, 0)", [(number,) for number in range(1_000)])
        _write(folder, f"http://127.0.0.1:{server.server_port}", mail)
        try:
            yield made
        finally:
            server.shutdown()
            thread.join()


def subject_of(mail: bytes) -> str:
    return next(line for line in mail.decode().splitlines() if line.startswith("Subject: ")).removeprefix("Subject: ")


def _write(folder: Path, web: str, mail: int) -> None:
    flows = folder / "flows"
    flows.mkdir()
    for name, text in (("every", FLOW), ("part", PART)):
        (flows / f"{name}.flow.yaml").write_text(text.replace("LEASE", f"{LEASE:.0f}s"))
    (flows / "connections.yaml").write_text(
        f"web: {{live: {{http: {web}}}}}\n"
        f"chat: {{live: {{webhook: env:CHAT_WEBHOOK}}}}\n"
        f'mail: {{live: {{smtp: "127.0.0.1:{mail}", from: shop@example.com, tls: none}}}}\n'
        f'shop: {{live: {{sql: "sqlite:///{folder}/shop.db"}}}}\n'
        "builder: {live: {ssh: builder.example, user: agent, key: file:/keys/agent, known_hosts: file:/keys/known}}\n"
    )
    (folder / "web").write_text(web)


def act(order: int) -> str:
    RUNNING[-1].place.do(f"every:{order} python")
    return "done"


def find(order: int) -> Any:
    return Happened("done") if "python" in RUNNING[-1].effects(order) else Absent


class EveryVerb(Journey):
    """Its run is declared by a file."""

    name = "every"

    def declare(self, app: App, hook: Hook) -> Any:
        RUNNING.append(self)
        if self.name not in app.flows:
            app.broker("bus", "memory://")
            app.route("orders.done", to="bus")
            load_flows(app, self.place.directory / "flows")
        return wrapped_flow(app.flows[self.name])

    def go(self, app: App, hook: Hook = nothing) -> Any:
        try:
            return super().go(app, hook)
        except StepFailed:
            return "failed"

    def see_to(self, app: App, waiting: Waiting) -> None:
        """What it waits for comes: the callback of a command, if that was started; otherwise its time passes."""
        if "ssh" in self.effects():
            app.deliver_to(flow=self.name, key=self.key, name="finished", payload={"ok": True})
        elif (until := waiting.data["until"]) is not None:
            pass_time(self.place, until - app.store.scan("none").block().now + 1)
        self.answer(app)

    def doubt(self, app: App) -> str:
        """The only step of it whose outcome is unknown."""
        (name,) = [name for name, entry in self.entries(app).items() if entry.state == "unknown"]
        return name

    def check_outside(self, app: App, seen: Outside, ended: Any) -> None:
        """What may be done twice is done once to its destination; what may not is done at most once."""
        order = self.order
        for path, keys in seen.keys.items():
            kind, *rest = path.strip("/").split("/")  # the chat has one path for all orders
            if rest[:1] == [str(order)] and kind in KEYED:
                assert len(keys) == 1, path
        assert seen.asked[f"/checked/{order}"] == 1
        assert self.effects().count("python") == 1
        assert self.effects().count("ssh") <= 1 and seen.mails[f"order {order}"] <= 1
        with closing(sqlite3.connect(self.place.directory / "shop.db")) as shop:
            assert shop.execute("SELECT taken FROM stock WHERE id = ?", (order,)).fetchone() == (1,)
            assert shop.execute("SELECT count(*) FROM orders WHERE id = ?", (order,)).fetchone() == (1,)
        sent = [one for one in block(list_messages(app.store, "default")) if one.body == {"order": order}]
        assert len(sent) <= 1
        if ended not in ("in review", "failed"):
            assert ended == RESULT and self.effects().count("ssh") == seen.mails[f"order {order}"] == 1
