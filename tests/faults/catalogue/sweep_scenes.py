"""Scenes of forgetting: a duplicate comes late, at any moment of the sweep; or the sweep at any moment of its call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.acceptance.later import pass_time
from tests.acceptance.places import Place
from tests.faults.catalogue.race_engine import Interrupted, moments
from twiceproof import App, ClaimLost, Duplicate, ResultNotKept
from twiceproof.claims.claim import address_of
from twiceproof.claims.retention import sweep
from twiceproof.errors import ClaimError
from twiceproof.operations import block

__all__ = ["SweepScenes"]

KEEP = 60.0
HIDDEN = 60.0  # how long keys that a sweep has taken are hidden from others
OF_SWEEP = moments(("commit", "due", "fetch", "beside"), 1)  # which begins with claims
OF_CALL = moments(("fetch", "commit"), 3)
RACES = [  # which one is interrupted and when, and whether the pause is longer than the keys stay hidden
    *(("sweep", moment, slow) for moment in OF_SWEEP for slow in (True, False)),
    *(("call", moment, False) for moment in OF_CALL),
]


class SweepScenes:
    """One store with a sweeper and a caller."""

    name = "sweep"

    def __init__(self, place: Place, begin: int, wrap: Callable[[Any], Any] = lambda engine: engine) -> None:
        self.place = place
        self.begin = begin
        self.wrong: list[str] = []
        self.tried: dict[str, int] = {}
        self.interrupted: dict[str, Interrupted] = {}
        self.sweeper = self._open("sweep", wrap)
        self.caller = self._open("call", lambda engine: engine)

    def _open(self, name: str, wrap: Callable[[Any], Any]) -> App:
        def wrapped(engine: Any) -> Any:
            self.interrupted[name] = Interrupted(wrap(engine))
            return self.interrupted[name]

        return self.place.app(wrapped)

    def close(self) -> None:
        self.sweeper.close()
        self.caller.close()

    def run(self, times: int) -> None:
        for number in range(times):
            scene = list(SCENES)[number % len(SCENES)]
            self.number = number
            self.who, self.moment, self.slow = RACES[(number // len(SCENES) + self.begin) % len(RACES)]
            slowly = ", slowly" if self.slow else ""
            self.where = f"{scene}, number {number}, {self.moment} of the {self.who}{slowly}"
            self.tried[scene] = self.tried.get(scene, 0) + 1
            SCENES[scene](self)

    # -- the race --------------------------------------------------------------------------------

    def race(self, call: Callable[[], Any]) -> Any:
        """Run one of the two, with the other somewhere within it; return the answer to the call."""
        told: list[Any] = []

        def sweeping() -> None:
            block(sweep(self.sweeper.store))

        def calling() -> None:
            if self.slow:
                pass_time(self.place, HIDDEN + 1)
            told.append(attempt(call))

        outer, inner = (sweeping, calling) if self.who == "sweep" else (calling, sweeping)
        engine = self.interrupted[self.who]
        engine.interrupt(self.moment, inner)
        outer()
        engine.finish()
        return told[0]

    def expect(self, what: str, expected: object, seen: object) -> None:
        if expected != seen:
            self.wrong.append(f"{self.where}: {what}: expected {expected!r}, seen {seen!r:.160}")

    def expect_one(self, what: str, of: tuple[str, ...], seen: object) -> None:
        if seen not in of:
            self.wrong.append(f"{self.where}: {what}: expected one of {of}, seen {seen!r:.160}")

    def effects(self, name: str) -> int:
        return self.place.effects().count(f"{name} {self.number}")

    def guarded(self, name: str, **options: Any) -> Callable[[], Any]:
        @self.caller.once(key="order:{number}", name=name, **options)
        def work(number: int) -> str:
            self.place.do(f"{name} {number}")
            return f"receipt {self.effects(name)}"

        return lambda: work(self.number)

    # -- scenes ----------------------------------------------------------------------------------

    def expired(self) -> None:
        """An expired key is new once, forgotten or not; and the new claim is not forgotten with the old one."""
        self.expect("first", "receipt 1", self.guarded("expired", keep=KEEP)())
        fence = self._fence("expired")
        pass_time(self.place, KEEP + 1)
        again = self.guarded("expired", keep="forever")
        self.expect_one("late", ("receipt 1", "receipt 2"), self.race(again))
        self.expect("afterwards", "receipt 2", attempt(again))
        self.expect("effects", 2, self.effects("expired"))
        self.expect("fence grew", True, self._fence("expired") > fence)

    def _fence(self, name: str) -> int:
        found = self.caller.store.read(address_of("default", name, f"order:{self.number}")).block().record
        return found.fence if found else 0

    def remembered(self) -> None:
        """A key is not forgotten before its time."""
        call = self.guarded("remembered", keep=KEEP)
        self.expect("first", "receipt 1", call())
        pass_time(self.place, KEEP * 0.75)
        self.slow = False
        self.expect("duplicate", "receipt 1", self.race(call))
        self.expect("afterwards", "receipt 1", attempt(call))
        self.expect("effects", 1, self.effects("remembered"))

    def trimmed(self) -> None:
        """The result is deleted, and the claim stays."""
        call = self.guarded("trimmed", keep="forever", keep_result=KEEP)
        self.expect("first", "receipt 1", call())
        pass_time(self.place, KEEP + 1)
        self.expect_one("late", ("receipt 1", "ResultNotKept"), self.race(call))
        self.expect("afterwards", "ResultNotKept", attempt(call))
        self.expect("effects", 1, self.effects("trimmed"))

    def held(self) -> None:
        """A claim that was taken again during the sweep stays with its holder."""
        with self._claim(keep=KEEP) as first:
            first.result = "old"
        pass_time(self.place, KEEP + 1)
        holder = self._claim(keep="forever")
        if self.race(holder.__enter__) == "Duplicate":  # it arrived before the old one was forgotten
            holder = self._claim(keep="forever")
            self.expect("once forgotten", holder, attempt(holder.__enter__))
        holder.result = "new"
        self.expect("holder's end", None, attempt(lambda: holder.__exit__(None, None, None)))
        self.expect("afterwards", "Duplicate", attempt(self._claim(keep="forever").__enter__))

    def _claim(self, keep: Any) -> Any:
        return self.caller.claim("held", f"order:{self.number}", keep=keep)

    def run_again(self) -> None:
        """A run is forgotten with all its steps, or not at all: no old step is replayed in the new run."""
        self.expect("first", "1 1", self._flow(KEEP)(self.number))
        pass_time(self.place, KEEP + 1)
        again = self._flow("forever")
        self.expect_one("late", ("1 1", "2 2"), self.race(lambda: again(self.number)))
        self.expect("afterwards", "2 2", attempt(lambda: again(self.number)))
        self.expect("effects", (2, 2), (self.effects("pack"), self.effects("ship")))

    def _flow(self, keep: Any) -> Any:
        @self.caller.step(repeat="never")
        def pack(number: int) -> int:
            self.place.do(f"pack {number}")
            return self.effects("pack")

        @self.caller.step(repeat="safe")
        def ship(number: int) -> int:
            self.place.do(f"ship {number}")
            return self.effects("ship")

        @self.caller.flow(key="order:{number}", name="send", keep=keep)
        def send(number: int) -> str:
            return f"{pack(number)} {ship(number)}"

        return send


SCENES: dict[str, Callable[[SweepScenes], None]] = {
    "sweep: expired": SweepScenes.expired,
    "sweep: remembered": SweepScenes.remembered,
    "sweep: trimmed": SweepScenes.trimmed,
    "sweep: held meanwhile": SweepScenes.held,
    "sweep: run again": SweepScenes.run_again,
}


def attempt(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except (ClaimError, ClaimLost, Duplicate, ResultNotKept) as error:
        return type(error).__name__
