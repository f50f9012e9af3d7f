"""Every line of the checklist, broken once. Read by the tests, never run."""

import random
import sqlite3
import time
from datetime import datetime
from uuid import uuid4

import httpx2 as httpx

from twiceproof import App, Retry

app = App("memory://")
database = sqlite3.connect(":memory:")


@app.step  # expect: undeclared-step
def silent(order): ...


@app.step(repeat="safe")
def insert_row(order):
    database.execute("INSERT INTO invoices VALUES (?)", (order["id"],))  # expect: create-not-upsert


@app.step(repeat="safe")
def post_invoice(order):
    httpx.post("http://127.0.0.1:1/invoices", json=order)  # expect: create-not-upsert


@app.step(repeat="never")
def charge(order): ...


@app.step(repeat="keyed", retry=Retry(attempts=3))
def keep_trying(order):
    while True:  # expect: unbounded-retry
        try:
            return httpx.put("http://127.0.0.1:1/", json=order)
        except httpx.HTTPError:
            continue


@app.step(repeat="never")
def mail_everybody(customers):
    for customer in customers:  # expect: batch-with-one-marker
        httpx.post("http://127.0.0.1:1/mail", json=customer)


@app.step(repeat="safe")
def ship_line(line): ...


@app.flow(key="nightly")  # expect: unit-of-work
def no_unit(order):
    silent(order)


@app.flow(key="order:{order[id]}:{attempt}")  # expect: unstable-key
def attempt_in_key(order, attempt):
    insert_row(order)


def _random_key(order):
    return f"order:{uuid4()}"  # expect: unstable-key


@app.flow(key=_random_key)
def random_key(order):
    post_invoice(order)


@app.flow(key="order:{order[id]}")
def charges_first(order):
    charge(order)  # expect: dangerous-before-safe
    ship_line(order)


@app.flow(key="order:{order[id]}")
def cannot_go_back(order):
    keep_trying(order)  # expect: missing-undo
    mail_everybody(order)


@app.flow(key="order:{order[id]}")
def changing(order):
    order["seen"] = datetime.now().isoformat()  # expect: changing-body
    if random.random() < 0.5:  # expect: changing-body
        time.time()  # expect: changing-body
    for line in set(order["lines"]):  # expect: changing-body
        ship_line(line)  # expect: loop-without-id


@app.flow(key="order:{order[id]}")
def calls_outside(order):
    httpx.get("http://127.0.0.1:1/")  # expect: effect-outside-step
