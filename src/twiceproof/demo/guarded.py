"""The same job with Twiceproof: webhooks that claim each event, and flows whose steps say how they may be repeated."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

from .. import Absent, App, Happened, Retry, Unknown, by, check, env
from .client import OutsideClient
from .processes import stay, tell
from .scenario import LIMIT
from .services import Handler, open_front

outside = OutsideClient("twiceproof")
app = App(os.environ["DEMO_LEDGER"], tenant="default")
LEASE = 2.0  # seconds: short, so that the demo need not wait long for what a killed process was at
SOON = Retry(first=0.1, most=1.0)


def find_invoice(order: dict[str, Any]) -> Happened | Absent | Unknown:
    """Ask the accounting service, before anything is tried again."""
    found = outside.find_invoices(order["order"])
    return Happened(found[0]) if found else Absent()


@app.step(repeat=check(find_invoice, settling=0.5), timeout=2.5, retry=SOON)  # unknown? look there first
def make_invoice(order: dict[str, Any]) -> str:
    return outside.make_invoice(order["order"], order["total"])


@app.step(repeat="never", retry=SOON)  # unknown? ask a person: nobody can look into a customer's mailbox
def send_mail(order: dict[str, Any], invoice: str) -> None:
    outside.send_mail(order["order"], order["mail"], invoice, app.effect_key())


@app.step(repeat="safe", retry=SOON)  # unknown? do it again: it does no harm
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
    tell(port=open_front(GuardedHook, int(sys.argv[1])))
    stay()
    worker.drain()
    working.join()
    app.close()
