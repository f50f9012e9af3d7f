"""The mail server: takes every mail it is given, writes it down, and does not always say so."""

from __future__ import annotations

import re
import socketserver
import sys
import threading
from email import message_from_bytes
from pathlib import Path

from .child import Book, stay, tell
from .plan import SIDES, read_plan

__all__ = ["MAILS"]

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


def handler_of(mails: Mails) -> type[socketserver.StreamRequestHandler]:
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


if __name__ == "__main__":
    server = _Server(("127.0.0.1", 0), handler_of(Mails(Path(sys.argv[1]))))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    tell(port=server.server_address[1])
    stay()
