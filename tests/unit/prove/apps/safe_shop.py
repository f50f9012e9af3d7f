"""The same shop, as it should be written. Nothing is found in it."""

import asyncio
import smtplib
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2 as httpx

from twiceproof import Absent, App, Retry, check, keyed, provider
from twiceproof.effects import files, http
from twiceproof.effects import mail as mailing

app = App("memory://")
database = sqlite3.connect(":memory:")


def find_charge(order):
    return Absent


@app.step(repeat="safe")
def send_instead(order):
    app.send("orders.paid", order)


@app.step(repeat="safe")
def upsert_row(order):
    database.execute("INSERT INTO invoices VALUES (?) ON CONFLICT DO NOTHING", (order["id"],))


@app.step(repeat="safe")
def put_invoice(order):
    httpx.put(f"http://127.0.0.1:1/invoices/{order['id']}", json=order)


def refund(order): ...


@app.step(repeat=check(find_charge), undo=refund, retry=Retry(attempts=3))
def charge(order):
    httpx.post("http://127.0.0.1:1/charges", json=order)


@app.step(repeat="safe", id="{line[sku]}")
def ship_line(line): ...


@app.step(repeat="never", id="{customer}")
def mail(customer):
    httpx.post("http://127.0.0.1:1/mail", json=customer)


@app.flow(key="order:{order[id]}")
def sync_order(order):
    order["seen"] = app.now().isoformat()
    upsert_row(order)
    put_invoice(order)
    charge(order)
    for line in sorted(order["lines"], key=lambda line: line["sku"]):
        ship_line(line)
    app.each(order["customers"], mail, key=str)


@app.flow(key="order:{order[id]}:{attempt}", stable=("attempt",))
def numbered(order, attempt):
    upsert_row(order)
    mail(order["customer"])  # twiceproof: allow missing-undo, dangerous-before-safe
    put_invoice(order)


def total(order):
    return sum(line["price"] for line in order["lines"])


@app.flow(key=lambda order: f"order:{order['id']}")
def one_way_or_the_other(order, httpx):
    """What a name hides is not what it hides it with; and what stands in another arm does not come after."""
    httpx.post(total(order))
    if order["cancelled"]:
        mail(order["customer"])
    else:
        put_invoice(order)


@app.flow(key="order:{order[id]}")
def leaves_early(order):
    if order["cancelled"]:
        mail(order["customer"])
        return
    for line in sorted(set(order["lines"])):
        ship_line(line)
    with open("prices.txt") as prices:  # noqa: PTH123
        prices.read()
    while True:
        if app.wait_for("paid", default=None):
            break


@app.flow(key="order:{order[id]}")
def on_threads_that_know_their_run(order):
    app.gather(lambda: put_invoice(order), lambda: app.sleep("1h"))
    return app.each(order["lines"], ship_line)


@app.flow(key="order:{order[id]}")
async def on_a_thread_that_takes_it_along(order):
    await asyncio.to_thread(put_invoice, order)


@app.step(repeat="safe")
def sums(order):
    """In a step they are its own affair."""
    with ThreadPoolExecutor() as pool:
        return sum(pool.map(len, order["lines"]))


@app.once(key="welcome:{customer}")
def welcome(customer):
    httpx.post("http://127.0.0.1:1/mail", json=customer)


# -- what is awaited ---------------------------------------------------------------------------


@app.step(repeat="safe", id="{line}")
async def reserve(line): ...


@app.step(repeat="keyed", undo=refund)
def charge_by_key(order):
    httpx.post("http://127.0.0.1:1/", headers=keyed_headers())


def keyed_headers():
    return {"Idempotency-Key": app.effect_key()}


def reserving(order):
    """What a `def` makes, whoever calls it awaits."""
    return reserve(order["other"])


@app.flow(key="order:{order[id]}")
async def reservation(order):
    first, second = reserve(order["line"]), reserve(order["gift"])
    await app.gather(first, second, *[reserve(line) for line in order["lines"]])
    third = reserve(order["third"])
    await reserving(order)
    await third
    await app.sleep("3d")
    await app.send("orders.paid", order)
    await app.gather(app.waiting_for("paid", type=dict), first)
    await asyncio.gather(asyncio.sleep(1), asyncio.sleep(2))
    return await app.each(order["lines"], reserve)


@app.flow(key="order:{order[id]}")
def by_a_loop_of_its_own(order):
    return asyncio.run(reserve(order["line"]))


# -- providers ---------------------------------------------------------------------------------


STRIPE = "https://api.stripe.com/v1"


@app.step(repeat=provider("stripe"))
def charge_with_key(order):
    httpx.post(f"{STRIPE}/charges", json=order, headers=provider("stripe").headers(app.effect_key()))


@app.effect
def charge_effect(order):
    return http.post(STRIPE + "/charges", form=order, provider="stripe")


@app.step(repeat=provider("brevo"))
def mails_for_15_minutes(order):
    httpx.post("https://api.brevo.com/v3/smtp/email", json={"key": app.effect_key()})


@app.effect
def pays_for_20_minutes(order):
    return http.post("https://api.qonto.test/", json=order, provider="qonto", repeat=keyed(window="20m"))


@app.effect
def puts(order):
    return http.put("https://books.test/invoices/17", json=order, repeat="safe")


@app.effect
def lists(order):
    return http.get(f"{STRIPE}/charges")


@app.step(repeat="never")
def greets(order):
    with smtplib.SMTP("127.0.0.1") as server:
        server.send_message(order["mail"])


@app.flow(key="order:{order[id]}")
def effects_in_order(order):
    """What an effect describes decides: a PUT may come before anything."""
    puts(order)
    lists(order)
    charge_effect(order)


@app.effect
def saves(order):
    return files.write("orders.txt", "one")


@app.effect
def mails(order):
    return mailing.send(order["mail"], via=mailing.smtp("127.0.0.1"))


@app.flow(key="order:{order[id]}")
def effects_that_are_performed(order):
    app.effects.http.put("https://books.test/invoices/17", json=order)
    saves(order)
    mails(order)


@app.step(repeat="safe")
def size_of_a_report(path):
    return len(Path(path).read_bytes())


@app.step(repeat="safe")
def beginning_of_a_report(path):
    with Path(path).open() as file:
        return file.read(80)
