"""Forked workers and processes of their own: one file, one winner, and nobody's threads are missed."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from twiceproof import App, ClaimLost, Duplicate, InProgress, NeedsReview
from twiceproof.operations import block


def in_child(work: Any) -> Any:
    """What `work` returns or raises in a forked child."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover - in the child
        try:
            answer = work()
        except BaseException as error:  # noqa: BLE001
            answer = error
        try:
            with os.fdopen(write, "wb") as pipe:
                pickle.dump(answer, pipe)
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        answer = pickle.loads(pipe.read())
    os.waitpid(child, 0)
    if isinstance(answer, BaseException):
        raise answer
    return answer


@pytest.fixture
def forking(tmp_path: Path) -> Any:
    with App(f"sqlite:///{tmp_path}/fork.db") as app:
        log = tmp_path / "effects"

        @app.once(key="order:{order}", lease="20s")
        def pay(order: int) -> int:
            with log.open("a") as effects:
                effects.write(f"{order}\n")
            return order * 10

        yield app, pay, log


def test_a_forked_child_uses_the_app_and_the_parent_still_works(forking: Any) -> None:
    _, pay, log = forking
    assert pay(1) == 10
    assert in_child(lambda: (pay(1), pay(2))) == (10, 20)
    assert (pay(2), pay(3)) == (20, 30)
    assert log.read_text().split() == ["1", "2", "3"]
    assert in_child(lambda: pay(3)) == 30


def test_a_forked_child_has_owners_of_its_own(forking: Any) -> None:
    app, _, _ = forking
    parents, childs = app._owner(), in_child(app._owner)
    assert parents.rsplit("-", 1)[0] != childs.rsplit("-", 1)[0]
    assert str(os.getpid()) in parents and str(os.getpid()) not in childs


def test_a_forked_child_beats_for_its_own_claims_and_not_for_its_parents(forking: Any) -> None:
    app, _, _ = forking

    @app.once(key="fork:{order}")
    def work(order: int) -> tuple[int, bool]:
        return in_child(lambda: (len(app._heartbeat._holds), not app._heartbeat._thread.started))  # type: ignore[no-any-return]

    assert work(1) == (0, True)


def test_a_child_finds_its_parents_claim_busy(forking: Any) -> None:
    app, pay, _ = forking
    block(app.claims.take(pay.once.request((5,), {})))
    with pytest.raises(InProgress):
        in_child(lambda: pay(5))


class Fork:
    """Inside the work: the child goes its own way, the parent waits for its end."""

    def __init__(self) -> None:
        self.parent = os.getpid()
        self.code: int | None = None

    def __call__(self) -> bool:
        """Whether this is the child."""
        child = os.fork()
        if child:
            self.code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return not child

    def end_the_child(self, answer: Any) -> None:
        """It came out of the guarded call, with this: 0 if it is what it should be."""
        if os.getpid() != self.parent:  # pragma: no cover - in the child
            os._exit(0 if answer == "child" else 1)


WAYS = ["returns", "exits"]


def leave(way: str) -> str:  # pragma: no cover - in the child
    if way == "exits":
        raise SystemExit(7)
    return "child"


def played(fork: Fork, call: Any) -> Any:
    try:
        answer = call()
    except SystemExit as error:  # pragma: no cover - in the child
        answer = "child" if error.code == 7 else error
    except ClaimLost as error:  # pragma: no cover - in the child
        answer = "child" if "forked" in str(error) else error
    except BaseException as error:
        if os.getpid() == fork.parent:
            raise
        answer = error  # pragma: no cover - in the child
    fork.end_the_child(answer)
    return answer


@pytest.mark.parametrize("way", WAYS)
def test_a_child_that_leaves_through_the_call_says_nothing_of_its_parents_claim(forking: Any, way: str) -> None:
    app, _, _ = forking
    fork = Fork()

    @app.once(key="order:{order}")
    def work(order: int) -> str:
        return leave(way) if fork() else "parent"

    assert (played(fork, lambda: work(9)), fork.code) == ("parent", 0)
    assert work(9) == "parent"


