"""Every line of the checklist, broken once. Read by the tests, never run."""

import asyncio
import random
import smtplib
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from random import random as draw
from uuid import uuid4

import httpx2 as httpx

from twiceproof import App, Retry, keyed
from twiceproof.effects import files, http, mail

app = App("memory://")
database = sqlite3.connect(":memory:")
POOL = ThreadPoolExecutor()


@app.step  # expect: undeclared-step
def silent(order): ...


@app.step(repeat="safe")
def insert_row(order):
    database.execute("INSERT INTO invoices VALUES (?)", (order["id"],))  # expect: create-not-upsert


@app.step(repeat="safe")
def post_invoice(order):
    httpx.post("http://127.0.0.1:1/invoices", json=order)  # expect: create-not-upsert


@app.step(repeat="safe")
def publish_by_hand(order, channel):
    channel.basic_publish("orders", "paid", order["id"])  # expect: published-by-hand


@app.step(repeat="never")
def charge(order): ...


@app.step(repeat="keyed", retry=Retry(attempts=3))  # expect: keyed-without-key
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


# -- what is one step away ---------------------------------------------------------------------


@app.step(repeat="safe")
def post_by_a_client(order):
    with httpx.Client() as client:
        client.post("http://127.0.0.1:1/invoices", json=order)  # expect: create-not-upsert


@app.step(repeat="never")
def mail_in_a_comprehension(customers):
    client = httpx.Client()
    [client.post("http://127.0.0.1:1/mail", json=one) for one in customers]  # expect: batch-with-one-marker


@app.step(repeat="keyed")  # expect: keyed-without-key
def charge_under_a_new_key(order):
    httpx.post("http://127.0.0.1:1/", headers={"Idempotency-Key": str(uuid4())})  # expect: unstable-key


@app.step  # expect: undeclared-step
def only_in_each(line): ...


def tell_the_warehouse(order):
    httpx.post("http://127.0.0.1:1/warehouse", json=order)  # expect: effect-outside-step


@app.flow(key=lambda order: f"order:{order['id']}:{time.time()}")  # expect: unstable-key
def timed_key(order):
    app.each(order["lines"], only_in_each, key=str)


@app.flow(key="order:{order[id]}")
def hidden_a_little(order):
    import urllib.request as web

    tell_the_warehouse(order)
    web.urlopen("http://127.0.0.1:1/")  # expect: effect-outside-step
    with httpx.Client() as client:
        client.put("http://127.0.0.1:1/")  # expect: effect-outside-step
    Path("orders.txt").write_text("one")  # expect: effect-outside-step
    with open("orders.txt", "a") as orders:  # expect: effect-outside-step  # noqa: PTH123
        orders.write("two")
    lines = set(order["lines"])
    for line in lines - {""}:  # expect: changing-body
        print(line, draw())  # expect: changing-body


@app.flow(key="order:{order[id]}")
async def awaited(order):
    async with httpx.AsyncClient() as client:
        await client.post("http://127.0.0.1:1/")  # expect: effect-outside-step


@app.flow(key="order:{order[id]}")
def on_threads(order):
    with ThreadPoolExecutor() as pool:  # expect: own-threads
        list(pool.map(insert_row, order["lines"]))  # expect: own-threads
    POOL.submit(insert_row, order).result()  # expect: own-threads
    thread = threading.Thread(target=insert_row, args=(order,))  # expect: own-threads
    thread.start()
    thread.join()


@app.flow(key="order:{order[id]}")
async def in_an_executor(order):
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(None, insert_row, order)  # expect: own-threads


@app.flow(key="order:{order[id]}")
def tries_for_ever(order):
    while True:  # expect: unbounded-retry
        try:
            return app.wait_for("paid")
        except TimeoutError:
            app.sleep("1h")


@app.once(key="welcome:{attempt}")  # expect: unstable-key
def guarded_by_attempt(attempt): ...


@app.once(key="welcome")  # expect: unit-of-work
def guarded_for_all(customer): ...


@app.once(key="welcome:{customer}", repeat="safe")
def guarded_create(customer):
    httpx.post("http://127.0.0.1:1/customers", json=customer)  # expect: create-not-upsert


