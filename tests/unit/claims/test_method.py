"""A guarded method's next moves can be done: its extras know their object, as the method does."""

from __future__ import annotations

import asyncio
import inspect
import pickle
from typing import Any

import pytest

from twiceproof import App, NotDone, PriorFailure
from twiceproof.claims.claim import Done, Failed

memory = App("memory://")


class Desk:
    """Where pickle finds it."""

    @memory.once(key="desk:{n}")
    def stamp(self, n: int) -> int:
        return n


def shop_of(app: App) -> Any:
    class Shop:
        broken = True

        @app.once(key="order:{order}")
        def pay(self, order: int, *, currency: str = "EUR") -> str:
            """Pay it."""
            if self.broken:
                raise NotDone("no", final=True)
            return f"{order} {currency}"

    return Shop()


def test_a_failed_method_is_looked_at_and_tried_again_by_its_object(app: App) -> None:
    shop = shop_of(app)
    for kind in (NotDone, PriorFailure):
        with pytest.raises(kind):
            shop.pay(1)
    assert shop.pay.key(1) == "order:1"
    assert isinstance(shop.pay.look(1), Failed)
    shop.broken = False
    assert shop.pay.retry(1) == "1 EUR"
    assert isinstance(shop.pay.look(order=1), Done)
    assert shop.pay(1) == "1 EUR"


def test_the_classes_own_takes_the_object_first(app: App) -> None:
    shop = shop_of(app)
    shop.broken = False
    assert type(shop).pay(shop, 1) == "1 EUR"
    assert type(shop).pay.key(shop, 1) == "order:1"
    assert isinstance(type(shop).pay.look(shop, 1), Done)


def test_an_async_method_stays_one(app: App) -> None:
    class Shop:
        broken = True

        @app.once(key="order:{order}")
        async def pay(self, order: int) -> int:
            if self.broken:
                raise NotDone("no", final=True)
            return order

    async def play() -> Any:
        shop = Shop()
        with pytest.raises(NotDone):
            await shop.pay(1)
        assert isinstance(await shop.pay.look(1), Failed)
        shop.broken = False
        return await shop.pay.retry(1)

    assert inspect.iscoroutinefunction(Shop().pay)
    assert asyncio.run(play()) == 1


def test_a_class_method_too(app: App) -> None:
    class Shop:
        @classmethod
        @app.once(key="order:{order}")
        def pay(cls, order: int) -> str:
            return f"{cls.__name__} {order}"

    assert (Shop.pay(1), Shop().pay(1)) == ("Shop 1", "Shop 1")


def test_it_looks_like_the_method_that_was_written(app: App) -> None:
    pay = shop_of(app).pay
    assert inspect.ismethod(pay)
    assert str(inspect.signature(pay)) == "(order: 'int', *, currency: 'str' = 'EUR') -> 'str'"
    assert (pay.__name__, pay.__doc__) == ("pay", "Pay it.")


def test_it_goes_through_pickle() -> None:
    assert pickle.loads(pickle.dumps(Desk().stamp))(1) == 1


def test_a_function_whose_argument_is_called_self_is_no_method(app: App) -> None:
    @app.once(key="order:{self}")
    def pay(self: int) -> int:
        return self

    assert (pay(1), pay.key(1), inspect.isfunction(pay)) == (1, "order:1", True)
