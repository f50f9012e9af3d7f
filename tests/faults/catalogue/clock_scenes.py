"""Scenes in which clocks are wrong: two workers whose clocks disagree, and a database whose clock is set."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import Context
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from tests.acceptance.later import pass_time
from tests.acceptance.places import Place
from twiceproof import App, ClaimLost, InProgress, NeedsReview, Waiting
from twiceproof.claims.claim import address_of
from twiceproof.claims.retention import sweep
from twiceproof.operations import block
from twiceproof.prove.clocks import ShiftedClock
from twiceproof.stores.grouped import GroupedStore

__all__ = ["HOUR", "SHIFTS", "Scenes", "WorkerClock"]

HOUR, LEASE, SLACK = 3_600.0, 600.0, 120.0  # slack for a slow machine
SHIFTS = {  # offset of a worker's clock before its work, and from the middle on; the other's has the opposite sign
    "an hour ahead": (HOUR, HOUR),
    "an hour behind": (-HOUR, -HOUR),
    "five minutes ahead": (300.0, 300.0),
    "five minutes behind": (-300.0, -300.0),
    "set back in the middle": (0.0, -HOUR),
    "set forwards in the middle": (0.0, HOUR),
}
ZONES = {"Europe/Paris": "30 2 * * *", "America/New_York": "30 1 * * *", "Australia/Lord_Howe": "45 1 * * *"}


class WorkerClock(ShiftedClock):
    """One worker's own clock. Time that passes moves both readings; setting it moves only the wall time."""

    def __init__(self) -> None:
        super().__init__()
        self.gone = 0.0
        self.monotonic = lambda: time.monotonic() + self.gone

    def pass_(self, seconds: float) -> None:
        self.gone += seconds
        self.shift += seconds


