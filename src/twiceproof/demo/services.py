"""Accounting service, mail server."""

from __future__ import annotations

import json
import re
import socketserver
import sys
import threading
import time
from email import message_from_bytes
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from .processes import Book, stay, tell
from .scenario import SIDES, read_plan

__all__ = ["ADDRESSES", "INVOICES", "MAILS", "SLOW", "Handler", "open_front"]


class Handler(BaseHTTPRequestHandler):
    """Subclasses say what to do for `do_POST` and the like."""

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


class _Front(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A caller that was killed or has lost its patience is part of the weather."""


def open_front(handler: type[Handler], port: int = 0) -> int:
    """Serve on loopback, in threads of its own; the port."""
    front = _Front(("127.0.0.1", port), handler)
    threading.Thread(target=front.serve_forever, daemon=True).start()
    return int(front.server_address[1])


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


def accounting_handler(accounting: Accounting) -> type[Handler]:
    class AccountingHandler(Handler):
        def do_POST(self) -> None:
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

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            side, order = url.path.split("/")[1], int(parse_qs(url.query)["order"][0])
            self.answer_json(200, accounting.find(side, order))

        def do_PUT(self) -> None:
            side, _, order = self.path.split("/")[1:]
            accounting.addresses.write(side=side, order=int(order), **json.loads(self.body()))
            self.answer(200)

        def _be_killed(self, side: str) -> None:
            """Hold the line until whoever asks is dead."""
            tell(kill=int(self.headers["x-process"]), side=side)
            self.connection.settimeout(LONGEST_WAIT)
            self.connection.recv(1)

    return AccountingHandler


MAILS = "mails.jsonl"
SENDER = re.compile(r"FROM:<orders@(\w+)\.example>", re.IGNORECASE)


class Mails:
    def __init__(self, place: Path) -> None:
        self.book = Book(place / MAILS)
        self._weather = {side: dict(read_plan(place).mail) for side in SIDES}

    def take(self, side: str, data: bytes) -> bool:
        """Whether the sender shall hear of it."""
        mail = message_from_bytes(data)
        order = int(mail["X-Order"])
        self.book.write(side=side, order=order, to=mail["To"], subject=mail["Subject"])
        lost = self._weather[side].pop(order, "") == "lost"
        if lost:
            tell(lost=side)
        return not lost


def mail_handler(mails: Mails) -> type[socketserver.StreamRequestHandler]:
    class MailHandler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            side = ""
            self._say("220 mail.example")
            while line := self.rfile.readline().decode().strip():
                verb = line.split(" ")[0].upper()
                if verb == "DATA":
                    self._say("354 go on")
                    if not mails.take(side, self._data()):
                        return  # taken, and nobody hears of it
                elif found := SENDER.search(line):
                    side = found[1]
                self._say("221 bye" if verb == "QUIT" else "250 OK")

        def _say(self, line: str) -> None:
            self.wfile.write(f"{line}\r\n".encode())

        def _data(self) -> bytes:
            lines = []
            while (line := self.rfile.readline()) not in (b".\r\n", b""):
                lines.append(line)
            return b"".join(lines)

    return MailHandler


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """A sender that was killed is part of the weather."""


def _serve_mail(place: Path) -> int:
    server = _Server(("127.0.0.1", 0), mail_handler(Mails(place)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return int(server.server_address[1])


def main(service: str, place: Path) -> None:
    """Serve `accounting` or `mail`, tell the port, and stay until the demo ends."""
    tell(port=open_front(accounting_handler(Accounting(place))) if service == "accounting" else _serve_mail(place))
    stay()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
