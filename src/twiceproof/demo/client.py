"""How both programs speak to the outside: the same calls, in the same words."""

from __future__ import annotations

import json
import os
import smtplib
from email.message import EmailMessage
from http.client import HTTPConnection
from typing import Any

__all__ = ["OutsideClient"]


PATIENCE = 10.0  # seconds: the weather is bad enough without time-outs of ours


class OutsideClient:
    """The accounting service and the mail server, as one of the two programs has them."""

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
        with smtplib.SMTP("127.0.0.1", self._mail, local_hostname="localhost", timeout=PATIENCE) as server:
            server.send_message(mail)

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        connection = HTTPConnection("127.0.0.1", self._accounting, timeout=PATIENCE)
        try:
            given = b"" if body is None else json.dumps(body).encode()
            connection.request(method, f"/{self.side}/{path}", given, {"x-process": str(os.getpid())})
            answer = connection.getresponse()
            return json.loads(answer.read())
        finally:
            connection.close()
