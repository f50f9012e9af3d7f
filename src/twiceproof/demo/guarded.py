"""The same job with Twiceproof: webhooks that claim each event, and flows whose steps declare how to repeat them."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

from .. import Absent, App, Happened, Retry, Unknown, by, check, env
from .processes import report, wait_for_parent
from .scenario import LIMIT
from .services import Handler, OutsideClient, serve_http

outside = OutsideClient("twiceproof")
app = App(os.environ["DEMO_LEDGER"], tenant="default")
LEASE = 2.0  # seconds: short, so that the work of a killed process is soon recovered
SOON = Retry(first=0.1, most=1.0)


def find_invoice(order: dict[str, Any]) -> Happened | Absent | Unknown:
    """Ask the accounting service whether the invoice exists, before another attempt."""
    found = outside.find_invoices(order["order"])
    return Happened(found[0]) if found else Absent()


@app.step(repeat=check(find_invoice, settling=0.5), timeout=2.5, retry=SOON)  # outcome unknown: check first
def make_invoice(order: dict[str, Any]) -> str:
    return outside.make_invoice(order["order"], order["total"])


@app.step(repeat="never", retry=SOON)  # outcome unknown: a person decides, as a mailbox cannot be queried
def send_mail(order: dict[str, Any], invoice: str) -> None:
    outside.send_mail(order["order"], order["mail"], invoice, app.effect_key())


@app.step(repeat="safe", retry=SOON)  # outcome unknown: repeat it, which does no harm
def put_address(change: dict[str, Any]) -> None:
    outside.put_address(change["order"], change["address"], change["version"])


@app.flow(key="order:{order[order]}", lease=LEASE)
def bill_order(order: dict[str, Any]) -> str:
    if order["total"] > LIMIT:
        app.approve("bill", show=order, timeout="2d")
    invoice: str = make_invoice(order)
    send_mail(order, invoice)
    return invoice


@app.flow(
    key="order:{change[order]}", lease=LEASE, order=by(object="{change[order]}", version="{change[version]}")
)  # an older address never replaces a newer one
def keep_address(change: dict[str, Any]) -> None:
    put_address(change)


app.webhook("standard_webhooks", name="orders", secret=env("DEMO_SECRET"), start=bill_order, lease=LEASE)
app.webhook("standard_webhooks", name="addresses", secret=env("DEMO_SECRET"), start=keep_address, lease=LEASE)


class GuardedHook(Handler):
    def do_POST(self) -> None:  # noqa: N802 - its name in the base class
        reply = app.receive(self.path.removeprefix("/hooks/"), self.body(), self.headers.items())
        self.answer(reply.status, reply.body)


if __name__ == "__main__":
    worker = app.worker(concurrency=2)
    working = threading.Thread(target=worker.run)
    working.start()
    try:
        report(port=serve_http(GuardedHook, int(sys.argv[1])))
        wait_for_parent()
    finally:  # a parent that is gone already cannot be told: its worker must not be left behind
        worker.drain()
        working.join()
        app.close()
