"""The demo's plan: the same for both programs, and the same again for the same seed."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise

import pytest

from twiceproof.demo.scenario import FEWEST, LIMIT, make_plan, read_plan

SIZES = [FEWEST, 11, 20, 100, 1_000]


def test_a_seed_draws_the_same_plan_again_and_another_draws_another():
    assert make_plan(100, 1) == make_plan(100, 1)
    assert make_plan(100, 1) != make_plan(100, 2)


def test_a_plan_is_read_as_it_was_saved(tmp_path):
    make_plan(20, 1).save(tmp_path)
    assert read_plan(tmp_path) == make_plan(20, 1)


@pytest.mark.parametrize("orders", SIZES)
@pytest.mark.parametrize("seed", range(5))
def test_every_plan_has_each_kind_of_weather_and_no_order_meets_two(orders, seed):
    plan = make_plan(orders, seed)
    assert set(plan.accounting.values()) == {"lost", "slow", "killed-before", "killed-after"}
    assert list(plan.mail.values()) == ["lost"]
    large = [order.id for order in plan.orders if order.total > LIMIT]
    assert len(large) == 1
    known = {order.id for order in plan.orders}
    met = [*plan.accounting, *plan.mail, *large]
    assert len(met) == len(set(met))
    assert set(met) <= known


@pytest.mark.parametrize("orders", SIZES)
def test_kills_are_apart_and_not_at_the_very_end(orders):
    kills = sorted(order for order, word in make_plan(orders, 3).accounting.items() if word.startswith("killed"))
    assert kills[-1] <= orders * 0.9
    assert all(later - earlier >= orders // 4 // len(kills) for earlier, later in pairwise(kills))


def test_messages_come_several_times_out_of_order_and_under_new_ids():
    deliveries = make_plan(100, 1).deliveries
    assert sorted(deliveries, key=lambda delivery: delivery.at) == deliveries
    copies = Counter(delivery.event for delivery in deliveries)
    assert min(copies.values()) == 1
    assert max(copies.values()) == 4
    assert any(event.endswith("_anew") for event in copies)
    versions = defaultdict(list)
    for delivery in deliveries:
        if delivery.path == "addresses":
            versions[delivery.data["order"]].append(delivery.data["version"])
    assert any(found != sorted(found) for found in versions.values())


def test_copies_of_a_message_say_the_same():
    said = defaultdict(set)
    for delivery in make_plan(100, 1).deliveries:
        said[delivery.event].add(str(delivery.data))
    assert {len(found) for found in said.values()} == {1}
