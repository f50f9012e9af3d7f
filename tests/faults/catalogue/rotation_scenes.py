"""Scenes of key rotation: re-encryption at any moment of a call, and calls at any moment of a re-encryption."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from hashlib import sha256
from typing import Any

from tests.acceptance.later import pass_time
from tests.acceptance.places import Place
from tests.faults.catalogue.race_engine import Interrupted, moments
from tests.faults.catalogue.sweep_scenes import attempt
from twiceproof import App, NotDone, Waiting
from twiceproof.flows.history.key_rotation import keys_in_use, rotate
from twiceproof.records import RECORD_KINDS
from twiceproof.stores.encryption import EncryptedEngine, Keyring

__all__ = ["RotationScenes"]

CANARY = "canary-4711"
OF_ROTATION = moments(("fetch", "commit", "scan"), 3)  # which begins with claims
OF_CALL = moments(("fetch", "commit"), 3)
SLEEP = 60.0
MOST_ROUNDS = 5


class RotationScenes:
    """A worker that still encrypts with the old key, and a rotation to the new one."""

    name = "rotation"

    def __init__(self, place: Place, begin: int, wrap: Callable[[Any], Any] = lambda engine: engine) -> None:
        self.place = place
        self.begin = begin
        self.wrong: list[str] = []
        self.tried: dict[str, int] = {}
        self.receipts: dict[int, str] = {}
        self.refused: set[int] = set()
        self.interrupted: dict[str, Interrupted] = {}
        self.keys = {name: sha256(name.encode()).digest() for name in ("old", "new")}
        self.worker = self._open("work", ("old", "new"), lambda engine: engine)
        self.rotator = self._open("rotate", ("new", "old"), wrap)

    def _open(self, name: str, keys: tuple[str, ...], wrap: Callable[[Any], Any]) -> App:
        def wrapped(engine: Any) -> Any:
            self.interrupted[name] = Interrupted(wrap(engine))
            return EncryptedEngine(self.interrupted[name], Keyring({key: self.keys[key] for key in keys}))

        return self.place.app(wrapped)

    def close(self) -> None:
        self.worker.close()
        self.rotator.close()

    def run(self, times: int) -> None:
        for number in range(times):
            scene = list(SCENES)[number % len(SCENES)]
            self.number, self.turn = number, number // len(SCENES)
            self.where = f"{scene}, number {number}"
            self.tried[scene] = self.tried.get(scene, 0) + 1
            SCENES[scene](self)
        self.where = "when all is sealed anew"
        self.check_keys()

    def within(self, who: str, outer: Callable[[], Any], inner: Callable[[], Any]) -> Any:
        """Return the answer to the outer call; the inner one happened somewhere within it."""
        engine, places = self.interrupted[who], OF_ROTATION if who == "rotate" else OF_CALL
        moment = places[(self.turn + self.begin) % len(places)]
        self.where += f", {moment}"
        engine.interrupt(moment, inner)
        told = attempt(outer)
        engine.finish()
        return told

    def rotate(self) -> None:
        rotate(self.rotator.store)  # type: ignore[arg-type]

    def expect(self, what: str, expected: object, seen: object) -> None:
        if expected != seen:
            self.wrong.append(f"{self.where}: {what}: expected {expected!r}, seen {seen!r:.160}")

    def effects(self, name: str) -> int:
        return self.place.effects().count(f"{name} {self.number}")

    def charge(self, app: App, number: int) -> str:
        @app.once(key="order:{number}", name="charge", keep="forever")
        def work(number: int) -> str:
            if number in self.refused:
                raise NotDone("the other side said no")
            self.place.do(f"charge {number}")
            self.receipts[number] = f"{CANARY} {number} {self.place.effects().count(f'charge {number}')}"
            return self.receipts[number]

        return work(number)

    # -- scenes ----------------------------------------------------------------------------------

    def in_a_call(self) -> None:
        told = self.within("work", lambda: self.charge(self.worker, self.number), self.rotate)
        self._check_charge("call", told)

    def call_within(self) -> None:
        """A call, and a duplicate of an earlier one, while everything is re-encrypted."""
        earlier = max(self.receipts, default=self.number)
        told: list[Any] = []

        def calls() -> None:
            told.extend(
                attempt(lambda order=order: self.charge(self.worker, order)) for order in (self.number, earlier)
            )

        self.within("rotate", self.rotate, calls)
        self._check_charge("call", told[0])
        self.expect("duplicate of an earlier one", self.receipts[earlier], told[1])

    def retried_within(self) -> None:
        """A failed call is retried while it is re-encrypted: the old record must not replace the new one."""
        self.rotate()  # so that only this one is left to be re-encrypted
        self.refused.add(self.number)
        with contextlib.suppress(NotDone):
            self.charge(self.worker, self.number)
        self.refused.clear()
        told: list[Any] = []
        again = lambda: told.append(attempt(lambda: self.charge(self.worker, self.number)))  # noqa: E731
        self.within("rotate", self.rotate, again)
        self._check_charge("again", told[0])

    def _check_charge(self, what: str, told: Any) -> None:
        receipt = f"{CANARY} {self.number} 1"
        self.expect(what, receipt, told)
        for app in (self.worker, self.rotator):
            self.expect("duplicate", receipt, attempt(lambda app=app: self.charge(app, self.number)))
        self.expect("effects", 1, self.effects("charge"))

    def run_goes_on(self) -> None:
        """A waiting run is re-encrypted while a worker takes it."""
        self.rotate()  # so that only what this run has written is left to be re-encrypted
        flow = self._flow(self.worker)
        try:
            flow(self.number)
        except Waiting:
            pass_time(self.place, SLEEP + 1)
        self.within("rotate", self.rotate, lambda: self.worker.worker().run(until_idle=True))
        pass_time(self.place, 10)  # a run that was re-encrypted while it was looked for is hidden for a few seconds
        self.worker.worker().run(until_idle=True)
        self.expect("its end", f"{CANARY} 1 1", attempt(lambda: self._flow(self.rotator)(self.number)))
        self.expect("effects", (1, 1), (self.effects("pack"), self.effects("ship")))

    def _flow(self, app: App) -> Any:
        @app.step(repeat="never")
        def pack(number: int) -> int:
            self.place.do(f"pack {number}")
            return self.effects("pack")

        @app.step(repeat="never")
        def ship(number: int) -> int:
            self.place.do(f"ship {number}")
            return self.effects("ship")

        @app.flow(key="order:{number}", name="send", keep="forever")
        def send(number: int) -> str:
            first = pack(number)
            app.sleep(SLEEP)
            return f"{CANARY} {first} {ship(number)}"

        return send

    def held(self) -> None:
        """A held claim stays with its holder."""
        with self.worker.claim("held", f"order:{self.number}") as claim:
            self.rotate()
            claim.result = CANARY
        told = attempt(self.rotator.claim("held", f"order:{self.number}").__enter__)
        self.expect("afterwards", "Duplicate", told)

    # -- afterwards ------------------------------------------------------------------------------

    def check_keys(self) -> None:
        """Check that after a few rounds the old key decrypts nothing that is left, and nothing is readable without a
        key.
        """
        rounds = next((n for n in range(MOST_ROUNDS) if not rotate(self.rotator.store).left), None)  # type: ignore[arg-type]
        self.expect("ends", True, rounds is not None)
        self.expect("keys in use", {"new"}, set(keys_in_use(self.rotator.store)))  # type: ignore[arg-type]
        raw = self.interrupted["rotate"].inner
        bodies = [record.body for kind in RECORD_KINDS for record in raw.scan(kind, None, None, None, 10_000).records]
        self.expect("readable without a key", 0, sum(CANARY in body for body in bodies))
        last = self._open("last", ("new",), lambda engine: engine)
        for number, receipt in self.receipts.items():
            self.expect(
                f"order:{number} with the new key alone", receipt, attempt(lambda n=number: self.charge(last, n))
            )
        last.close()


SCENES: dict[str, Callable[[RotationScenes], None]] = {
    "rotation: in a call": RotationScenes.in_a_call,
    "rotation: a call within": RotationScenes.call_within,
    "rotation: tried again within": RotationScenes.retried_within,
    "rotation: a run goes on": RotationScenes.run_goes_on,
    "rotation: held": RotationScenes.held,
}
