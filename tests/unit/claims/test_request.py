"""Calls become keys and fingerprints: the same request however it is written, another one whatever differs."""

from __future__ import annotations

import asyncio
import functools
from typing import Any
from xmlrpc.client import ServerProxy

import pytest

from twiceproof import App, KeyRefused, Misuse, NotDone, PayloadMismatch, ValueRefused


def empty(app: App) -> bool:
    return not app.store.scan("claim").block().records


def test_a_call_by_place_and_a_call_by_name_are_the_same_request(app: App) -> None:
    runs: list[int] = []

    @app.once(key="order:{order}")
    def pay(order: int, amount: int = 5, *, note: str = "") -> int:
        runs.append(order)
        return amount

    answers = [pay(1), pay(order=1), pay(1, 5), pay(amount=5, order=1), pay(1, note="")]
    assert (answers, runs) == ([5] * 5, [1])
    with pytest.raises(PayloadMismatch):
        pay(1, 6)
    with pytest.raises(PayloadMismatch):
        pay(1, note="gift")


def test_extra_arguments_are_part_of_the_request(app: App) -> None:
    @app.once(key="order:{order}")
    def pay(order: int, /, *lines: int, **more: int) -> int:
        return sum(lines)

    assert pay(1, 2, 3, tax=4) == pay(1, 2, 3, tax=4) == 5
    for other in ((1, 2), {"tax": 4}), ((1, 2, 3), {"tax": 5}):
        with pytest.raises(PayloadMismatch):
            pay(*other[0], **other[1])


def test_a_call_that_does_not_fit_is_pythons_own_error_and_writes_nothing(app: App) -> None:
    @app.once(key="order:{order}")
    def pay(order: int, amount: int) -> None: ...

    for args, kwargs in (((1,), {}), ((1, 2, 3), {}), ((1,), {"order": 1, "amount": 2}), ((1, 2), {"x": 1})):
        with pytest.raises(TypeError):
            pay(*args, **kwargs)
    assert empty(app)


def test_a_methods_object_is_not_part_of_the_request(app: App) -> None:
    class Shop:
        runs = 0

        @app.once(key="order:{order}")
        def pay(self, order: int) -> int:
            Shop.runs += 1
            return order

    assert (Shop().pay(1), Shop().pay(1), Shop.runs) == (1, 1, 1)


def test_ignored_arguments_are_not_part_of_the_request(app: App) -> None:
    @app.once(key="order:{order[id]}", ignore=("db", "order.seen_at"))
    def pay(order: dict[str, Any], db: Any) -> int:
        return 1

    assert pay({"id": 1, "seen_at": 5}, object()) == pay({"id": 1, "seen_at": 6}, object()) == 1
    with pytest.raises(PayloadMismatch):
        pay({"id": 1, "seen_at": 5, "more": 1}, None)


@pytest.mark.parametrize("ignore", [("dbb",), ("id",), ("kwargs",), "dbb"])
def test_ignoring_what_is_not_there_is_refused_when_it_is_written(memory: App, ignore: Any) -> None:
    with pytest.raises(Misuse, match="ignore has"):

        @memory.once(key="order:{order}", ignore=ignore)
        def pay(order: int, db: Any) -> None: ...


@pytest.mark.parametrize("first", ["flow", "once"])
def test_a_flow_and_a_guarded_function_under_one_name_are_refused(memory: App, first: str) -> None:
    second = "once" if first == "flow" else "flow"

    @getattr(memory, first)(key="order:{order}", name="pay")
    def pay(order: int) -> None: ...

    with pytest.raises(Misuse, match='are both called "pay"; give one of them another name='):

        @getattr(memory, second)(key="order:{order}", name="pay")
        def charge(order: int) -> None: ...


def test_two_functions_under_one_name_are_refused(memory: App) -> None:
    @memory.once(key="order:{order}", name="pay")
    def pay(order: int) -> None: ...

    with pytest.raises(Misuse, match='are both called "pay"; give one of them another name='):

        @memory.once(key="order:{order}", name="pay")
        def charge(order: int) -> None: ...

    memory.once(key="order:{order}", name="charge")(charge_elsewhere)


def charge_elsewhere(order: int) -> None: ...


def test_the_same_function_defined_again_is_no_second_one(memory: App) -> None:
    """A module that is reloaded, or a factory that is called twice."""
    for _ in range(2):

        @memory.once(key="order:{order}")
        def pay(order: int) -> None: ...


