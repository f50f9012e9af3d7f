"""Heartbeats: claims stay alive while their work runs, and a lost one is noticed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from msgspec import structs

from twiceproof import App, ClaimLost, InProgress, StoreUnavailable
from twiceproof.claims.claim import Done, LostHold
from twiceproof.claims.held_claim import Heartbeat, HeldClaim


def elsewhere(call: Any) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


def test_work_that_outlasts_its_lease_keeps_its_claim_by_beating(app: App, clock: Any, style: Any) -> None:
    def pay(order: int) -> str:
        for _ in range(10):
            clock.advance(10)
            app._heartbeat.beat()
        with pytest.raises(InProgress) as told:
            elsewhere(lambda: guarded(1))
        assert told.value.retry_after == 30.0
        return "paid"

    guarded = style.once(app, pay)
    assert (guarded(1), guarded(1)) == ("paid", "paid")


def test_a_beat_before_a_third_of_the_lease_writes_nothing(desk: Any) -> None:
    heartbeat, hold, beats = _keeping(desk)
    with kept(heartbeat, hold):
        for seconds, count in ((9.9, 0), (0.1, 1), (9.9, 1), (0.1, 2)):
            desk.clock.advance(seconds)
            heartbeat.beat()
            assert len(beats) == count
    heartbeat.stop()


@contextlib.contextmanager
def kept(heartbeat: Heartbeat, hold: HeldClaim) -> Iterator[None]:
    heartbeat.keep(hold)
    yield
    heartbeat.drop(hold)


def _keeping(desk: Any) -> tuple[Heartbeat, HeldClaim, list[float]]:
    beats: list[float] = []

    def renew(held: Any) -> Any:
        beats.append(desk.clock.now())
        return desk.claims.renew(held)

    held, _ = desk.held()
    return Heartbeat(renew, clock=desk.clock), HeldClaim(desk.ask(), held), beats


def test_nothing_is_renewed_after_the_event_loop_of_the_work_was_closed(desk: Any, caplog: Any) -> None:
    """A task that somebody still refers to is never ended; renewed, its claim would be held until the process ends."""
    heartbeat, hold, beats = _keeping(desk)

    async def work() -> None:
        heartbeat.keep(hold)
        await asyncio.Event().wait()

    loop = asyncio.new_event_loop()
    task = loop.create_task(work())
    loop.run_until_complete(asyncio.sleep(0))
    desk.clock.advance(10)
    heartbeat.beat()
    assert len(beats) == 1
    loop.close()
    desk.clock.advance(10)
    heartbeat.beat()
    assert len(beats) == 1 and not task.done()
    assert "its event loop is closed" in caplog.text
    task.get_coro().close()  # type: ignore[union-attr]
    heartbeat.stop()


def test_nothing_is_renewed_after_the_work_ended(desk: Any) -> None:
    heartbeat, hold, beats = _keeping(desk)
    with kept(heartbeat, hold):
        pass
    desk.clock.advance(100)
    heartbeat.beat()
    assert beats == []
    heartbeat.stop()


def test_a_lost_claim_is_noticed_and_not_renewed_again(desk: Any, caplog: Any) -> None:
    heartbeat, hold, beats = _keeping(desk)
    with kept(heartbeat, hold):
        desk.clock.advance(31)
        desk.held("bob", repeat="safe")
        with caplog.at_level(logging.WARNING, "twiceproof"):
            heartbeat.beat()
        desk.clock.advance(31)
        heartbeat.beat()
    assert hold.lost == LostHold("held", "bob")
    assert len(beats) == 1
    assert "lost the claim default/pay/order:1" in caplog.text
    heartbeat.stop()


def test_a_claim_lost_while_the_work_ran_ends_in_claim_lost(app: App, clock: Any, style: Any) -> None:
    runs: list[int] = []

    def pay(order: int) -> int:
        runs.append(order)
        mine = len(runs)
        if mine == 1:
            clock.advance(31)
            elsewhere(lambda: guarded(1))
            app._heartbeat.beat()
        return mine

    guarded = style.once(app, pay, repeat="safe")
    with pytest.raises(ClaimLost):
        guarded(1)
    assert (guarded(1), runs) == (2, [1, 1])


@pytest.mark.parametrize("error", [StoreUnavailable("away"), ValueError("a bug")], ids=["store", "bug"])
def test_one_claim_that_cannot_be_renewed_does_not_starve_the_others(desk: Any, error: Exception) -> None:
    renewed: list[str] = []

    def renew(held: Any) -> Any:
        renewed.append(held.owner)
        if held.owner == "ann" and renewed.count("ann") == 1:
            raise error
        return desk.claims.renew(held)

    heartbeat = Heartbeat(renew, clock=desk.clock)
    ann, _ = desk.held("ann")
    bob, _ = desk.held("bob", at=type(ann.at)("default/pay/order:2", "claim", "self"))
    with kept(heartbeat, HeldClaim(desk.ask("ann"), ann)), kept(heartbeat, HeldClaim(desk.ask("bob"), bob)):
        desk.clock.advance(10)
        heartbeat.beat()
        heartbeat.beat()
    assert renewed == ["ann", "bob", "ann"]
    heartbeat.stop()


@pytest.mark.parametrize("error", [StoreUnavailable("away"), ValueError("a bad record")], ids=["store", "bug"])
def test_housekeeping_that_fails_does_not_end_the_heartbeats(desk: Any, error: Exception) -> None:
    chores = threading.Semaphore(0)

    def chore() -> None:
        chores.release()
        raise error

    held, _ = desk.held(lease=0.01)
    heartbeat = Heartbeat(desk.claims.renew, clock=desk.clock, chore=chore)
    with kept(heartbeat, HeldClaim(desk.ask(), held)):
        assert all(chores.acquire(timeout=10) for _ in range(3))
    heartbeat.stop()


def test_the_heartbeats_thread_beats_by_itself(tmp_path: Any) -> None:
    """On real time: the work waits until it was renewed, however busy the machine is."""
    with App(f"sqlite:///{tmp_path}/beat.db") as app:
        renewed = threading.Semaphore(0)
        renew = app._heartbeat._renew
        app._heartbeat._renew = lambda held: (renewed.release(), renew(held))[1]

        @app.once(key="order:{order}", lease=3)
        def pay(order: int) -> str:
            assert renewed.acquire(timeout=10)
            return "paid"

        assert pay(1) == "paid"


def test_where_no_more_threads_are_to_be_had_claims_are_kept_alive_all_the_same(
    tmp_path: Any, monkeypatch: Any
) -> None:
    """The thread of the heartbeats runs, but no helper can be started. If it ended, every claim would lapse."""
    start = threading.Thread.start

    def exhausted(thread: threading.Thread) -> None:
        if thread.name.startswith("twiceproof-heartbeat_"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr("threading.Thread.start", exhausted)
    with App(f"sqlite:///{tmp_path}/beat.db") as app:
        renewed = threading.Semaphore(0)
        renew = app._heartbeat._renew
        app._heartbeat._renew = lambda held: (renewed.release(), renew(held))[1]

        @app.once(key="order:{order}", lease=1)
        def pay(order: int) -> str:
            assert all(renewed.acquire(timeout=10) for _ in range(3))
            return "paid"

        assert pay(1) == "paid"


LEFT_ALONE = """
import os
import threading
from twiceproof import App

