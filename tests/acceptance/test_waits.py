"""Waits on each store, with real processes: callbacks that race, workers that are killed, jobs that start once."""

from __future__ import annotations

import json
import signal

import pytest

from tests.acceptance.children import Child, die
from twiceproof import NeedsReview, Waiting
from twiceproof.flows.workers.due_work import resume_run
from twiceproof.operations import block

URL = "https://hooks.example.com"


def open_app(place):
    app = place.app()
    app.runtime.url = URL
    return app


def payment(app, timeout="7d"):
    @app.flow(key="order:{order}", name="payment")
    def pay(order):
        return app.wait_for("paid", timeout=timeout, default="too late")

    return pay


def at_once(place, acts):
    """Each in a process of its own, all at the same moment; what each of them says."""

    def work(act):
        def run(child):
            with open_app(place) as app:
                child.tell("ready")
                child.wait_for_go()
                child.tell(act(app))

        return run

    children = [Child(work(act)) for act in acts]
    for child in children:
        assert child.hear() == "ready"
    for child in children:
        child.go()
    said = [child.hear() for child in children]
    assert [child.end() for child in children] == [0] * len(children)
    return said


def deliver(payload):
    def act(app):
        told = app.deliver_to(flow="payment", key="order:1", name="paid", payload=payload)
        return [told.first, told.answer, told.state]

    return act


def test_of_callbacks_in_many_processes_exactly_one_counts(place):
    with open_app(place) as app, pytest.raises(Waiting):
        payment(app)(1)
    told = at_once(place, [deliver(number) for number in range(4)])
    winners = [answer for first, answer, _ in told if first]
    assert len(winners) == 1
    assert {answer for _, answer, _ in told} == set(winners)
    with open_app(place) as app:
        assert payment(app)(1) == winners[0]


def test_a_callback_that_races_the_run_as_it_lies_down_is_never_slept_through(place):
    """Whoever is first: the run is due afterwards, or has ended. It never waits for what has come."""
    with open_app(place) as app:
        payment(app).start(1)

    def begin(app):
        flow = payment(app).flow
        for record in app.store.due("run", queues=flow.queues).block().records:
            block(resume_run(flow, record))
        return "ran"

    ran, told = at_once(place, [begin, deliver("money")])
    assert (ran, told) == ("ran", [True, "money", "arrived"])
    with open_app(place) as app:
        assert payment(app)(1) == "money"


def test_a_time_out_and_a_callback_in_two_processes_agree_who_was_first(place):
    with open_app(place) as app, pytest.raises(Waiting):
        payment(app)(1)
    place.advance(7 * 86_400 + 1)

    def go_on(app):
        while True:  # a callback in between queues it again
            try:
                return payment(app)(1)
            except Waiting:
                continue

    result, (first, _, state) = at_once(place, [go_on, deliver("money")])
    assert (result, state) == (("money", "arrived") if first else ("too late", "timeout"))


def test_of_deciders_in_many_processes_exactly_one_counts(place):
    def asking(app):
        @app.flow(key="order:{order}", name="charge")
        def charge(order):
            return app.approve("charge", show={"total": 700}, default=None).by

        return charge

    with open_app(place) as app:
        with pytest.raises(Waiting):
            asking(app)(1)
        (asked,) = app.approvals()

    def decide(name):
        def act(app):
            told = app.decide(asked.id, True, by=name, shown=asked.digest)
            return [told.first, told.decision.by]

        return act

    told = at_once(place, [decide(f"p{number}") for number in range(4)])
    winners = [by for first, by in told if first]
    assert len(winners) == 1
    assert {by for _, by in told} == set(winners)
    with open_app(place) as app:
        assert asking(app)(1) == winners[0]
        assert app.approvals() == []


def test_killed_between_start_and_record_it_is_not_started_again_the_callback_tells(place):
    def rendering(app, deadly):
        def start(url, effect_key):
            place.do(json.dumps([url, effect_key]))
            if deadly:
                die()

        @app.flow(key="film:{film}", name="render")
        def render(film):
            return app.remote(start=start, callback="rendered", timeout="12h")

        return render

    child = Child(lambda _: rendering(open_app(place), deadly=True)("trailer"))
    assert child.end() == -signal.SIGKILL
    place.advance(31)
    with open_app(place) as app:
        with pytest.raises(Waiting):
            rendering(app, deadly=False)("trailer")
        ((url, _),) = map(json.loads, place.effects())
        assert app.deliver(url.rsplit("/", 1)[1], {"frames": 24}).first
        assert rendering(app, deadly=False)("trailer") == {"frames": 24}
    assert len(place.effects()) == 1


def test_killed_before_the_start_it_is_left_to_a_person_when_no_callback_comes(place):
    def rendering(app, start):
        @app.flow(key="film:{film}", name="render")
        def render(film):
            return app.remote(start=start, callback="rendered", timeout="12h")

        return render

    child = Child(lambda _: rendering(open_app(place), lambda url: die())("trailer"))
    assert child.end() == -signal.SIGKILL
    place.advance(31)
    with open_app(place) as app:
        again = rendering(app, lambda url: place.do("start"))
        with pytest.raises(Waiting):
            again("trailer")
    place.advance(31 + 12 * 3_600 + 1)
    with open_app(place) as app, pytest.raises(NeedsReview, match="no callback came in time"):
        rendering(app, lambda url: place.do("start"))("trailer")
    assert place.effects() == []
