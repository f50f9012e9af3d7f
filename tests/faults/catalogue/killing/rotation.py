"""Kills while all values are re-encrypted with another key: each stays readable and unchanged."""

from __future__ import annotations

import gc
import signal
from functools import partial
from typing import Any

from tests.acceptance.later import pass_time
from tests.acceptance.places import Place
from tests.faults.catalogue.killing.deadly import POSITIONS, Deadly, Orders, Point
from tests.faults.catalogue.killing.outside import Outside
from tests.faults.catalogue.killing.round import Played, forked
from tests.faults.catalogue.killing.scene import LEASE
from twiceproof import App, Waiting
from twiceproof.flows.history.key_rotation import keys_in_use, rotate
from twiceproof.records import Replace, Write
from twiceproof.stores.encryption import EncryptedEngine, Keyring, key_id_of
from twiceproof.stores.grouped import GroupedStore

__all__ = ["Rotation"]

KILLS = 12
RUNS = 5
POINT = "key re-encrypted"


class Rotation:
    """Each kill rotates to a key of its own, so that there is always something to re-encrypt."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.outside = Outside(place.directory)
        self.orders = Orders()
        self.played = Played()

    def play(self) -> Played:
        if forked(lambda: self._begin(self._app(0))):
            self.played.unknown.append("runs could not be prepared")
            return self.played
        gc.collect()
        gc.freeze()
        for number in range(1, KILLS + 1):
            if forked(partial(self._rotate, number)) == -signal.SIGKILL:
                self.played.kills += 1
                self.played.hits[POINT] = self.played.hits.get(POINT, 0) + 1
            else:
                self.played.violations.append(f"{POINT}: rotation {number} was not killed, so it sealed nothing")
        pass_time(self.place, LEASE + 1)
        self._judge()
        return self.played

    # -- processes -------------------------------------------------------------------------------

    def _store(self, newest: int) -> GroupedStore:
        ring = Keyring({f"k{number}": bytes([number]) * 32 for number in range(newest, -1, -1)})
        engine: Any = EncryptedEngine(Deadly(self.place.engine(), self.orders, lambda *_: None), ring)
        return GroupedStore(engine)

    def _app(self, newest: int) -> App:
        return App(self._store(newest), best_effort=True)

    def _flow(self, app: App) -> Any:
        @app.step(repeat="safe")
        def save(order: int) -> str:
            self.outside.note("rotated", order, "effect", "save")
            return f"saved {order}"

        @app.flow(key="order:{order}", name="rotated", lease=LEASE)
        def keep(order: int) -> str:
            saved = save(order)
            if order == RUNS:
                app.sleep("10s")
            return saved

        return keep

    def _begin(self, app: App) -> None:
        flow = self._flow(app)
        for order in range(1, RUNS):
            flow(order)
        try:
            flow(RUNS)
        except Waiting:
            return
        raise AssertionError("the last one was to wait")

    def _rotate(self, number: int) -> None:
        def sealed(write: Write) -> bool:
            return isinstance(write, Replace) and write.body is not None and key_id_of(write.body) == f"k{number}"

        store = self._store(number)
        self.orders.point, self.orders.position = Point(POINT, sealed), POSITIONS[number % 3]
        rotate(store)
        self.orders.nth = 0
        store.engine.commit([])  # after it: dies here, unless it has sealed nothing

    def _judge(self) -> None:
        """In this process: nothing is forked from it any more."""
        with self._app(KILLS) as app:
            left = rotate(app.store).left  # type: ignore[arg-type]
            used = set(keys_in_use(app.store))  # type: ignore[arg-type]
            flow = self._flow(app)
            results = [flow(order) for order in range(1, RUNS + 1)]
        if left or used != {f"k{KILLS}"}:
            self.played.violations.append(f"{POINT}: {left} left, keys in use {sorted(used)}")
        effects = [what for order in range(1, RUNS + 1) for what in self.outside.read("effect")["rotated", order]]
        if results != [f"saved {order}" for order in range(1, RUNS + 1)] or len(effects) != RUNS:
            self.played.violations.append(f"{POINT}: {results}, {len(effects)} effects of {RUNS}")
