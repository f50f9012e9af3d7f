"""A webhook, an approval before money moves, and a long job of an agent: each arrives twice, and counts once."""

import json
import os
import time
from typing import Any

from twiceproof import App, Resource, env
from twiceproof.effects import http
from twiceproof.inbound.sources import find_source
from twiceproof.prove.worlds.personalities import ProviderWorld

app = App("sqlite:///orders.db", url="https://hooks.shop.example")
jobs: list[str] = []  # what the agent was told to do

Order = dict[str, Any]


@app.effect
def refund(result: dict[str, str]) -> http.HttpEffect:
    return http.post("https://api.stripe.com/v1/refunds", form={"charge": result["id"]}, provider="stripe")


@app.effect(external="charge:{result[id]}", undo=refund)
def charge(order: Order) -> http.HttpEffect:  # with a real account: auth=env("STRIPE_KEY")
    return http.post("https://api.stripe.com/v1/charges", form={"amount": order["total"]}, provider="stripe")


def start_report(url: str, effect_key: str) -> None:
    """Stands for `ssh_start("agent-1.shop.example", ["/opt/agent/report"])`, which hands the agent both."""
    jobs.append(url)


@app.step(repeat="safe")
def keep(report: str) -> Resource:
    kept: Resource = app.resource(report, name="report.txt")
    return kept


@app.flow(key="shop:order:{order[id]}")
def take_order(order: Order) -> Resource:
    if order["total"] > 500:
        app.approve("charge", show=order, timeout="2d")
    charge(order)
    done = app.remote(start=start_report, callback="report", timeout="12h")  # never started a second time
    return keep(done["text"])


@app.webhook("shopify", secret=env("SHOPIFY_SECRET"), start=take_order)
def order_of(event: Order) -> Order:
    return {"id": event["id"], "total": event["total"]}


def main() -> None:
    os.environ["SHOPIFY_SECRET"] = "a secret of this example"
    body = json.dumps({"id": 10492, "total": 900}).encode()
    sent = find_source("shopify").seal(body, os.environ["SHOPIFY_SECRET"], time.time())
    for _ in range(2):  # the shop sends it twice; `twiceproof serve` receives it
        answer = app.receive("shopify", sent.body, sent.headers.items())
        print("webhook:", answer.status, "duplicate" if json.loads(answer.body).get("duplicate") else "new")

    with ProviderWorld("stripe") as stripe:  # stands for Stripe
        app.worker().run(until_idle=True)  # `twiceproof work` does this, for ever
        (request,) = app.approvals()
        print("charges before the approval:", len(stripe.records()))
        for person in ("ann", "bob"):
            print(person, "approves first:", app.decide(request.id, True, by=person).first)
        app.worker().run(until_idle=True)
        print("charges after it:", len(stripe.records()))

    token = jobs[0].rpartition("/")[2]
    for _ in range(2):  # the agent calls back twice
        print("callback counts:", app.deliver(token, {"text": "all is well"}).first)
    app.worker().run(until_idle=True)
    report = take_order({"id": 10492, "total": 900})
    print("jobs started:", len(jobs), "report:", report.read(app).decode(), "at", report.ref[:6])
    app.close()


if __name__ == "__main__":
    main()

# Prints:
# webhook: 200 new
# webhook: 200 duplicate
# charges before the approval: 0
# ann approves first: True
# bob approves first: False
# charges after it: 1
# callback counts: True
# callback counts: False
# jobs started: 1 report: all is well at res://
