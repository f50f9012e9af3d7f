"""Order to invoice, made of ready-made effects: each says how it may be repeated, so the flow does not have to."""

from typing import Any

from twiceproof import App, env
from twiceproof.effects import http, mail
from twiceproof.prove.worlds.http import HttpWorld
from twiceproof.prove.worlds.smtp import SmtpWorld

app = App("sqlite:///sync.db")
BOOKS, STORE = "https://books.example", "https://store.example"
relay = mail.smtp("mail.shop.example", port=25, tls="none")
sent = mail.imap("mail.shop.example", user="shop", password=env("MAIL_PASSWORD"), copies=True)

Order = dict[str, Any]


@app.effect
def save_customer(order: Order) -> http.HttpEffect:  # PUT by the store's own id creates or replaces: safe
    return http.put(f"{BOOKS}/customers/{order['customer']}", json={"email": order["email"]})


@app.effect
def delete_invoice(result: dict[str, str]) -> http.HttpEffect:
    return http.delete(f"{BOOKS}/invoices/{result['id']}")


@app.effect(external="invoice:{result[id]}", undo=delete_invoice)
def create_invoice(order: Order) -> http.HttpEffect:  # the books take no key, and can be searched for ours: check
    body = {"customer": order["customer"], "total": order["total"], "reference": http.KEY}
    found = http.find("GET /invoices?reference={key}", at="items[0]", absent=404)
    return http.post(f"{BOOKS}/invoices", json=body, look=found)


@app.effect
def mark_synced(order: Order) -> http.HttpEffect:
    return http.put(f"{STORE}/orders/{order['id']}/status", json={"status": "synced"})


@app.effect
def send_confirmation(order: Order, invoice: str) -> mail.MailSending:  # looked for in the sent folder: check
    message = mail.message(sender="shop@shop.example", to=order["email"], subject=f"Invoice {invoice}", text="Thanks!")
    return mail.send(message, via=relay, look=sent)


@app.flow(key="shop:order:{order[id]}")
def sync_order(order: Order) -> str:
    save_customer(order)
    invoice = create_invoice(order)["id"]
    mark_synced(order)
    send_confirmation(order, invoice)  # what cannot be taken back comes last
    return str(invoice)


def main() -> None:
    order = {"id": 10492, "customer": 8821, "email": "ada@example.org", "total": 120}
    answers = {"POST /invoices": {"status": 201, "body": {"id": "inv-5530"}}}
    with (
        HttpWorld(["books.example", "store.example"], answers=answers) as web,
        SmtpWorld(["mail.shop.example"]) as post,
    ):
        print({sync_order(order) for _ in range(3)})  # the daily job ran three times
        for what, count in (web.look() | post.look()).items():
            print(count, "×", what.partition(" #")[0])
    for step in app.history("sync_order/shop:order:10492").steps:
        print(*filter(None, (step.name, step.repeat, step.external)))
    app.close()


if __name__ == "__main__":
    main()

# Prints:
# {'inv-5530'}
# 1 × PUT books.example/customers/8821
# 1 × POST books.example/invoices
# 1 × PUT store.example/orders/10492/status
# 1 × mail to ada@example.org: Invoice inv-5530
# save_customer safe
# create_invoice check invoice:inv-5530
# mark_synced safe
# send_confirmation check