app = App(f"sqlite:///{os.getcwd()}/beat.db?durability=process")
renewed = threading.Semaphore(0)
renew = app._heartbeat._renew
app._heartbeat._renew = lambda held: (renewed.release(), renew(held))[1]

@app.once(key="order:{order}", lease=0.9)
def pay(order):
    begun.set()
    main.join()
    return [renewed.acquire(timeout=10) for _ in range(3)]

begun, main = threading.Event(), threading.main_thread()
threading.Thread(target=lambda: print(pay(1))).start()
begun.wait()  # a claim that begins later finds, on Python 3.12, no thread to beat for it, and is given back
"""


def test_work_in_a_thread_that_outlives_the_main_one_keeps_its_claim(tmp_path: Any) -> None:
    """On real time, in a process of its own: Python is ending, and starts no helpers any more."""
    told = subprocess.run(
        [sys.executable, "-c", LEFT_ALONE], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (told.stdout, told.stderr) == ("[True, True, True]\n", "")


@pytest.mark.parametrize("error", [RuntimeError("can't register atexit after shutdown"), MemoryError()])
def test_where_no_helpers_are_to_be_had_at_all_claims_are_kept_alive(
    desk: Any, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none() -> Any:
        raise error

    monkeypatch.setattr("twiceproof.claims.held_claim._make_helpers", none)
    heartbeat, hold, beats = _keeping(desk)
    with kept(heartbeat, hold):
        for count in (1, 2):
            desk.clock.advance(10)
            heartbeat._send_out(heartbeat._due())
            assert (len(beats), hold.beating) == (count, False)
    heartbeat.stop()


def test_nothing_that_fails_ends_the_heartbeats(desk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are all that keeps every claim of this process alive."""
    looks = threading.Semaphore(0)

    def broken() -> Any:
        looks.release()
        raise RuntimeError("a bug")

    heartbeat, hold, _ = _keeping(desk)
    hold.held = structs.replace(hold.held, lease=0.01)
    monkeypatch.setattr(heartbeat, "_due", broken)
    with kept(heartbeat, hold):
        assert all(looks.acquire(timeout=10) for _ in range(3))
    heartbeat.stop()


