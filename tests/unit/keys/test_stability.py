"""Keys that look as if they changed on every retry."""

from __future__ import annotations

import inspect
import itertools
import warnings
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from uuid import UUID, uuid5

import pytest

from twiceproof import App
from twiceproof.errors import Misuse, UnstableKeyWarning
from twiceproof.keys import KeyMaker, KeyWatch, Suspect, UnstableKeyDetector, suspects, warn_unstable, windowed

NOW_MOMENT = datetime(2026, 3, 4, 12, 30, 17, 250_000, tzinfo=UTC)
NOW = NOW_MOMENT.timestamp()
V4 = UUID("3f2b8a52-6c1d-4e7a-9b0f-1d2c3b4a5968")


NAMES = ["attempt", "retry_count", "deliveryId", "order[sent_at]", "now", "event[X-Nonce]", "requestId", "ts"]
PATHS = ["delivery[id]", "event[timestamp]", "message.received_at", "request.id", "headers[X-Request-ID]"]


@pytest.mark.parametrize("field", [*NAMES, *PATHS, "webhook[delivery][id]"])
def test_a_name_that_says_attempt_is_suspected_whatever_its_value(field):
    found = suspects({}, [field], NOW)
    assert [suspect.path for suspect in found] == [field.replace("[", ".").replace("]", "")]
    assert "by its name" in found[0].sign


ORDINARY = ["order_id", "created_at", "country", "industry", "updated_at", "tsunami", "known", "request"]


@pytest.mark.parametrize("name", [*ORDINARY, "leave_request", "brand", "entry", "customerTrying"])
def test_an_ordinary_name_is_not_suspected(name):
    assert suspects({name: "10492"}, [name], NOW) == []


def test_the_last_step_of_a_field_counts_not_what_it_is_carried_in():
    assert suspects({"delivery": {"order_id": 7}}, ["delivery[order_id]"], NOW) == []


@pytest.mark.parametrize(
    "value",
    [
        V4,
        str(V4),
        str(V4).upper(),
        V4.hex,
        f"order-id:{V4}",
        f"evt_{V4}",
        "0190b6a4-1f2e-7c3d-8a4b-5c6d7e8f9a0b",
        int(NOW),
        NOW,
        int(NOW * 1000),
        int(NOW * 1_000_000),
        int(NOW * 1_000_000_000),
        Decimal(str(NOW)),
        str(int(NOW)),
        f"o-7:{int(NOW * 1000)}",
        NOW_MOMENT,
        NOW_MOMENT.replace(tzinfo=None),
        NOW_MOMENT.isoformat(),
        "2026-03-04T12:30:17Z",
        "2026-03-04 12:30:17.123456",
        NOW - 86_000,
    ],
    ids=str,
)
def test_a_fresh_value_is_suspected(value):
    found = suspects({"order": {"id": value}}, ["order[id]"], NOW)
    assert [suspect.path for suspect in found] == ["order.id"]


