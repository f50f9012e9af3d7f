"""The storm: starts everything, feeds the runs, kills the database, loses answers, and waits until all have ended."""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import psycopg

from tests.faults.chaos.crew import Orders
from tests.faults.chaos.effect_client import Effects
from tests.faults.chaos.order_flow import TABLE, declare, lending
from tests.servers import FaultProxy, PostgresServer
from twiceproof import App, StoreError

ROOT = Path(__file__).parents[3]
STATES = "SELECT state, count(*) FROM twiceproof.twiceproof_records WHERE kind = 'run' GROUP BY state"
LOSABLE = (b"twiceproof_commit", b"twiceproof_", b"COMMIT", None)  # by what their requests carry
ENDS = ("done", "failed", "review")
FEEDERS = 8
PORTION = 200  # runs that are started at a time
BACKLOG = 800  # limit of waiting runs, so that those left by killed workers do not wait behind them
LOOK_EVERY = 1.0


Say = Callable[[str], None]


class Plan(msgspec.Struct, frozen=True):
    """How long and how hard."""

    runs: int
    seed: int
    workers: int = 4
    places: int = 16  # of each worker
    kill_every: float = 1.0  # seconds between two kills of a worker
    database_kills: int = 5
    lose_every: float = 0.4  # seconds between two answers of the database that are lost
    lost_share: float = 0.01  # of the answers of the world outside
    calm_share: float = 0.98  # the chaos ends when this part of the runs has ended
    patience: float = 90.0  # for the rest of them
    bare: bool = False  # the control: steps without their protection


class Storm:
    """Chaos on a database server that may be killed. Everything is in `directory`: its logs are judged afterwards."""

    def __init__(self, plan: Plan, directory: Path, server: PostgresServer, say: Say) -> None:
        self.plan = plan
        self.directory = directory
        self.dsn = server.create_database()
        self._server = server
        self._say = say
        self._dice = random.Random(plan.seed)
        self._database_kills = 0
        self._ended = 0
        self._moved = 0.0  # when the last of them ended
        self._over = False

    @contextlib.contextmanager
    def raging(self) -> Iterator[Storm]:
        """Run the chaos, then end all faults; the database can be queried until the end of the block."""
        with contextlib.ExitStack() as stack:
            self._proxies = [
                stack.enter_context(FaultProxy(self._server.host, self._server.port))
                for _ in range(self.plan.workers // 2)
            ]  # half of the workers reach the database through a proxy of their own
            self._effects = stack.enter_context(self._world_outside())
            app = stack.enter_context(App(self.dsn))
            with psycopg.connect(self.dsn) as db:
                db.execute(TABLE)
            with self._crew() as crew:
                self._rage(app, crew)
            yield self

    def _rage(self, app: App, crew: subprocess.Popen[bytes]) -> None:
        self._effects.lose(self.plan.lost_share)
        with ThreadPoolExecutor(1) as feeder:
            fed = feeder.submit(self._feed, app)
            try:
                self._blow()
            finally:
                self._over = True  # or the feeder would wait for ever
            assert crew.stdin is not None
            crew.stdin.write(b"calm\n")
            crew.stdin.flush()
            self._effects.lose(0.0)
            fed.result()
        self._await_rest()

    # -- feeding ---------------------------------------------------------------------------------

    def _feed(self, app: App) -> None:
        fulfil = declare(app, self._effects, lending(self.dsn))
        with ThreadPoolExecutor(FEEDERS) as pool:
            for first in range(0, self.plan.runs, PORTION):
                while first - self._ended > BACKLOG and not self._over:
                    time.sleep(0.05)
                list(pool.map(partial(self._start, fulfil), range(first, min(first + PORTION, self.plan.runs))))

    def _start(self, fulfil: Any, n: int) -> None:
        """Start runs, again after every error: a second start of the same run finds the first."""
        while True:
            try:
                fulfil.start(n)
                return
            except StoreError:
                if self._over:
                    raise

    # -- faults ----------------------------------------------------------------------------------

    def _blow(self) -> None:
        """Continue until all but the last runs have ended, or no run ends any more."""
        now = next_loss = next_look = self._moved = time.monotonic()
        while self._ended < self.plan.calm_share * self.plan.runs and now < self._moved + self.plan.patience:
            now = time.monotonic()
            if now >= next_loss:
                self._lose_an_answer()
                next_loss = now + self._dice.expovariate(1 / self.plan.lose_every)
            if now >= next_look:
                self._look()
                self._kill_database_if_due()
                next_look = now + LOOK_EVERY
            time.sleep(0.02)

    def _lose_an_answer(self) -> None:
        proxy = self._dice.choice(self._proxies)
        proxy.drop_next_reply(self._dice.choice(LOSABLE), skip=self._dice.randrange(20))

    def _kill_database_if_due(self) -> None:
        """Kill at regular intervals, so that it always hits under load."""
        part = self.plan.calm_share * self.plan.runs / (self.plan.database_kills + 1)
        if self._database_kills < self.plan.database_kills and self._ended >= part * (self._database_kills + 1):
            self._database_kills += 1
            self._write("database killed")
            self._server.kill()
            self._server.start()
            self._write("database back")

    def _write(self, what: str) -> None:
        with (self.directory / "storm.log").open("a") as log:
            log.write(json.dumps({"at": time.monotonic(), "what": what}) + "\n")

    # -- watching --------------------------------------------------------------------------------

    def _look(self) -> None:
        with psycopg.connect(self.dsn) as db:
            states: dict[str, int] = dict(db.execute(STATES).fetchall())
        ended = sum(states.get(state, 0) for state in ENDS)
        if ended > self._ended:
            self._ended, self._moved = ended, time.monotonic()
        self._say(", ".join(f"{count:,} {state}" for state, count in sorted(states.items())))

    def _await_rest(self) -> None:
        """No work is lost: when the faults are over, all runs end within a time limit."""
        calm = time.monotonic()
        while self._ended < self.plan.runs and time.monotonic() < calm + self.plan.patience:
            time.sleep(0.5)
            self._look()

    @property
    def replies_lost(self) -> int:
        return sum(proxy.counters.replies_dropped for proxy in self._proxies)

    # -- processes -------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _world_outside(self) -> Iterator[Effects]:
        path = str(self.directory / "effects.sock")
        log = str(self.directory / "effects.log")
        words = ["tests.faults.chaos.effect_server", path, log, str(self.plan.seed)]
        with subprocess.Popen([sys.executable, "-m", *words], cwd=ROOT, stdout=subprocess.PIPE) as server:
            try:
                assert server.stdout is not None
                assert server.stdout.readline() == b"serving\n"
                effects = Effects(path, "the storm")
                yield effects
                effects.close()
            finally:
                server.kill()

    @contextlib.contextmanager
    def _crew(self) -> Iterator[subprocess.Popen[bytes]]:
        plan = self.plan
        far = [proxy.url(self.dsn) for proxy in self._proxies]
        dsns = far + [self.dsn] * (plan.workers - len(far))
        path, here = str(self.directory / "effects.sock"), str(self.directory)
        orders = Orders(dsns, path, here, plan.seed, plan.kill_every, plan.places, plan.bare)
        command = [sys.executable, "-m", "tests.faults.chaos.crew", msgspec.json.encode(orders).decode()]
        with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE) as crew:
            yield crew
            assert crew.stdin is not None
            crew.stdin.close()  # it ends when its input does
