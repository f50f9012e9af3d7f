"""The killing itself: processes die at the given points, and every point is tried."""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.catalogue.f01_worker_killed import drawn, some
from tests.faults.catalogue.f02_killed_at_syscall import drawn as drawn_calls
from tests.faults.catalogue.f09_zombies import stopped
from tests.faults.catalogue.killing.deadly import AFTER, BEFORE, LANDED, POSITIONS, Deadly, Orders, Point
from tests.faults.catalogue.killing.outside import Outside
from tests.faults.catalogue.killing.round import forked
from tests.faults.catalogue.killing.scenes import SCENES
from twiceproof.records import Address, Batch, Insert
from twiceproof.stores.sqlite.engine import SqliteEngine

FIRST, SECOND = Address("a", "claim", "self"), Address("b", "claim", "self")
POINT = Point("the first", lambda write: write.at == FIRST)


def insert(engine: Deadly, at: Address) -> None:
    engine.commit([Batch([Insert(at, "{}", draw=True)], f"nonce {at.space}")])


def killed(path: Path, position: str) -> int:
    """A process with two commits, the first of which is meant."""

    def work() -> None:
        engine = Deadly(SqliteEngine(path), Orders(POINT, position), lambda space, fence: None)
        insert(engine, FIRST)
        (path.parent / "heard").write_text("")
        insert(engine, SECOND)

    return forked(work)


@pytest.mark.parametrize(
    ("position", "landed", "heard"), [(BEFORE, False, False), (LANDED, True, False), (AFTER, True, True)]
)
def test_a_process_dies_where_it_was_told_to(tmp_path: Path, position: str, landed: bool, heard: bool) -> None:
    assert killed(tmp_path / "a.db", position) == -signal.SIGKILL
    engine = SqliteEngine(tmp_path / "a.db")
    first, second = engine.fetch([FIRST, SECOND])
    engine.close()
    assert (first.record is not None, (tmp_path / "heard").exists()) == (landed, heard)
    assert second.record is None


def test_a_process_without_orders_lives(tmp_path: Path) -> None:
    assert killed(tmp_path / "a.db", "nowhere") == 0


def test_a_round_has_every_point_in_every_position_once() -> None:
    cases = list(drawn(SCENES, random.Random(1)))
    points = [point.name for scene in SCENES for point in scene.points]
    assert len(points) == len(set(points)) >= 20
    assert {(case.point, case.position) for case in cases} == {(point, at) for point in points for at in POSITIONS}
    assert len({case.order for case in cases}) == len(cases)


def test_the_last_round_is_no_longer_than_what_is_left() -> None:
    cases = list(drawn(SCENES, random.Random(1)))
    assert len(some(cases, 7, random.Random(2))) == 7
    assert some(cases, 10_000, random.Random(2)) == cases


def test_zombies_of_both_kinds_have_orders_of_their_own() -> None:
    orders = [case.order for early in (False, True) for case in stopped(SCENES, early=early)]
    assert len(orders) == len(set(orders))


def test_a_whole_run_kills_at_every_call_and_a_part_of_it_at_some_of_each_kind() -> None:
    made = {"pwrite64": 40, "fdatasync": 7}
    whole = drawn_calls(made, True, 60, random.Random(1))
    assert {(call.name, call.nth) for call in whole} == {(name, n + 1) for name in made for n in range(made[name])}
    part = Counter(call.name for call in drawn_calls(made, False, 6, random.Random(1)))
    assert part == {"pwrite64": 6, "fdatasync": 6}


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Outside]:
    made = Outside(tmp_path)
    yield made
    made.close()


def test_what_happens_outside_is_read_on_from_where_one_was(outside: Outside) -> None:
    outside.note("charge", 1, "effect", "first")
    assert outside.read("effect")["charge", 1] == ["first"]
    forked(lambda: outside.note("charge", 1, "effect", "by a fork"))
    outside.note("charge", 1, "told", "something else")
    assert outside.read("effect")["charge", 1] == ["first", "by a fork"]
