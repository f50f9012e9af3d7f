"""What is answered before any handler ran is not kept: with the frameworks themselves."""

from __future__ import annotations

import flask
import litestar
import pytest
from fastapi import FastAPI, HTTPException
from litestar.params import JSONBody
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Mount
from starlette.routing import Route as StarletteRoute

from tests.unit.middleware.harness import JSON, Client
from twiceproof.middleware import IdempotencyKey, WsgiIdempotencyKey, not_begun


class Payment(BaseModel):
    amount: int


@pytest.fixture
def ran():
    return []


def a_fastapi(ran):
    api = FastAPI()

    @api.post("/pay", status_code=201)
    def pay(payment: Payment):
        ran.append(payment.amount)
        if payment.amount < 0:
            raise HTTPException(404, "no such card")
        return {"amount": payment.amount}

    return api


def a_starlette(ran):
    async def pay(request):
        amount = (await request.json())["amount"]
        ran.append(amount)
        return JSONResponse({"amount": amount}, 404 if amount < 0 else 201)

    return Starlette(routes=[StarletteRoute("/pay", pay, methods=["POST"])])


def a_litestar(ran):
    @litestar.post("/pay")
    async def pay(data: JSONBody[Payment]) -> dict[str, int]:
        ran.append(data.amount)
        if data.amount < 0:
            raise litestar.exceptions.NotFoundException("no such card")
        return {"amount": data.amount}

    return litestar.Litestar([pay])


def a_flask(ran):
    made = flask.Flask("shop")

    @made.post("/pay")
    def pay():
        amount = flask.request.get_json()["amount"]
        ran.append(amount)
        return {"amount": amount}, 404 if amount < 0 else 201

    return made.wsgi_app


def a_mounted_fastapi(ran):
    api = FastAPI()
    api.mount("/shop", a_fastapi(ran))
    return api


def a_mounted_starlette(ran):
    return Starlette(routes=[Mount("/shop", routes=a_starlette(ran).routes)])


MAKERS = {"fastapi": a_fastapi, "starlette": a_starlette, "litestar": a_litestar, "flask": a_flask}


@pytest.fixture(params=MAKERS)
def framework(request, app, ran, shop):
    inner = MAKERS[request.param](ran)
    client = Client("wsgi" if request.param == "flask" else "asgi", shop, app=app)
    client.middleware = (WsgiIdempotencyKey if request.param == "flask" else IdempotencyKey)(inner, app=app)
    return client


def claims(app):
    return app.store.scan("claim").block().records


def test_a_handler_runs_once(framework, ran):
    assert framework.ask(b'{"amount": 5}').status == 201
    response = framework.ask(b'{"amount": 5}')
    assert (response.status, response.replayed, ran) == (201, True, [5])


def test_what_the_handler_refused_is_kept(framework, ran):
    assert framework.ask(b'{"amount": -5}').status == 404
    assert framework.ask(b'{"amount": -5}').replayed
    assert ran == [-5]


def test_that_there_is_no_such_address_is_not_kept(framework, app):
    assert framework.ask(path="/nowhere").status == 404
    assert claims(app) == []
    assert not framework.ask(path="/nowhere").replayed


@pytest.mark.parametrize("make", [a_mounted_fastapi, a_mounted_starlette])
def test_nor_that_an_app_that_is_mounted_has_no_such_address(app, ran, shop, make):
    client = Client("asgi", shop, app=app)
    client.middleware = IdempotencyKey(make(ran), app=app)
    assert client.ask(path="/shop/nowhere").status == 404
    assert claims(app) == []
    client.ask(b'{"amount": -5}', path="/shop/pay")
    assert client.ask(b'{"amount": -5}', path="/shop/pay").replayed  # what its handler refused is kept
    assert ran == [-5]


@pytest.mark.parametrize("framework", ["fastapi", "litestar"], indirect=True)  # the others validate nothing
def test_that_a_body_is_not_valid_is_not_kept_and_the_key_is_free_for_a_better_one(framework, ran):
    assert framework.ask(b'{"amount": "much"}').status in (400, 422)
    assert framework.ask(b'{"amount": 5}').status == 201
    assert ran == [5]


def test_an_app_can_say_that_its_work_has_not_begun(client, shop, app):
    def refuse(asked):
        not_begun(asked.carrier)
        return 402, [JSON], [b"{}"]

    shop.answer = refuse
    assert (client.ask().status, client.ask().replayed) == (402, False)
    assert claims(app) == []
    assert shop.count == 2


def test_an_app_can_say_so_of_errors_too(client, shop):
    def refuse(asked):
        not_begun(asked.carrier)
        raise ValueError("no database")

    shop.answer = refuse
    with pytest.raises(ValueError, match="no database"):
        client.ask()
    shop.answer = lambda asked: (201, [], [b""])
    assert client.ask().status == 201


def test_to_say_so_where_nothing_is_guarded_does_no_harm(client, shop):
    shop.answer = lambda asked: (not_begun(asked.carrier), (200, [], [b""]))[1]
    assert client.ask(key=None).status == 200


def test_an_answer_of_5xx_is_never_taken_for_one_given_before(app, shop):
    """A middleware that copies the scope hides the endpoint: only what changed nothing may be run again."""
    client = Client("asgi", shop, app=app)
    shop.answer = lambda asked: (asked.carrier.update(app=object()), (500, [], [b""]))[1]
    client.ask()
    assert client.ask().problem()["state"] == "review"


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"detail": []}', b'{"detail": "no"}', b'{"detail": [{"loc": 1}]}'])
def test_a_422_of_the_apps_own_making_is_kept(client, shop, body):
    shop.answer = lambda asked: (422, [JSON], [body])
    client.ask()
    assert client.ask().replayed
