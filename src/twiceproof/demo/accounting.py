"""The accounting service: makes an invoice for every request, knows no keys, and can be asked what it has."""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from .child import Book, stay, tell
from .http_front import Handler, open_front
from .plan import SIDES, read_plan

__all__ = ["ADDRESSES", "INVOICES", "SLOW"]

INVOICES, ADDRESSES = "invoices.jsonl", "addresses.jsonl"
SLOW = 1.9  # seconds: longer than the shop waits for an answer
LONGEST_WAIT = 10.0  # for a kill


class Accounting:
    """Both programs are its customers, with books of their own; the same weather waits for both."""

    def __init__(self, place: Path) -> None:
        weather = read_plan(place).accounting
        self.invoices, self.addresses = Book(place / INVOICES), Book(place / ADDRESSES)
        self._weather = {side: dict(weather) for side in SIDES}
        self._numbering = threading.Lock()
        self._number = 0

    def weather(self, side: str, order: int) -> str:
        return self._weather[side].pop(order, "")

    def make_invoice(self, side: str, order: int, total: int) -> str:
        with self._numbering:
            self._number += 1
            invoice = f"INV-{self._number:04}"
        self.invoices.write(side=side, order=order, total=total, invoice=invoice)
        return invoice

    def find(self, side: str, order: int) -> list[str]:
        return [line["invoice"] for line in self.invoices.lines if (line["side"], line["order"]) == (side, order)]


def handler_of(accounting: Accounting) -> type[Handler]:
    class AccountingHandler(Handler):
        def do_POST(self) -> None:  # noqa: N802 - its name in the base class
            side, asked = self.path.split("/")[1], json.loads(self.body())
            weather = accounting.weather(side, asked["order"])
            if weather == "killed-before":
                self._be_killed(side)
                return
            invoice = accounting.make_invoice(side, asked["order"], asked["total"])
            match weather:
                case "killed-after":
                    self._be_killed(side)
                case "lost":
                    tell(lost=side)  # done, and nobody hears of it
                case _:
                    time.sleep(SLOW if weather == "slow" else 0.0)
                    self.answer_json(201, {"invoice": invoice})

        def do_GET(self) -> None:  # noqa: N802
            url = urlsplit(self.path)
            side, order = url.path.split("/")[1], int(parse_qs(url.query)["order"][0])
            self.answer_json(200, accounting.find(side, order))

        def do_PUT(self) -> None:  # noqa: N802
            side, _, order = self.path.split("/")[1:]
            accounting.addresses.write(side=side, order=int(order), **json.loads(self.body()))
            self.answer(200)

        def _be_killed(self, side: str) -> None:
            """Hold the line until whoever asks is dead."""
            tell(kill=int(self.headers["x-process"]), side=side)
            self.connection.settimeout(LONGEST_WAIT)
            self.connection.recv(1)

    return AccountingHandler


if __name__ == "__main__":
    tell(port=open_front(handler_of(Accounting(Path(sys.argv[1])))))
    stay()
