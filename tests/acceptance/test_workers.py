"""Worker processes on one store share the work, give it back, and recover what a dead one left. Counted outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from twiceproof import App

PATIENT = 30.0
LEASE = 1.5

MODULE = """
import os, time
from pathlib import Path
from twiceproof import App

app = App(os.environ["SHOP_STORE"])
here = Path(os.environ["SHOP"])

def do(what):
    with (here / "effects").open("a") as log:
        log.write(f"{os.getpid()} {what}\\n")

def wait_for(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)

def pids():
    return {line.split()[0] for line in (here / "effects").read_text().splitlines()}

@app.step(repeat="safe")
def pack(n):
    do(f"pack {n}")
    wait_for(lambda: len(pids()) == 2)  # until the other worker has begun something too
    return n

@app.flow(key="order:{n}")
def order(n: int):
    return pack(n)

@app.step(repeat="safe")
def first(n):
    do("first began")
    wait_for((here / "go").exists)
    do("first ended")
    return n

@app.step(repeat="never")
def second(n):
    do("second")
    return n + 1

@app.flow(key="two:{n}", lease=float(os.environ["SHOP_LEASE"]))
def two(n: int):
    return second(first(n))

@app.flow(key="quick:{n}")
async def quick(n: int):
    return n * 2
"""


class Shop:
    """A module with an app in it, a store that any process can open, and the effects outside of both."""

    def __init__(self, store: str, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "SHOP_STORE": store, "SHOP": str(folder), "SHOP_LEASE": str(LEASE)}
        (folder / "workshop.py").write_text(MODULE)
        (folder / "effects").touch()
        self.app = App(store)
        self.workers: list[subprocess.Popen[str]] = []

        @self.app.flow(key="order:{n}")
        def order(n: int) -> int:
            raise AssertionError("only workers have the steps")

        @self.app.flow(key="two:{n}", lease=LEASE)
        def two(n: int) -> int:
            raise AssertionError("only workers have the steps")

        @self.app.flow(key="quick:{n}")
        def quick(n: int) -> int:
            raise AssertionError("only workers have the steps")

        self.order, self.two, self.quick = order, two, quick

    def worker(self, *words: str) -> subprocess.Popen[str]:
        worker = subprocess.Popen(
            [sys.executable, "-m", "twiceproof", "work", "workshop:app", *words],
            cwd=self.folder,
            env=self.environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.workers.append(worker)
        self.heard(worker, "running ")
        return worker

    def heard(self, worker: subprocess.Popen[str], what: str) -> None:
        assert worker.stderr is not None
        for line in worker.stderr:
            if what in line:
                return
        raise AssertionError(f"it never said {what}")

    def effects(self) -> list[str]:
        return [line.split(" ", 1)[1] for line in (self.folder / "effects").read_text().splitlines()]

    def wait_for(self, effect: str, times: int = 1) -> None:
        end = time.monotonic() + PATIENT
        while self.effects().count(effect) < times:
            assert time.monotonic() < end, self.effects()
            time.sleep(0.005)

    def close(self) -> None:
        for worker in self.workers:
            worker.kill()
            worker.wait()
            if worker.stderr is not None:
                worker.stderr.close()
        self.app.close()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.server)])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    sqlite = f"sqlite:///{tmp_path}/ledger.db"
    shop = Shop(sqlite if request.param == "sqlite" else request.getfixturevalue("postgres_dsn"), tmp_path)
    yield shop
    shop.close()


def test_two_workers_share_the_runs_and_each_is_carried_out_once(shop):
    handles = [shop.order.start(n) for n in range(200)]
    both = [shop.worker("--until-idle", "--concurrency", "2") for _ in range(2)]
    assert [handle.result(PATIENT) for handle in handles] == list(range(200))
    assert [worker.wait(PATIENT) for worker in both] == [0, 0]
    assert Counter(shop.effects()) == {f"pack {n}": 1 for n in range(200)}
    pids = {line.split()[0] for line in (shop.folder / "effects").read_text().splitlines()}
    assert pids == {str(worker.pid) for worker in both}


def test_an_idle_worker_in_another_process_is_woken_by_a_start(shop):
    """Left to itself, it would look again only after 20 seconds."""
    shop.worker()
    for n in range(3):
        assert shop.quick.start(n).result(10) == n * 2


def test_a_worker_that_is_told_to_stop_lets_its_step_end_and_gives_the_run_back(shop):
    handle = shop.two.start(1)
    worker = shop.worker()
    shop.wait_for("first began")
    worker.send_signal(signal.SIGTERM)
    shop.heard(worker, "draining")
    (shop.folder / "go").touch()
    assert worker.wait(PATIENT) == 0
    assert shop.effects() == ["first began", "first ended"]
    assert handle.state == "queued"
    shop.worker()  # not until it is idle: the first one's last look may have hidden the run for some seconds
    assert handle.result(PATIENT) == 2
    assert shop.effects() == ["first began", "first ended", "second"]


def test_a_second_signal_ends_it_at_once(shop):
    shop.two.start(1)
    worker = shop.worker("--drain", "1h")
    shop.wait_for("first began")
    worker.send_signal(signal.SIGINT)
    shop.heard(worker, "draining")
    worker.send_signal(signal.SIGINT)
    assert worker.wait(PATIENT) == 1
    assert shop.effects() == ["first began"]


def test_a_drain_that_takes_too_long_is_cut_off(shop):
    shop.two.start(1)
    worker = shop.worker("--drain", "0s")
    shop.wait_for("first began")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENT) == 1


def test_what_a_killed_worker_was_at_is_recovered_by_another_when_its_lease_is_over(shop):
    handle = shop.two.start(1)
    worker = shop.worker()
    shop.wait_for("first began")
    other = shop.worker()
    worker.kill()
    shop.wait_for("first began", times=2)
    (shop.folder / "go").touch()
    assert handle.result(PATIENT) == 2
    assert Counter(shop.effects()) == {"first began": 2, "first ended": 1, "second": 1}
    other.terminate()
    assert other.wait(PATIENT) == 0
