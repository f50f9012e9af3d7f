"""A charge whose answer is lost, at a stand-in that behaves as Stripe documents it: charged once, and the flow goes on."""

from typing import Any

from twiceproof import App
from twiceproof.effects import http
from twiceproof.prove.worlds.personalities import ProviderWorld

app = App("sqlite:///charges.db")


@app.effect(external="charge:{result[id]}")
def charge(order: dict[str, Any]) -> http.HttpEffect:
    # with a real account: auth=env("STRIPE_KEY")
    return http.post("https://api.stripe.com/v1/charges", form={"amount": order["total"]}, provider="stripe")


@app.flow(key="order:{order[id]}")
def sell(order: dict[str, Any]) -> str:
    return str(charge(order)["id"])


with ProviderWorld("stripe") as stripe:
    stripe.lose_at(1, "silence")  # the first charge is carried out, and not answered
    print("charge:", sell({"id": 1, "total": 500}))
    print("again: ", sell({"id": 1, "total": 500}))
    print("requests:", len(stripe.exchanges()))
    print("charged: ", sum(stripe.look().values()), "time")

app.close()

# Prints:
# charge: r_1
# again:  r_1
# requests: 2
# charged:  1 time