@pytest.mark.parametrize("way", WAYS)
def test_a_child_that_leaves_through_a_block_says_nothing_about_its_parents_claim(forking: Any, way: str) -> None:
    app, _, _ = forking
    fork = Fork()

    def work() -> Any:
        with app.claim("ship", "order:9") as claim:
            child = fork()
            assert claim.lost is child
            claim.result = leave(way) if child else "parent"
        return claim.result

    assert (played(fork, work), fork.code) == ("parent", 0)
    with pytest.raises(Duplicate) as told:
        work()
    assert told.value.result == "parent"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("where", ["step", "body"])
def test_a_child_that_leaves_through_a_flow_says_nothing_about_its_parents_run(
    forking: Any, tmp_path: Path, way: str, where: str
) -> None:
    app, _, _ = forking
    fork, log = Fork(), tmp_path / "shipped"

    @app.step(repeat="never")
    def charge(order: int) -> str:
        return leave(way) if where == "step" and fork() else "parent"

    @app.step(repeat="safe")
    def ship(order: int) -> None:
        with log.open("a") as effects:
            effects.write("shipped\n")

    @app.flow(key="order:{order}", limit=1)
    def sell(order: int) -> str:
        answer: str = charge(order)
        if where == "body" and fork():
            return leave(way)
        if answer == "parent":
            ship(order)
        return answer

    assert (played(fork, lambda: sell(9)), fork.code) == ("parent", 0)
    assert (sell(9), log.read_text()) == ("parent", "shipped\n")


def test_a_child_gives_no_slot_of_its_parent_back(forking: Any) -> None:
    app, _, _ = forking
    fork, slots = Fork(), list[str]()

    @app.flow(key="order:{order}", limit=1)
    def sell(order: int) -> str:
        if fork():
            return leave("exits")
        for kind in ("run", "claim"):
            slots.extend(record.at.space for record in app.claims.store.scan(kind).block().records)
        return "parent"

    assert (played(fork, lambda: sell(9)), fork.code) == ("parent", 0)
    assert sorted(space.split("/")[1] for space in slots) == ["sell", "sell@slots"]


def test_a_child_does_no_step_of_its_parents_run(forking: Any, tmp_path: Path) -> None:
    app, _, _ = forking
    fork, log = Fork(), tmp_path / "shipped"

    @app.step(repeat="safe")
    def ship(order: int) -> None:
        with log.open("a") as effects:
            effects.write("shipped\n")

    @app.flow(key="order:{order}")
    def sell(order: int) -> str:
        try:
            if fork():
                ship(order)
        except ClaimLost:
            return "child"
        ship(order)
        return "parent"

    assert (played(fork, lambda: sell(9)), fork.code) == ("parent", 0)
    assert (sell(9), log.read_text()) == ("parent", "shipped\n")


def test_a_killed_child_leaves_its_claim_to_a_person(tmp_path: Path) -> None:
    from twiceproof.prove.clocks import ManualClock

    clock = ManualClock()
    with App(f"sqlite:///{tmp_path}/kill.db", clock=clock) as app:

        @app.once(key="order:{order}")
        def pay(order: int) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        child = os.fork()
        if child == 0:  # pragma: no cover - in the child
            pay(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        with pytest.raises(InProgress):
            pay(1)
        clock.advance(31)
        with pytest.raises(NeedsReview, match="stopped without a word"):
            pay(1)


RACER = """
import sys
from twiceproof import App
app = App(sys.argv[1])

@app.once(key="order:{order}", on_duplicate="wait")
def pay(order: int) -> int:
    with open(sys.argv[2], "a") as effects:
        effects.write(f"{order}\\n")
    return order

sys.stdin.read()
assert [pay(order) for order in range(40)] == list(range(40))
app.close()
"""


def test_three_processes_at_once_do_each_work_once(tmp_path: Path) -> None:
    App(f"sqlite:///{tmp_path}/race.db").close()
    args = [sys.executable, "-c", RACER, f"sqlite:///{tmp_path}/race.db", str(tmp_path / "effects")]
    racers = [subprocess.Popen(args, stdin=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(3)]
    errors = [racer.communicate(timeout=60)[1].decode() for racer in racers]
    assert [racer.returncode for racer in racers] == [0, 0, 0], errors
    assert sorted(map(int, (tmp_path / "effects").read_text().split())) == list(range(40))