# -- what is never awaited ---------------------------------------------------------------------


@app.step(repeat="safe", id="{line}")
async def reserve(line): ...


@app.flow(key="reservation:{order[id]}")
async def reservation(order): ...


@app.once(key="greeting:{customer}")
async def greet(customer): ...


async def reserve_a_gift(order):
    reserve(order["gift"])  # expect: forgotten-await


@app.flow(key="order:{order[id]}")
async def forgets(order):
    reserve(order["line"])  # expect: forgotten-await
    app.sleep("3d")  # expect: forgotten-await
    app.send("orders.paid", order)  # expect: forgotten-await
    app.waiting_for("paid", type=dict)  # expect: forgotten-await
    app.each(order["lines"], reserve)  # expect: forgotten-await
    reservation.start(order)  # expect: forgotten-await
    greet(order["customer"])  # expect: forgotten-await
    held = reserve(order["other"])  # expect: forgotten-await
    if held["id"]:
        await reserve_a_gift(order)
    return reservation(order)  # expect: forgotten-await


@app.flow(key="order:{order[id]}")
async def all_at_once(order):
    await asyncio.gather(*(reserve(line) for line in order["lines"]))  # expect: own-tasks
    async with asyncio.TaskGroup() as group:
        group.create_task(reserve(order["other"]))  # expect: own-tasks
    task = asyncio.create_task(app.wait_for("paid"))  # expect: own-tasks
    return await task


@app.flow(key="order:{order[id]}")
def cannot_await(order):
    reserve(order["line"])  # expect: async-in-def-flow
    return reservation(order)  # expect: async-in-def-flow


# -- providers ---------------------------------------------------------------------------------


STRIPE = "https://api.stripe.com/v1"
RELAY = mail.smtp("127.0.0.1")
QONTO = "https://thirdparty.qonto.com/v2/transfers"


@app.step(repeat="never")
def charge_without_key(order):
    httpx.post(f"{STRIPE}/charges", json=order)  # expect: provider-without-key


@app.effect
def charge_effect_without_key(order):
    return http.post(STRIPE + "/charges", form=order)  # expect: provider-without-key


@app.step(repeat="keyed")
def mails_with_a_day(order):
    httpx.post("https://api.brevo.com/v3/smtp/email", json=keyed_body(app.effect_key()))  # expect: window-too-long


@app.effect
def pays_with_two_months(order):
    return http.post(QONTO, json=order, provider="qonto", repeat=keyed(window="60d"))  # expect: window-too-long


@app.effect
def posts_as_safe(order):
    return http.post("https://books.test/invoices", json=order, repeat="safe")  # expect: create-not-upsert


@app.step(repeat="safe")
def greets_as_safe(order):
    with smtplib.SMTP("127.0.0.1") as server:
        server.send_message(order["mail"])  # expect: mail-as-safe


def keyed_body(key): ...


# -- effects -----------------------------------------------------------------------------------


@app.effect
def mails(order):
    return mail.send(order["mail"], via=RELAY)


@app.effect
def saves(order):
    return files.write("orders.txt", "one")


@app.step(repeat="never")
def describes_only(order):
    return http.post("https://books.test/invoices", json=order)  # expect: effect-not-performed


@app.once(key="order:{order[id]}")
def guards_a_description(order):
    files.write("orders.txt", "one")  # expect: effect-not-performed


@app.flow(key="order:{order[id]}")
def effects_that_are_only_described(order):
    http.put("https://books.test/invoices/17", json=order)  # expect: effect-not-performed
    mails(order)  # expect: dangerous-before-safe
    saves(order)
    return files.write("orders.txt", "one")  # expect: effect-not-performed


# -- what may not be kept ----------------------------------------------------------------------


@app.step(repeat="safe")
def reads_a_report(path):
    return Path(path).read_bytes()  # expect: unkept-result


@app.step(repeat="safe")
async def downloads_a_report(url):
    async with httpx.AsyncClient() as client:
        answer = await client.get(url)
    return answer.content  # expect: unkept-result
