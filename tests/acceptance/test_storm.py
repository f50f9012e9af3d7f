"""A storm of duplicates: 1,000 keys, 50 callers each, over 4 processes, on each store."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from tests.acceptance.children import Child
from twiceproof import InProgress

KEYS, CALLERS, PROCESSES = 1_000, 50, 4


def guarded(app, place):
    @app.once(key="order:{order_id}")
    async def charge(order_id):
        place.do(f"charge {order_id}")
        return f"receipt {order_id}"

    return charge


def naive(app, place):
    """The control: look whether it was done, do it, write that it was done."""
    done = place.directory / "done"
    done.mkdir(exist_ok=True)

    async def charge(order_id):
        mark = done / str(order_id)
        if not mark.exists():
            await asyncio.sleep(0)
            place.do(f"charge {order_id}")
            mark.touch()
        return f"receipt {order_id}"

    return charge


def calls_of(process, keys):
    """This process's share of all calls, shuffled the same way each time the test runs."""
    calls = [key for key in range(keys) for _ in range(CALLERS)][process::PROCESSES]
    random.Random(process).shuffle(calls)
    return iter(calls)


async def deliver(charge, calls, answers):
    for order_id in calls:
        try:
            answers[order_id, await charge(order_id)] += 1
        except InProgress:
            answers[order_id, "in progress"] += 1


def storm(place, make, keys):
    """Every process delivers its share with 64 at once; what they were answered, in one count."""

    def work(process):
        async def main(charge, answers):
            calls = calls_of(process, keys)
            await asyncio.gather(*(deliver(charge, calls, answers) for _ in range(64)))

        def run(child):
            answers: Counter = Counter()
            with place.app() as app:
                charge = make(app, place)
                child.tell("ready")
                child.wait_for_go()
                asyncio.run(main(charge, answers))
            child.tell([[*key, count] for key, count in answers.items()])

        return run

    children = [Child(work(process)) for process in range(PROCESSES)]
    assert [child.hear() for child in children] == ["ready"] * PROCESSES
    for child in children:
        child.go()
    told = [child.hear() for child in children]
    assert [child.end() for child in children] == [0] * PROCESSES
    return Counter({(key, answer): count for part in told for key, answer, count in part})


@pytest.mark.slow
def test_fifty_thousand_calls_for_a_thousand_keys_have_a_thousand_effects(place):
    answers = storm(place, guarded, KEYS)
    assert sorted(place.effects()) == sorted(f"charge {key}" for key in range(KEYS))
    assert {answer for _, answer in answers} <= {"in progress", *(f"receipt {key}" for key in range(KEYS))}
    assert all(answer in ("in progress", f"receipt {key}") for key, answer in answers)


def test_control_looking_before_doing_does_some_things_twice(tmp_path):
    from tests.acceptance.places import SqlitePlace

    (tmp_path / "clock").write_text("0")
    place = SqlitePlace("", tmp_path)
    storm(place, naive, 100)
    assert len(place.effects()) > 100
