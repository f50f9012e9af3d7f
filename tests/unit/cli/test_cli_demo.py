"""The parts of the demo: its plan, its outside world, and whether its report would notice a double effect."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest

from twiceproof.cli import demo
from twiceproof.cli.demo_plan import PLACES, Plan, make_plan
from twiceproof.cli.demo_run import Run
from twiceproof.cli.demo_worker import Answer, Delivery
from twiceproof.cli.demo_world import Parcel, World


def test_a_seed_draws_the_same_plan_again_and_another_draws_another():
    assert make_plan(200, 1) == make_plan(200, 1)
    assert make_plan(200, 1) != make_plan(200, 2)


@pytest.mark.parametrize("orders", [1, 2, 3, 20, 200])
def test_each_order_is_delivered_one_to_eight_times(orders):
    counts = Counter(make_plan(orders, 5).deliveries)
    assert set(counts) == set(range(1, orders + 1))
    assert set(counts.values()) <= set(range(1, 9))


@pytest.mark.parametrize(("orders", "kills"), [(1, 1), (2, 2), (3, 3), (20, 3), (100, 5), (200, 9), (5_000, 9)])
def test_kills_grow_with_the_orders_and_take_each_place_in_turn(orders, kills):
    planned = make_plan(orders, 3).kills
    assert len(planned) == kills
    assert set(planned.values()) == set(PLACES[:kills])


def report(world, *answered, orders=2):
    run = SimpleNamespace(
        parcels=list(answered), killed=Counter(), answers=Counter(), settled={}, delivered=len(answered)
    )
    return demo._report(run, make_plan(orders, 1), world, orders, 1, 0.0)


@pytest.fixture
def world(tmp_path):
    return World(tmp_path / "parcels.jsonl")


def test_the_world_remembers_what_happened(world):
    assert world.find(1) is None
    parcel = world.ship(1)
    assert world.find(1) == parcel
    assert world.find(2) is None
    assert world.ship(2) != parcel


def test_one_effect_each_is_fine(world):
    first, second = world.ship(1), world.ship(2)
    assert report(world, first, second, first)["ok"]


def test_an_effect_done_twice_is_noticed(world):
    first, second = world.ship(1), world.ship(2)
    world.ship(1)
    found = report(world, first, second)
    assert (found["effects_twice"], found["ok"]) == (1, False)


def test_a_missing_effect_is_noticed(world):
    found = report(world, world.ship(1))
    assert (found["effects_missing"], found["ok"]) == (1, False)


def test_an_answer_that_is_not_the_first_ones_is_noticed(world):
    world.ship(1)
    found = report(world, world.ship(2), Parcel(1, "another"))
    assert (found["answers_wrong"], found["ok"]) == (1, False)


def test_a_finding_is_exit_code_1(run, monkeypatch, tmp_path):
    good = report(World(tmp_path / "none"), orders=0)
    monkeypatch.setattr(demo, "run_demo", lambda *_, **__: dict(good))
    assert "Every order was shipped once" in run("demo", "--remove").stdout
    monkeypatch.setattr(demo, "run_demo", lambda *_, **__: good | {"effects_twice": 1, "ok": False})
    assert "NOT every order" in run("demo", "--remove", code=1).stdout


def test_an_earlier_demo_is_not_written_over(run, tmp_path):
    (tmp_path / "twiceproof.db").write_text("mine")
    assert "choose another --dir" in run("demo", "--dir", str(tmp_path), code=2).stderr
    assert (tmp_path / "twiceproof.db").read_text() == "mine"


def test_a_second_delivery_that_was_told_to_stop_at_the_same_place_is_killed_and_counted_too():
    """Without a guard, and on a crowded machine with one, two workers can be in the middle of one order."""
    crew = SimpleNamespace(replace=lambda member: None)
    run = Run(None, crew, None, Plan([], {7: "after_effect"}))
    for number in (1, 2):
        member = SimpleNamespace(delivery=Delivery(number, 7, "after_effect"))
        run._take(member, Answer(number, "stopped"))
    assert run.killed == {"after_effect": 2}
    assert list(run.queue) == [7, 7]