@pytest.mark.parametrize(
    "value",
    [
        10492,
        0,
        True,
        "10492",
        uuid5(V4, "order"),
        str(uuid5(V4, "order")),
        f"evt_{uuid5(V4, 'order')}",
        f"x{V4}",
        int(NOW) - 90_000,
        int(NOW) + 90_000,
        NOW_MOMENT - timedelta(days=3),
        "2025-03-04T12:30:17Z",
        date(2026, 3, 4),
        "2026-03-04",
        "2026-03-04T12:30:00Z",
        NOW_MOMENT.replace(minute=0, second=0, microsecond=0),
        int(NOW) // 60 * 60,
        "2026-13-44T12:30:17Z",
        "a" * 64,
        Decimal("NaN"),
        float("inf"),
        10**400,
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_settled_value_is_not_suspected(value):
    assert suspects({"order": {"id": value}}, ["order[id]"], NOW) == []


def test_a_hash_that_happens_to_look_like_a_uuid4_is_not_suspected():
    assert suspects({"body_md5": V4.hex}, ["body_md5"], NOW) == []


def test_the_warning_names_the_operation_the_argument_and_the_way_out():
    with pytest.warns(UnstableKeyWarning) as caught:
        warn_unstable("sync_order", [Suspect("order.id", "holds the current time")], stacklevel=1)
    text = str(caught[0].message)
    assert text.startswith("sync_order: the key uses order.id, which holds the current time;")
    assert 'stable=("order.id",)' in text
    assert caught[0].filename == __file__


def sync(order, attempt=1): ...


def watch(key, **options):
    maker = KeyMaker(key, sync)
    eye = UnstableKeyDetector("sync", maker, **options)

    def call(order, attempt=1):
        arguments = {"order": order, "attempt": attempt}
        eye.look(arguments, maker.make(arguments), NOW)

    return call


def warned(call, *orders) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for order in orders:
            call(order)
    return [str(one.message) for one in caught]


FRESH = {"id": str(V4), "no": 7}


def test_a_watch_warns_once_for_each_argument():
    found = warned(watch("{order[id]}:{attempt}"), FRESH, FRESH, FRESH)
    assert len(found) == 2
    assert "order.id" in found[0]
    assert "attempt" in found[1]


@pytest.mark.parametrize("stable", ["order.id", "order[id]", "order"])
def test_what_is_declared_stable_is_not_warned_about_and_the_rest_is(stable):
    found = warned(watch("{order[id]}:{attempt}", stable=(stable,)), FRESH)
    assert len(found) == 1
    assert "attempt" in found[0]


def test_a_clean_key_is_not_warned_about():
    assert warned(watch("{order[no]}"), FRESH) == []
    assert warned(watch(lambda order: f"o:{order['no']}"), FRESH) == []


def test_a_watch_stops_looking_after_its_first_calls():
    clean = {"id": 1}
    assert len(warned(watch("{order[id]}", looks=3), clean, clean, FRESH)) == 1
    assert warned(watch("{order[id]}", looks=3), clean, clean, clean, FRESH) == []


def test_a_function_whose_key_differs_when_made_twice_is_warned_about():
    count = itertools.count()
    found = warned(watch(lambda order: f"o:{order['no']}:{next(count)}"), FRESH, FRESH)
    assert len(found) == 1
    assert "made twice from the same arguments" in found[0]


def test_a_function_that_fails_when_asked_again_does_not_stop_the_call():
    keys = iter(["only"])
    assert len(warned(watch(lambda order: next(keys)), FRESH)) == 1


def test_a_functions_key_that_holds_a_uuid_or_the_time_is_warned_about():
    assert "version 4" in warned(watch(lambda order: f"o:{order['id']}"), FRESH)[0]
    assert "current time" in warned(watch(lambda: f"o:{int(NOW)}"), FRESH)[0]
    assert warned(watch(lambda: f"o:{int(NOW)}", stable=("key",)), FRESH) == []


def test_a_function_is_asked_twice_only_in_its_first_calls():
    calls = []
    call = watch(lambda order: calls.append(1) or "same")
    warned(call, *[FRESH] * 10)
    assert len(calls) == 10 + 3


def test_where_warnings_are_errors_the_second_call_goes_through():
    call = watch("{order[id]}")
    with pytest.raises(UnstableKeyWarning):
        call(FRESH)
    call(FRESH)


@pytest.mark.parametrize("decorator", ["once", "flow"])
def test_the_warning_points_at_the_call_of_the_guarded_function(decorator):
    with App("memory://") as app:
        guarded = getattr(app, decorator)(key="{order[id]}", name="sync")(lambda order: None)
        with pytest.warns(UnstableKeyWarning) as caught:
            guarded(FRESH)
    here = inspect.currentframe()
    assert (caught[0].filename, caught[0].lineno) == (__file__, here.f_lineno - 2)


def test_stable_takes_a_list_of_names():
    with pytest.raises(Misuse, match=r'write stable=\("order",\)'):
        UnstableKeyDetector("sync", KeyMaker("{order[id]}", sync), stable="order")


# -- functions: the arguments they take ------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "order", "named"),
    [
        (lambda order, attempt: f"{order}:{attempt}", 7, "attempt"),
        (lambda o, a: f"{o}_{a}", 7, "attempt"),
        (lambda order: f"o:{order}", V4.hex, "order"),
        (lambda order: f"o_{order}", int(NOW), "order"),
        (lambda order: f"o:{order}", str(V4), "order"),
        (lambda order: f"o:{order['id']}", FRESH, "order"),
        (lambda order, attempt: f"o:{order['id']}", FRESH, "order"),
        (lambda order: f"o:{order.isoformat()}", NOW_MOMENT, "order"),
    ],
)
def test_what_a_function_puts_into_the_key_is_warned_about_by_the_arguments_name(key, order, named):
    (found,) = warned(watch(key), order, order)
    assert f"the key uses {named}, which" in found
    assert f'say stable=("{named}",)' in found
    assert warned(watch(key, stable=(named,)), order) == []
    assert warned(watch(key, stable=("key",)), order) == []


@pytest.mark.parametrize(
    ("key", "order"),
    [
        (lambda order, attempt: f"o:{order}", 1001),  # it takes the attempt, and does not use it
        (lambda order: windowed("customer-7", "welcome", at=order, window="10m"), NOW_MOMENT),
        (lambda **all_of_it: f"o:{all_of_it['order']}", 1),
        (lambda *all_of_it: f"o:{all_of_it[0]}", 1),
        (lambda order: f"o:{order['no']}", FRESH),
    ],
)
def test_what_a_function_takes_and_does_not_put_into_the_key_is_not_warned_about(key, order):
    assert warned(watch(key), order) == []


def test_an_argument_that_cannot_be_shown_does_not_stop_the_call():
    class Order:
        id = str(V4)

        def __str__(self):
            raise ValueError

    (found,) = warned(watch(lambda order: f"o:{order.id}"), Order())
    assert found.startswith("sync: the key holds a UUID made anew each time (version 4);")


# -- keys that come as text ------------------------------------------------------------------------


def looked(key, times=1, after=()):
    eye = KeyWatch()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for one in (*after, *[key] * times):
            eye.look("ship", one, NOW, say="stable=True")
    return [str(one.message) for one in caught]


@pytest.mark.parametrize("key", [f"order:{V4}", f"order:{NOW}", f"order:{int(NOW)}"])
def test_a_text_that_looks_fresh_is_warned_about_once(key):
    (found,) = looked(key, times=3)
    assert found.startswith("ship: the key holds")
    assert found.endswith("say stable=True")


def test_a_text_that_looks_settled_is_not_warned_about():
    assert looked("order:17", times=3) == []


def test_only_the_first_texts_are_looked_at():
    assert len(looked(f"order:{V4}", after=["order:17"] * 19)) == 1
    assert looked(f"order:{V4}", after=["order:17"] * 20) == []
