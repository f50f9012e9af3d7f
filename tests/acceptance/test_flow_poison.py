"""Poison on its way into a run: refused before anything is written, or kept as it is. A worker's queue never stops."""

from __future__ import annotations

import math
import pickle
from collections import Counter
from dataclasses import dataclass

import pytest

from tests.acceptance.later import pass_time
from twiceproof import KeyRefused, NeedsReview, ValueRefused
from twiceproof.flows.engine import exits
from twiceproof.flows.engine.exits import EXIT_PAUSE, FREE_INTERRUPTS


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


PICKLED = pickle.dumps({"a": 1})
KEPT = {
    "NUL": "a\0b",
    "NUL in a name": {"\0": 1},
    "2^63": 2**63,
    "below -2^63": -(2**63) - 1,
    "one megabyte": "x" * 2**20,
    "pickle": PICKLED,
}
AS_KEPT = KEPT | {"pickle": "gASVCgAAAAAAAAB9lIwBYZRLAXMu"}  # bytes are text in JSON; nobody unpickles them
NOT_KEPT = {
    "half a surrogate pair": "a\ud800b",
    "half a surrogate pair in a name": {"\ud800": 1},
    "NaN": math.nan,
    "infinity": [math.inf],
    "20,000 deep": nested(20_000),
    "an object": object(),
}
ALL = KEPT | NOT_KEPT


@pytest.fixture
def app(place):
    with place.app() as app:
        yield app


def states(app, flow):
    return {
        record.at.space.split("/", 2)[2]: record.state
        for record in app.store.scan("run").block().records
        if record.at.space.split("/")[1] == flow
    }


# -- arguments, keys, results, errors ------------------------------------------------------------


def test_poison_arguments_are_kept_as_they_are_or_refused_before_anything_is_written(app):
    @app.flow(key="value:{name}")
    def take(name, value):
        return value

    for name, value in KEPT.items():
        assert take(name, value) == AS_KEPT[name]
        assert take(name, value) == AS_KEPT[name]
    for name, value in NOT_KEPT.items():
        for enter in (take, take.start):
            with pytest.raises(ValueRefused):
                enter(name, value)
    assert states(app, "take") == {f"value:{name}": "done" for name in KEPT}


@pytest.mark.parametrize("key", ["a\0b", "a\ud800b", "x" * 2**20, PICKLED, math.nan, "", nested(3)], ids=repr)
def test_poison_keys_are_refused(key, tmp_path):
    from twiceproof import App

    with App(f"sqlite:///{tmp_path}/ledger.db") as app:

        @app.flow(key="{name}")
        def take(name): ...

        with pytest.raises(KeyRefused):
            take(key)
        with pytest.raises(KeyRefused):
            take.start(key)
        assert states(app, "take") == {}


@pytest.mark.filterwarnings("ignore::twiceproof.ResultTypeWarning")
def test_poison_results_never_lose_that_the_step_was_done(app, place):
    @app.step(repeat="never")
    def fetch(name):
        place.do(name)
        return ALL[name]

    @app.flow(key="value:{name}")
    def take(name):
        return fetch(name)

    for name in KEPT:
        assert take(name) == take(name) == AS_KEPT[name]
    for name in NOT_KEPT:
        for _ in range(2):
            with pytest.raises(NeedsReview, match="its result could not be kept"):
                take(name)
    assert place.effects() == list(ALL)


def test_poison_in_an_error_is_remembered_as_far_as_it_can_be(app):
    @app.step(repeat="never")
    def burst(name):
        raise ValueError(ALL[name])

    @app.flow(key="value:{name}")
    def take(name):
        burst(name)

    for name in ALL:
        for _ in range(2):
            with pytest.raises(NeedsReview, match="ValueError"):
                take(name)


# -- workers -------------------------------------------------------------------------------------


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("nothing to say")


class Own(BaseException):
    pass


def test_a_worker_gets_through_its_queue_whatever_its_runs_do(app):
    begun = Counter()
    kinds = {kind.__name__: kind for kind in (KeyboardInterrupt, GeneratorExit, SystemExit, Own, Mute, RecursionError)}

    @app.flow(key="{kind}")
    def burst(kind):
        begun[kind] += 1
        raise kinds[kind]("a\0b")

    @app.flow(key="{number}")
    def good(number):
        return number

    for kind in kinds:
        burst.start(kind)
    handles = [good.start(number) for number in range(20)]
    assert app.worker(concurrency=2).run(until_idle=True) == 0
    assert [handle.result(1) for handle in handles] == list(range(20))
    assert begun == dict.fromkeys(("KeyboardInterrupt", "GeneratorExit", "Own"), FREE_INTERRUPTS + 1) | dict.fromkeys(
        ("SystemExit", "Mute", "RecursionError"), 1
    )


def test_a_run_that_interrupts_itself_again_and_again_ends_with_a_person(app, place, monkeypatch):
    monkeypatch.setattr(exits, "MOST_CRASHES", FREE_INTERRUPTS + 1)
    begun = []

    @app.flow(key="{order}")
    def burst(order):
        begun.append(order)
        raise Own

    handle = burst.start("order")
    for _ in range(3):
        app.worker().run(until_idle=True)
        pass_time(place, EXIT_PAUSE + 1)
    assert len(begun) == FREE_INTERRUPTS + 2
    with pytest.raises(NeedsReview, match="by Own at last"):
        handle.result(1)


@dataclass
class Order:
    number: int


@dataclass
class Parcel:
    weight: str


def release(app, kind, wait):
    @app.step(repeat="safe")
    def pack(order): ...

    def sync(order):
        pack(1)
        if wait:
            app.sleep("1h")

    sync.__annotations__["order"] = kind
    return app.flow(key=lambda order: "order:1" if wait else "order:2")(sync)


def test_an_input_that_can_no_longer_be_read_ends_its_run_and_no_worker_goes_round(place):
    """Failed where nothing was begun; a person's where something was."""
    for wait in (True, False):
        with place.app() as app:
            flow = release(app, Order, wait)
            flow.start(Order(7))
            if wait:
                app.worker().run(until_idle=True)
    pass_time(place, 3_601)
    with place.app() as app:
        release(app, Parcel, wait=True)
        worker = app.worker()
        assert (worker.run(until_idle=True), worker.begun) == (0, 2)
        assert states(app, "sync") == {"order:1": "review", "order:2": "failed"}
        again = app.worker()
        assert (again.run(until_idle=True), again.begun) == (0, 0)
