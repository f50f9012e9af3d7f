"""The client that both programs use to call the accounting service and the mail server."""

from __future__ import annotations

import json
import os
import smtplib
from email.message import EmailMessage
from http.client import HTTPConnection
from typing import Any

__all__ = ["OutsideClient"]


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