@pytest.mark.parametrize("decorator", ["once", "flow"])
def test_different_functions_of_a_loop_under_one_name_are_refused(memory: App, decorator: str) -> None:
    """The second bank's payments would be answered with the first one's; a worker would pay all of them at the last."""
    declare = getattr(memory, decorator)

    def by_default(bank: str, name: str | None = None) -> None:
        @declare(key="order:{order}", name=name)
        def pay(order: int, bank: str = bank) -> None: ...

    def by_closure(bank: str, name: str | None = None) -> None:
        @memory.step(repeat="safe")
        def transfer(order: int) -> str:
            return bank

        @declare(key="order:{order}", name=name)
        def send(order: int) -> str:
            return transfer(order)

    for make in (by_default, by_closure):
        make("first")
        make("first")  # a factory that is called twice
        with pytest.raises(Misuse, match=r"declared twice under the name .*, with another bank"):
            make("second")
        make("second", make.__name__)


def test_what_cannot_be_compared_is_no_hindrance(memory: App) -> None:
    def make(connection: object, rows: Any) -> None:
        @memory.once(key="order:{order}")
        def pay(order: int) -> object:
            return connection, rows

    class Array:
        def __eq__(self, other: object) -> bool:
            raise ValueError("an array has no single truth value")

        __hash__ = None  # type: ignore[assignment]

    for _ in range(2):
        make(object(), Array())
        make(ServerProxy("http://127.0.0.1:1"), 1)  # it has every attribute, and theirs have, too


def test_methods_of_two_objects_are_told_apart_by_their_classes_alone(memory: App) -> None:
    """A factory that is called twice makes its client anew, and hands over a method of it."""

    class Mail:
        def send(self) -> None: ...

    class Letters(Mail):
        def send(self) -> None: ...

    def make(send: Any) -> None:
        @memory.once(key="order:{order}")
        def tell(order: int) -> None:
            send()

    make(Mail().send)
    make(Mail().send)
    with pytest.raises(Misuse, match="with another send each time"):
        make(Letters().send)

    def note(append: Any) -> None:
        @memory.once(key="order:{order}")
        def keep(order: int) -> None:
            append(order)

    note([].append)
    note([1].append)


def test_generators_are_refused(memory: App) -> None:
    with pytest.raises(Misuse, match="is a generator"):

        @memory.once(key="order:{order}")
        def pay(order: int) -> Any:
            yield order

    with pytest.raises(Misuse, match="is a generator"):

        @memory.once(key="order:{order}")
        async def paying(order: int) -> Any:
            yield order


def test_a_def_that_returns_a_coroutine_is_not_taken_for_done(app: App) -> None:
    """A decorator in between hides the `async`: recorded as done at once, the work would never be."""

    def logged(function: Any) -> Any:
        @functools.wraps(function)
        def call(*args: Any) -> Any:
            return function(*args)

        return call

    async def paying(order: int) -> int:
        raise AssertionError

    pay = app.once(key="order:{order}", name="pay")(logged(paying))
    for _ in range(2):
        with pytest.raises(NotDone, match="guard an `async def` instead"):
            pay(1)


def test_the_guarded_function_keeps_its_name_and_tells_its_key(memory: App) -> None:
    @memory.once(key="shop:{order[id]}:{line}")
    def pay(order: dict[str, int], line: int = 3) -> None:
        """Pays."""

    assert (pay.__name__, pay.__doc__) == ("pay", "Pays.")
    assert pay.key({"id": 5}) == pay.key(order={"id": 5}, line=3) == "shop:5:3"


def test_an_awaited_function_stays_one(memory: App) -> None:
    @memory.once(key="order:{order}")
    async def pay(order: int) -> int:
        return order

    assert asyncio.iscoroutinefunction(pay)
    assert asyncio.run(pay(3)) == 3


# -- tenants -------------------------------------------------------------------------------------


def test_tenants_do_not_see_each_others_keys(tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path}/tenants.db"
    with App(url, tenant="acme") as acme, App(url, tenant="bolt") as bolt:
        runs: list[str] = []

        def made(app: App) -> Any:
            @app.once(key="order:{order}")
            def pay(order: int, who: str) -> str:
                runs.append(who)
                return who

            return pay

        ours, theirs = made(acme), made(bolt)
        assert (ours(1, "acme"), theirs(1, "bolt"), ours(1, "acme"), theirs(1, "bolt")) == ("acme", "bolt") * 2
        assert runs == ["acme", "bolt"]
        assert acme.claim("x", "k", tenant="bolt")._request.at == bolt.claim("x", "k")._request.at


@pytest.mark.parametrize("tenant", ["", " ", "a/b", "a b", "é", "x" * 129, "a\0"])
def test_a_tenant_that_is_no_name_is_refused_and_never_becomes_the_default(clock: Any, tenant: str) -> None:
    with App("memory://", tenant=tenant, clock=clock) as app, pytest.raises(Misuse, match="is not a name"):

        @app.once(key="order:{order}")
        def pay(order: int) -> None: ...

    with App("memory://", clock=clock) as app, pytest.raises(Misuse, match="is not a name"):
        app.claim("pay", "order:1", tenant=tenant)