class Scenes:
    """Scenes with two workers on one store. Each yields its errors."""

    def __init__(self, place: Place, wrap: Callable[[Any, WorkerClock], Any] = lambda engine, clock: engine) -> None:
        self.place = place
        self.wrong: list[str] = []
        self.fence_before = 0
        self.mine, self.other = self._open(wrap), self._open(wrap)

    def _open(self, wrap: Callable[[Any, WorkerClock], Any]) -> App:
        clock = WorkerClock()
        return App(GroupedStore(wrap(self.place.engine(), clock), clock=clock), best_effort=True, clock=clock)

    def close(self) -> None:
        self.mine.close()
        self.other.close()

    def play(self, scene: str, number: int, shift: str) -> None:
        self.number, self.where = number, f"run {number}, {scene}, worker's clock {shift}"
        before, self.during = SHIFTS[shift]
        self._set(before)
        SCENES[scene](self)

    def _set(self, shift: float) -> None:
        self.mine.clock.shift, self.other.clock.shift = shift, -shift

    # -- seen from outside -----------------------------------------------------------------------

    def expect(self, what: str, expected: object, seen: object) -> None:
        if expected != seen:
            self.wrong.append(f"{self.where}: {what}: expected {expected!r}, seen {seen!r:.160}")

    def effects(self, name: str) -> int:
        return self.place.effects().count(f"{name} {self.number}")

    def do(self, name: str) -> str:
        self.place.do(f"{name} {self.number}")
        return f"{name} {self.effects(name)}"

    def fence(self, name: str) -> int:
        found = self.mine.store.read(address_of("default", name, f"order:{self.number}")).block().record
        return found.fence if found else 0

    def guarded(self, app: App, name: str, meanwhile: Callable[[], object] = lambda: None, **options: Any) -> Any:
        """Call it in a context of its own, so that it does not count as part of the caller's work."""

        @app.once(key="order:{number}", name=name, lease=LEASE, **options)
        def work(number: int) -> str:
            receipt = self.do(name)
            meanwhile()
            return receipt

        return Context().run(attempt, lambda: work(self.number))

    # -- scenes: workers -------------------------------------------------------------------------

    def lease(self) -> None:
        """A claim is held by the store's time, independent of the workers' clocks."""

        def rivals() -> None:
            self._set(self.during)
            self.expect("at once", "InProgress", named(self.guarded(self.other, "lease")))
            pass_time(self.place, LEASE - SLACK)
            self.expect("near its end", "InProgress", named(self.guarded(self.other, "lease")))

        self.expect("holder", "lease 1", self.guarded(self.mine, "lease", rivals))
        self.expect("duplicate", "lease 1", self.guarded(self.other, "lease"))
        self.expect("effects", 1, self.effects("lease"))

    def heartbeat(self) -> None:
        """Work that takes four leases keeps its claim: heartbeats follow the monotonic clock, which is not set."""

        def long() -> None:
            self._set(self.during)
            for _ in range(6):
                pass_time(self.place, LEASE * 0.7)
                self.mine.clock.pass_(LEASE * 0.7)
                self.mine.runtime.heartbeat.beat()
            self.expect("while it works", "InProgress", named(self.guarded(self.other, "heartbeat")))

        self.expect("holder", "heartbeat 1", self.guarded(self.mine, "heartbeat", long))
        self.expect("effects", 1, self.effects("heartbeat"))

    def expiry(self) -> None:
        """A key is kept by the store's time, independent of the sweeping worker's clock."""
        self.expect("first", "expiry 1", self.guarded(self.mine, "expiry", keep=HOUR / 2))
        self._set(self.during)
        pass_time(self.place, HOUR / 2 - SLACK)
        for app in (self.mine, self.other):
            block(sweep(app.store))
            self.expect("before its end", "expiry 1", self.guarded(app, "expiry", keep=HOUR / 2))
        fence = self.fence("expiry")
        pass_time(self.place, SLACK + 1)
        self.expect("after its end", "expiry 2", self.guarded(self.other, "expiry", keep=HOUR / 2))
        self.expect("fence grew", True, self.fence("expiry") > fence)

    def timer(self) -> None:
        """A sleep ends neither early nor late."""
        flows = [self._sleeper(app) for app in (self.mine, self.other)]
        self.expect("first", "Waiting", named(attempt(lambda: flows[0](self.number))))
        self._set(self.during)
        pass_time(self.place, HOUR - SLACK)
        for app in (self.mine, self.other):
            app.worker().run(until_idle=True)
        self.expect("before its end", 0, self.effects("timer"))
        pass_time(self.place, SLACK + 1)
        self.other.worker().run(until_idle=True)
        self.expect("after its end", 1, self.effects("timer"))

    def _sleeper(self, app: App) -> Any:
        @app.flow(key="order:{number}", lease=LEASE)
        def timer(number: int) -> None:
            app.sleep(HOUR)
            self.do("timer")

        return timer

    # -- scenes: the database --------------------------------------------------------------------

    def jump_ahead(self) -> None:
        """Leases end too early. An unknown outcome is not repeated, and a holder that lost its claim cannot write."""
        safe = "safe" if self.number // len(SCENES) % 2 else "never"
        name = f"ahead-{safe}"

        def jump() -> None:
            pass_time(self.place, LEASE + 1)
            taken = named(self.guarded(self.other, name, repeat=safe))
            self.expect("the other", f"{name} 2" if safe == "safe" else "NeedsReview", taken)

        self.expect("holder", "ClaimLost", named(self.guarded(self.mine, name, jump, repeat=safe)))
        last = self.guarded(self.other, name, repeat=safe)
        self.expect("afterwards", f"{name} 2" if safe == "safe" else "NeedsReview", named(last))
        self.expect("effects", 2 if safe == "safe" else 1, self.effects(name))

    def jump_back(self) -> None:
        """What is done stays done, what is held stays held, and numbers still grow."""

        def jump() -> None:
            self.fence_before = self.fence("back")
            pass_time(self.place, -HOUR)
            self._set(self.during)
            self.expect("held", "InProgress", named(self.guarded(self.other, "back")))
            self.expect("another", "besides 1", self.guarded(self.other, "besides"))

        self.expect("holder", "back 1", self.guarded(self.mine, "back", jump))
        grew = self.fence("back") > self.fence_before  # of one key: Redis has a counter for each lane
        self.expect("fence grew", True, grew)
        self.expect("done", "back 1", self.guarded(self.other, "back"))
        pass_time(self.place, HOUR)
        self.expect("and again", "back 1", self.guarded(self.other, "back"))
        self.expect("effects", 1, self.effects("back"))

    def ahead_for_a_while(self) -> None:
        """Runs started meanwhile are carried out when the clock is right again, and a schedule continues."""
        for app in (self.mine, self.other):
            app.flow(key="order:{number}", name="while-ahead")(self._while_ahead)
            app.every("1m", name=f"minutely-{self.number}")(self._minutely)
        self.mine.worker().run(until_idle=True)
        pass_time(self.place, HOUR)
        self.mine.worker().run(until_idle=True)
        self.mine.flows["while-ahead"].drive(self.mine.flows["while-ahead"].start((self.number,), {}))
        pass_time(self.place, -HOUR)
        self._set(self.during)
        self.other.worker().run(until_idle=True)
        self.expect("started while ahead", 1, self.effects("while-ahead"))
        ticks = self.effects("minutely")
        pass_time(self.place, 61.0)
        self.mine.worker().run(until_idle=True)
        self.expect("ticks afterwards", 1, self.effects("minutely") - ticks)
        for app in (self.mine, self.other):
            app.schedules.schedules.clear()

    def _while_ahead(self, number: int) -> None:
        self.place.do(f"while-ahead {number}")

    def _minutely(self) -> None:
        self.do("minutely")

    def daylight(self) -> None:
        """On the day of a clock change, a nightly schedule has one run."""
        zone, when = list(ZONES.items())[self.number % len(ZONES)]
        change = self._next_change(ZoneInfo(zone))
        pass_time(self.place, change - 13 * HOUR - self._now())
        for app in (self.mine, self.other):
            app.every(when, tz=zone, name=f"nightly-{self.number}", catch_up="all", overlap="allow")(self._nightly)
        for moment in (-13.0, -0.6, 0.4, 0.6, 1.4, 2.6, 13.0):
            pass_time(self.place, change + moment * HOUR - self._now())
            for app in (self.mine, self.other):
                app.worker().run(until_idle=True)
        for app in (self.mine, self.other):
            app.schedules.schedules.clear()
        self.expect(f"runs in {zone}", 1, self.effects("nightly"))

    def _nightly(self) -> None:
        self.do("nightly")

    def _now(self) -> float:
        return self.mine.store.scan("none").block().now

    def _next_change(self, zone: ZoneInfo) -> float:
        """Return the next clock change of that zone, at least a day from now, to the hour."""
        moment = (self._now() // HOUR + 24) * HOUR
        while offset(zone, moment) == offset(zone, moment - HOUR):
            moment += HOUR
        return moment


SCENES: dict[str, Callable[[Scenes], None]] = {
    "lease": Scenes.lease,
    "heartbeat": Scenes.heartbeat,
    "expiry": Scenes.expiry,
    "timer": Scenes.timer,
    "database set forwards": Scenes.jump_ahead,
    "database set back": Scenes.jump_back,
    "database ahead for a while": Scenes.ahead_for_a_while,
    "daylight saving": Scenes.daylight,
}


def offset(zone: ZoneInfo, moment: float) -> Any:
    return datetime.fromtimestamp(moment, UTC).astimezone(zone).utcoffset()


def attempt(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except (ClaimLost, InProgress, NeedsReview, Waiting) as error:
        return error


def named(answer: Any) -> str:
    return type(answer).__name__ if isinstance(answer, Exception) else str(answer)
