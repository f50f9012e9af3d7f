"""HTTP effects: a request as an effect, beside the same request by a bare client in a step of the same class."""

from __future__ import annotations

import itertools
import uuid
from contextlib import ExitStack
from typing import Any

import httpx2

from twiceproof import App
from twiceproof.effects import http
from twiceproof.effects.http_client import shared_client
from twiceproof.effects.repeat import keyed
from twiceproof.prove.worlds.http import HttpWorld

from ..callers import One
from ..findings import Findings, rows_beside
from ..goals import line
from ..plan import Plan
from ..progress import Progress
from ..rounds import Contender, Slots, compete
from ..series import ratio
from ..sites import Site

__all__ = ["measure_effects"]

BODY = {"amount": 500, "currency": "eur"}


def measure_effects(site: Site, plan: Plan, progress: Progress) -> Findings:
    part = f"{site.name}, a flow with one POST"
    with ExitStack() as stack:
        world = stack.enter_context(HttpWorld(["api.shop.test"]))
        client = stack.enter_context(httpx2.Client(trust_env=False))
        stack.callback(shared_client().close)
        app = App(site.fresh())
        stack.callback(app.close)
        url = f"{world.url}/charges"
        acts = [_bare(client, url), _by_client(app, client, url), _by_effect(app, url)]
        with progress.heat(part, plan.rounds) as step:
            found = compete([Contender(name, One(act)) for name, act in acts], Slots(plan.rounds, plan.slot), step)
    return Findings(rows_beside(part, found[1], found), [line("http effect", part, ratio(found[1], found[2]))])


def _bare(client: httpx2.Client, url: str) -> tuple[str, Any]:
    return "a bare client, no ledger", lambda _: client.post(url, json=BODY).raise_for_status().json()


def _by_client(app: App, client: httpx2.Client, url: str) -> tuple[str, Any]:
    @app.step(repeat=keyed(window="24h"), name="by_client")
    def charge(order: str) -> Any:
        headers = {"Idempotency-Key": app.effect_key()}
        return client.post(url, json=BODY, headers=headers).raise_for_status().json()

    @app.flow(key="{order}", name="sell_by_client")
    def sell(order: str) -> Any:
        return charge(order)

    return "a bare client in a step", _called(sell)


def _by_effect(app: App, url: str) -> tuple[str, Any]:
    @app.effect(name="by_effect")
    def charge(order: str) -> http.HttpEffect:
        return http.post(url, json=BODY, provider="stripe")

    @app.flow(key="{order}", name="sell_by_effect")
    def sell(order: str) -> Any:
        return charge(order)

    return "http.post", _called(sell)


def _called(flow: Any) -> Any:
    stem, numbers = uuid.uuid4().hex[:8], itertools.count()
    return lambda _: flow(f"{stem}-{next(numbers)}")