# -- poison --------------------------------------------------------------------------------------

DEEP: list[Any] = []
for _ in range(10_000):
    DEEP = [DEEP]

POISON: dict[str, Any] = {
    "a lone surrogate": "\ud800",
    "NaN": float("nan"),
    "infinity": [float("inf")],
    "ten thousand lists deep": DEEP,
    "an object": object(),
    "a function": len,
    "keys of two kinds": {1: "a", "1": "b"},
}


@pytest.mark.parametrize("value", POISON.values(), ids=POISON.keys())
def test_an_argument_without_a_canonical_form_is_refused_before_anything_is_written(
    memory: App, style: Any, value: Any
) -> None:
    def pay(order: int, payload: Any) -> None:
        raise AssertionError

    with pytest.raises(ValueRefused, match="payload"):
        style.once(memory, pay)(1, value)
    assert empty(memory)


@pytest.mark.parametrize(
    "value", ["a \0 in it", 2**63, 2**70, -(2**63) - 1, "é", "e\u0301", 10**400, b"\x80\x04pickle"]
)
def test_an_argument_that_only_looks_like_poison_is_taken(app: App, value: Any) -> None:
    @app.once(key="order:{order}")
    def pay(order: int, payload: Any) -> int:
        return 1

    assert pay(1, value) == pay(1, value) == 1


@pytest.mark.parametrize(
    "key", ["", "   ", "\t", "a\0b", "a\nb", "\ud800", "x" * 1_000_000, " a", None, 1.5], ids=lambda key: repr(key)[:12]
)
def test_a_key_that_cannot_name_an_intent_is_refused_before_anything_is_written(
    memory: App, style: Any, key: Any
) -> None:
    def pay(order: Any) -> None:
        raise AssertionError

    with pytest.raises(KeyRefused):
        style.once(memory, pay, key="{order}")(key)
    assert empty(memory)
    if not isinstance(key, float):
        with pytest.raises(KeyRefused):
            memory.claim("pay", key)


@pytest.mark.parametrize("order", [0, False, "x" * 1_024, "é", "a/b", "../x", "{lane-17}", "';--", "%s"])
def test_a_key_that_only_looks_strange_is_taken(app: App, order: Any) -> None:
    @app.once(key="{order}")
    def pay(order: Any) -> int:
        return 1

    assert pay(order) == pay(order) == 1


def test_keys_that_look_like_other_names_stay_apart(app: App) -> None:
    assert app.claim("a", "b/c")._request.at != app.claim("a", "b", tenant="default")._request.at
    with pytest.raises(Misuse):
        app.claim("a/b", "c")


def test_once_without_parentheses_is_told_what_to_write() -> None:
    with App("memory://") as app, pytest.raises(Misuse, match="needs a key"):

        @app.once
        def pay(order: int) -> int:
            return order


class Till:
    """An object that is called."""

    def __init__(self, paid: str) -> None:
        self.paid = paid

    def __call__(self, order: int) -> str:
        return self.paid


def pay_by(way: str, order: int) -> str:
    return way


UNNAMED = {"object": lambda: Till("cash"), "partial": lambda: functools.partial(pay_by, "card")}


@pytest.mark.parametrize("make", UNNAMED.values(), ids=UNNAMED)
def test_what_has_no_name_of_its_own_is_guarded_under_a_given_one_only(app: App, make: Any) -> None:
    with pytest.raises(Misuse, match="has no name of its own; give one"):
        app.once(key="order:{order}")(make())
    guarded = app.once(key="order:{order}", name="pay")(make())
    assert guarded(order=1) == guarded(order=1) == make()(order=1)


@pytest.mark.parametrize("make", UNNAMED.values(), ids=UNNAMED)
def test_two_objects_under_one_name_are_refused(app: App, make: Any) -> None:
    app.once(key="order:{order}", name="pay")(make())
    with pytest.raises(Misuse, match="both called"):
        app.once(key="order:{order}", name="pay")(make())


@pytest.mark.parametrize("kind", [classmethod, staticmethod])
@pytest.mark.parametrize("decorator", ["once", "flow", "step", "every"])
def test_a_decorator_above_classmethod_is_told_its_place(app: App, decorator: str, kind: Any) -> None:
    """It was told to give a key, or broke off at the first call."""
    options: Any = {"step": {"repeat": "safe"}, "every": {"when": "1h"}}.get(decorator, {"key": "order:{order}"})
    with pytest.raises(Misuse, match=f"write @{kind.__name__} first"):
        getattr(app, decorator)(**options)(kind(pay_by))


def test_a_guard_below_classmethod_works(app: App) -> None:
    """The twin."""

    class Shop:
        @classmethod
        @app.once(key="order:{order}", name="pay")
        def pay(cls, order: int) -> int:
            return order

    assert Shop.pay(1) == Shop().pay(1) == 1
