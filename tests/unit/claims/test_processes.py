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

from twiceproof import App, InProgress, NeedsReview
from twiceproof.drive import block


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
        return in_child(lambda: (len(app._heartbeat._holds), app._heartbeat._thread is None))  # type: ignore[no-any-return]

    assert work(1) == (0, True)


def test_a_child_finds_its_parents_claim_busy(forking: Any) -> None:
    app, pay, _ = forking
    block(app.claims.take(pay.once.ask((5,), {})))
    with pytest.raises(InProgress):
        in_child(lambda: pay(5))


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
