"""A run begun by one release and gone on with by the next: its own code was killed, and other code finds the ledger."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.children import Child, die
from tests.acceptance.later import pass_time
from twiceproof import NeedsReview

LEASE = 600.0
ROOT = Path(__file__).parents[2]


def release(app, place, names, deadly=""):
    """A release whose flow calls these steps, in this order."""

    def step(name):
        @app.step(repeat="safe", name=name.lower() if name == "B" else name)
        def work(order, total=0):
            place.do(f"{order} {name}")
            if name == deadly:
                die()
            return name

        return work

    steps = {name: step(name) for name in names}

    @app.flow(key="order:{order}", lease=LEASE)
    def sync(order):
        return "".join(steps[name](order, **{"total": 7} if name == "B" else {}) for name in names)

    return sync


BEFORE = {  # the frontier: a and b are on record, c was under way
    "axbc": "x is new before b",
    "xbc": "x is new before a, b",
    "ac": "c is new before b",
    "a": "no longer calls b",
    "aBc": "b was called with another total",
}
AFTER = ["abc", "abxc", "abcx", "ab", "abx"]


def killed(place, orders):
    """Runs of the first release, each killed in its third step."""
    for order in orders:
        child = Child(lambda _, order=order: release(place.app(), place, "abc", deadly="c")(order))
        assert child.end() == -signal.SIGKILL
    pass_time(place, LEASE + 1)
    assert len(place.effects()) == 3 * len(orders)


def test_a_change_before_the_frontier_stops_in_review_and_nothing_is_done(place):
    orders = dict(enumerate(BEFORE))
    killed(place, orders)
    for order, names in orders.items():
        with place.app() as app, pytest.raises(NeedsReview, match=BEFORE[names]):
            release(app, place, names)(order)
    assert len(place.effects()) == 3 * len(orders)


def test_a_change_after_the_frontier_goes_on(place):
    orders = dict(enumerate(AFTER))
    killed(place, orders)
    for order, names in orders.items():
        with place.app() as app:
            assert release(app, place, names)(order) == names
        done = [line.split()[1] for line in place.effects() if line.startswith(f"{order} ")]
        assert done == ["a", "b", "c", *names[2:]]


# -- the same with modules, as they are deployed -------------------------------------------------

HEAD = """
import os, threading
from pathlib import Path
from tests.acceptance.children import die
from tests.acceptance.places import PostgresPlace, RedisPlace, SqlitePlace

place = {kind}({url!r}, Path({folder!r}))
app = place.app()
both = threading.Barrier(2, action=die, timeout=60)

@app.step(repeat="safe")
def reserve(order):
    place.do("reserve")

@app.step(repeat="safe")
def charge(order):
    place.do("charge")

@app.step(repeat="safe")
def mail(order):
    place.do("mail")

"""
FIRST = """
@app.step(repeat="safe")
def pack(order):
    both.wait()

@app.flow(key="order:{order}", lease=600)
def grows(order):
    reserve(order)
    pack(order)

@app.flow(key="order:{order}", lease=600)
def shifts(order):
    reserve(order)
    pack(order)
"""
SECOND = """
@app.step(repeat="safe")
def pack(order):
    place.do("pack")

@app.flow(key="order:{order}", lease=600)
def grows(order):
    reserve(order)
    pack(order)
    mail(order)

@app.flow(key="order:{order}", lease=600)
def shifts(order):
    charge(order)
    reserve(order)
    pack(order)
"""


def deploy(place, text):
    """Put a release in place and run a worker of it until nothing is due."""
    head = HEAD.format(kind=type(place).__name__, url=place.url, folder=str(place.directory))
    (place.directory / "shop_release.py").write_text(head + text)
    command = [sys.executable, "-B", "-m", "twiceproof", "work", "shop_release:app", "--until-idle"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    ended = subprocess.run(command, cwd=place.directory, env=environment, capture_output=True, text=True, timeout=120)
    return ended.returncode, ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize("place", ["sqlite", pytest.param("postgres", marks=pytest.mark.server)], indirect=True)
def test_a_worker_of_the_next_release_goes_on_with_what_has_not_changed_so_far(place):
    with place.app() as app:

        @app.flow(key="order:{order}")
        def grows(order):
            """Only workers have its steps."""

        @app.flow(key="order:{order}")
        def shifts(order):
            """Nor of this one."""

        handles = grows.start(1), shifts.start(1)
        code, said = deploy(place, FIRST)
        assert code == -signal.SIGKILL, said
        assert [handle.state for handle in handles] == ["held", "held"]
        pass_time(place, LEASE + 1)
        code, said = deploy(place, SECOND)
        assert code == 0, said
        assert [handle.state for handle in handles] == ["done", "review"]
        with pytest.raises(NeedsReview, match="charge is new before reserve"):
            handles[1].result(1)
    assert place.effects() == ["reserve", "reserve", "pack", "mail"]