def test_a_thread_that_could_not_be_had_once_is_had_the_next_time(tmp_path: Any, monkeypatch: Any) -> None:
    """Or no claim of this process would be renewed any more, and all would lapse under their work."""
    start, refusals = threading.Thread.start, ["once"]

    def exhausted(thread: threading.Thread) -> None:
        if thread.name == "twiceproof-heartbeat" and refusals:
            raise RuntimeError(f"can't start new thread {refusals.pop()}")
        start(thread)

    monkeypatch.setattr("threading.Thread.start", exhausted)
    with App(f"sqlite:///{tmp_path}/beat.db") as app:
        renewed = threading.Semaphore(0)
        renew = app._heartbeat._renew
        app._heartbeat._renew = lambda held: (renewed.release(), renew(held))[1]

        @app.once(key="order:{order}", lease=1)
        def pay(order: int) -> str:
            assert renewed.acquire(timeout=10)
            return "paid"

        with pytest.raises(RuntimeError):
            pay(1)
        assert app._heartbeat._holds == {}
        assert pay(1) == "paid"


def test_an_app_closes_whose_heartbeats_never_had_a_thread(tmp_path: Any, monkeypatch: Any) -> None:
    def exhausted(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("threading.Thread.start", exhausted)
    with App(f"sqlite:///{tmp_path}/beat.db") as app, pytest.raises(RuntimeError), app.claim("ship", "order:1"):
        raise AssertionError


def test_a_blocked_event_loop_does_not_stop_the_heartbeats(tmp_path: Any) -> None:
    with App(f"sqlite:///{tmp_path}/beat.db") as app:
        renewed = threading.Semaphore(0)
        renew = app._heartbeat._renew
        app._heartbeat._renew = lambda held: (renewed.release(), renew(held))[1]

        @app.once(key="order:{order}", lease=3)
        async def pay(order: int) -> str:
            assert renewed.acquire(timeout=10)  # blocks the loop's own thread
            return "paid"

        assert asyncio.run(pay(1)) == "paid"


def test_stopping_does_not_wait_for_a_tick() -> None:
    """Closing took five seconds once, see test_threads.py."""
    heartbeat = Heartbeat(lambda held: iter(()))  # type: ignore[arg-type, return-value]
    heartbeat._start(300.0)
    stopping = threading.Thread(target=heartbeat.stop)
    stopping.start()
    stopping.join(4)
    assert not stopping.is_alive()


def test_a_stopped_heartbeat_starts_no_thread_again(memory: App) -> None:
    @memory.once(key="order:{order}")
    def pay(order: int) -> int:
        return order

    pay(1)
    memory.close()
    assert not memory._heartbeat._thread.is_alive()


def test_a_straggling_beat_after_the_end_is_no_loss(app: App, clock: Any) -> None:
    """The beat was on its way when the work ended; it finds the claim done, and that is right."""

    @app.once(key="order:{order}")
    def pay(order: int) -> int:
        held.append(next(iter(app._heartbeat._holds.values())))
        return order

    held: list[HeldClaim] = []
    pay(1)
    app._heartbeat._beat_one(held[0])
    assert held[0].lost is None
    assert isinstance(pay.look(1), Done)
