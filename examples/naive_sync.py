"""The order sync and the welcome mail as they are often written: steps that are declared safe, and are not."""

import json
import smtplib
import urllib.request
from email.message import EmailMessage
from typing import Any

from twiceproof import App, Retry
from twiceproof.prove.worlds.http import HttpWorld
from twiceproof.prove.worlds.smtp import SmtpWorld

app = App("sqlite:///naive.db")
BOOKS = "https://books.example"
SOON = Retry(attempts=3, first="10ms")


def send(method: str, url: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}, method=method
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        return dict(json.load(answer))


def send_mail(to: str, subject: str) -> None:
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = "shop@shop.example", to, subject
    with smtplib.SMTP("mail.shop.example", 25, timeout=10) as server:
        server.send_message(message)


@app.step(repeat="safe", retry=SOON)
def create_invoice(order: dict[str, Any]) -> str:
    return str(send("POST", f"{BOOKS}/invoices", {"customer": order["customer"], "total": order["total"]})["id"])


@app.step(repeat="safe", retry=SOON)
def send_confirmation(order: dict[str, Any], invoice: str) -> None:
    send_mail(order["email"], f"Invoice {invoice}")


@app.flow(key="shop:order:{order[id]}")
def sync_order(order: dict[str, Any]) -> str:
    invoice = create_invoice(order)
    send_confirmation(order, invoice)
    return invoice


@app.flow(key="welcome:{customer[id]}")
def welcome(customer: dict[str, Any]) -> None:
    send_mail(customer["email"], "Welcome")  # in no step at all


def main() -> None:
    order = {"id": 10492, "customer": 8821, "email": "ada@example.org", "total": 120}
    answers = {"POST /invoices": {"status": 201, "body": {"id": "inv-5530"}}}
    with HttpWorld(["books.example"], answers=answers) as web, SmtpWorld(["mail.shop.example"]) as post:
        web.lose(1)  # the first request is carried out, and its answer lost
        post.lose(1)
        print(sync_order(order))
        for what, count in (web.look() | post.look()).items():
            print(count, "×", what.partition(" #")[0])
    app.close()


if __name__ == "__main__":
    main()

# Prints:
# inv-5530
# 2 × POST books.example/invoices
# 2 × mail to ada@example.org: Invoice inv-5530
