"""The accounting service and the mail server of the demo, with their faults; and the client of both."""

from __future__ import annotations

import json
import os
import re
import smtplib
import socketserver
import sys
import threading
import time
from email import message_from_bytes
from email.message import EmailMessage
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from .processes import EffectLog, report, wait_for_parent
from .scenario import SIDES, read_plan

__all__ = ["ADDRESSES", "INVOICES", "MAILS", "SLOW", "Handler", "OutsideClient", "serve_http"]


class Handler(BaseHTTPRequestHandler):
    """Base of the HTTP handlers; subclasses define `do_POST` and the like."""

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("content-length") or 0))

    def answer(self, status: int, body: bytes = b"{}") -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def answer_json(self, status: int, value: Any) -> None:
        self.answer(status, json.dumps(value).encode())

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name in the base class
        """No line per request."""


class _HttpServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do not log: clients that were killed or timed out are part of the demo."""


def serve_http(handler: type[Handler], port: int = 0) -> int:
    """Serve on loopback, in background threads, and return the port."""
    server = _HttpServer(("127.0.0.1", port), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return int(server.server_address[1])


INVOICES, ADDRESSES = "invoices.jsonl", "addresses.jsonl"
SLOW = 1.9  # seconds: longer than the shop waits for a response
LONGEST_WAIT = 10.0  # seconds to wait for a kill


class Accounting:
    """The accounting service. It records the effects of each program apart, and gives both the same faults."""

    def __init__(self, place: Path) -> None:
        faults = read_plan(place).accounting
        self.invoices, self.addresses = EffectLog(place / INVOICES), EffectLog(place / ADDRESSES)
        self._faults = {side: dict(faults) for side in SIDES}
        self._numbering = threading.Lock()
        self._number = 0

    def fault(self, side: str, order: int) -> str:
        """Return the fault of the next request for an order, once; empty for none."""
        return self._faults[side].pop(order, "")

    def make_invoice(self, side: str, order: int, total: int) -> str:
        with self._numbering:
            self._number += 1
            invoice = f"INV-{self._number:04}"
        self.invoices.write(side=side, order=order, total=total, invoice=invoice)
        return invoice

    def find(self, side: str, order: int) -> list[str]:
        return [line["invoice"] for line in self.invoices.lines if (line["side"], line["order"]) == (side, order)]


def accounting_handler(accounting: Accounting) -> type[Handler]:
    class AccountingHandler(Handler):
        def do_POST(self) -> None:
            side, request = self.path.split("/")[1], json.loads(self.body())
            fault = accounting.fault(side, request["order"])
            if fault == "killed-before":
                self._kill_client(side)
                return
            invoice = accounting.make_invoice(side, request["order"], request["total"])
            match fault:
                case "killed-after":
                    self._kill_client(side)
                case "lost":
                    report(lost=side)  # the invoice is made, and no response is sent
                case _:
                    time.sleep(SLOW if fault == "slow" else 0.0)
                    self.answer_json(201, {"invoice": invoice})

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            side, order = url.path.split("/")[1], int(parse_qs(url.query)["order"][0])
            self.answer_json(200, accounting.find(side, order))

        def do_PUT(self) -> None:
            side, _, order = self.path.split("/")[1:]
            accounting.addresses.write(side=side, order=int(order), **json.loads(self.body()))
            self.answer(200)

        def _kill_client(self, side: str) -> None:
            """Have the client process killed, and keep the connection open until it is dead."""
            report(kill=int(self.headers["x-process"]), side=side)
            self.connection.settimeout(LONGEST_WAIT)
            self.connection.recv(1)

    return AccountingHandler


MAILS = "mails.jsonl"
SENDER = re.compile(r"FROM:<orders@(\w+)\.example>", re.IGNORECASE)


class Mails:
    """The mails that were sent, and the faults of the mail server."""

    def __init__(self, place: Path) -> None:
        self.log = EffectLog(place / MAILS)
        self._faults = {side: dict(read_plan(place).mail) for side in SIDES}

    def take(self, side: str, data: bytes) -> bool:
        """Record a mail; return whether the sender gets a response."""
        mail = message_from_bytes(data)
        order = int(mail["X-Order"])
        self.log.write(side=side, order=order, to=mail["To"], subject=mail["Subject"])
        lost = self._faults[side].pop(order, "") == "lost"
        if lost:
            report(lost=side)
        return not lost


def mail_handler(mails: Mails) -> type[socketserver.StreamRequestHandler]:
    class MailHandler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            side = ""
            self._send("220 mail.example")
            while line := self.rfile.readline().decode().strip():
                verb = line.split(" ")[0].upper()
                if verb == "DATA":
                    self._send("354 go on")
                    if not mails.take(side, self._data()):
                        return  # the mail is accepted, and no response is sent
                elif found := SENDER.search(line):
                    side = found[1]
                self._send("221 bye" if verb == "QUIT" else "250 OK")

        def _send(self, line: str) -> None:
            self.wfile.write(f"{line}\r\n".encode())

        def _data(self) -> bytes:
            lines = []
            while (line := self.rfile.readline()) not in (b".\r\n", b""):
                lines.append(line)
            return b"".join(lines)

    return MailHandler


class _MailServer(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """Do not log: clients that were killed are part of the demo."""


def _serve_mail(place: Path) -> int:
    server = _MailServer(("127.0.0.1", 0), mail_handler(Mails(place)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return int(server.server_address[1])


def main(service: str, place: Path) -> None:
    """Serve `accounting` or `mail`, report the port, and wait until the demo ends."""
    report(port=serve_http(accounting_handler(Accounting(place))) if service == "accounting" else _serve_mail(place))
    wait_for_parent()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))


TIMEOUT = 10.0  # seconds: long, so that the only timeouts are the planned ones


class OutsideClient:
    """Calls of one program to the accounting service and the mail server."""

    def __init__(self, side: str) -> None:
        self.side = side
        self._accounting = int(os.environ["DEMO_ACCOUNTING_PORT"])
        self._mail = int(os.environ["DEMO_MAIL_PORT"])

    def make_invoice(self, order: int, total: int) -> str:
        made: dict[str, str] = self._call("POST", "invoices", {"order": order, "total": total})
        return made["invoice"]

    def find_invoices(self, order: int) -> list[str]:
        found: list[str] = self._call("GET", f"invoices?order={order}")
        return found

    def put_address(self, order: int, address: str, version: int) -> None:
        self._call("PUT", f"addresses/{order}", {"address": address, "version": version})

    def send_mail(self, order: int, to: str, invoice: str, message_id: str = "") -> None:
        mail = EmailMessage()
        mail["From"], mail["To"], mail["X-Order"] = f"orders@{self.side}.example", to, str(order)
        mail["Subject"] = f"Thank you for order {order}"
        if message_id:
            mail["Message-ID"] = f"<{message_id}@{self.side}.example>"
        mail.set_content(f"Your invoice is {invoice}.")
        with smtplib.SMTP("127.0.0.1", self._mail, local_hostname="localhost", timeout=TIMEOUT) as server:
            server.send_message(mail)

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        connection = HTTPConnection("127.0.0.1", self._accounting, timeout=TIMEOUT)
        try:
            given = b"" if body is None else json.dumps(body).encode()
            connection.request(method, f"/{self.side}/{path}", given, {"x-process": str(os.getpid())})
            response = connection.getresponse()
            return json.loads(response.read())
        finally:
            connection.close()
