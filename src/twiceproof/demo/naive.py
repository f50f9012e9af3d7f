"""The naive script of the demo: it checks signatures, retries after errors, and records the orders it has finished."""

from __future__ import annotations

import hmac
import json
import os
import sqlite3
import sys
import time
from base64 import b64decode, b64encode
from collections.abc import Callable
from contextlib import closing
from email.message import Message
from typing import Any

from .processes import report, wait_for_parent
from .services import Handler, OutsideClient, serve_http

__all__ = ["handle"]


outside = OutsideClient("naive")
SECRET = b64decode(os.environ["DEMO_SECRET"].removeprefix("whsec_"))
DATABASE = os.environ["DEMO_NAIVE_DATABASE"]


def handle(path: str, data: dict[str, Any]) -> bool:
    """Do the work of a message; return False if the order was finished before."""
    if path == "/hooks/addresses":
        outside.put_address(data["order"], data["address"], data["version"])
        return True
    if is_finished(data["order"]):
        return False
    invoice = with_retries(lambda: outside.make_invoice(data["order"], data["total"]))
    with_retries(lambda: outside.send_mail(data["order"], data["mail"], invoice))
    remember(data["order"])
    return True


def with_retries(work: Callable[[], Any]) -> Any:
    """Try three times, with a pause, as most scripts do."""
    for pause in (0.1, 0.2):
        try:
            return work()
        except OSError:
            time.sleep(pause)
    return work()


def is_finished(order: int) -> bool:
    with closing(opened()) as database:
        return database.execute("SELECT 1 FROM finished WHERE id = ?", (order,)).fetchone() is not None


def remember(order: int) -> None:
    with closing(opened()) as database:
        database.execute("INSERT OR IGNORE INTO finished VALUES (?)", (order,))


def opened() -> sqlite3.Connection:
    database = sqlite3.connect(DATABASE, timeout=10, isolation_level=None)
    database.execute("CREATE TABLE IF NOT EXISTS finished (id INTEGER PRIMARY KEY)")
    return database


def is_signed(headers: Message, body: bytes) -> bool:
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    wanted = "v1," + b64encode(hmac.digest(SECRET, signed, "sha256")).decode()
    return hmac.compare_digest(wanted, headers["webhook-signature"] or "")


class NaiveHook(Handler):
    def do_POST(self) -> None:  # noqa: N802 - its name in the base class
        body = self.body()
        if not is_signed(self.headers, body):
            self.answer(401)
            return
        try:
            new = handle(self.path, json.loads(body))
        except OSError:
            self.answer(500)  # the shop sends it again
        else:
            self.answer_json(200, {"duplicate": not new})


if __name__ == "__main__":
    report(port=serve_http(NaiveHook, int(sys.argv[1])))
    wait_for_parent()
