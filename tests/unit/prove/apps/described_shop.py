"""Effects and steps of every class, for the list of `twiceproof check --steps`."""

from __future__ import annotations

from twiceproof import App, keyed
from twiceproof.effects import http, mail, sql

app = App("memory://")
RELAY = mail.smtp("127.0.0.1")
SENT = mail.imap("127.0.0.1", user="shop", password="none")
OFFICE = mail.graph(auth=lambda: "a token")
CRM = "sqlite:///crm.db"


@app.effect
def refunds(result):
    return http.post("https://api.stripe.com/v1/refunds", form={"charge": result["id"]}, provider="stripe")


@app.effect(undo=refunds)
def pays(order):
    return http.post("https://api.stripe.com/v1/charges", form=order, provider="stripe")


@app.effect
def pays_by_its_own_word(order):
    return http.post("https://pay.test/charges", json=order, repeat=keyed(window="1h"))


@app.effect
def saves(order):
    return sql.upsert(CRM, "orders", key={"id": order["id"]}, values={"total": order["total"]})


@app.effect
def invoices(order):
    return http.post("https://books.test/invoices", json=order, look=http.find("GET /invoices?reference={key}"))


@app.effect
def mails(order):
    return mail.send(order["mail"], via=RELAY)


@app.effect
def mails_and_looks(order):
    return mail.send(order["mail"], via=RELAY, look=SENT)


@app.effect
def mails_by_draft(order):
    return mail.send(order["mail"], via=OFFICE)


@app.effect
def mails_by_gmail(order):
    return mail.send(order["mail"], via=mail.gmail(auth=lambda: "a token"))


@app.effect
def changes(order):
    return http.change("https://books.test/orders/17", dict)


@app.effect
def changes_by_mark(order):
    return http.change("https://books.test/orders/17", dict, mark="applied")


@app.effect
def chooses(order):
    if order["total"]:
        return http.put("https://books.test/orders/17", json=order)
    return http.post("https://books.test/orders", json=order)


@app.step(repeat="safe")
def counts(order): ...


@app.step(repeat="never")
def decides(order): ...
