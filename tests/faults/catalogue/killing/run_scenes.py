"""Scenes of runs: begun, started, their steps of every kind, and settled by a person."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.faults.catalogue.killing.deadly import AFTER, BEFORE, LANDED, Point
from tests.faults.catalogue.killing.scene import LEASE, QUICK, Case, Scene, Seen
from twiceproof import Absent, App, Happened, NeedsReview, check
from twiceproof.records import Insert, Replace, Write

__all__ = ["RUN_SCENES", "Errand", "Run", "claim_in", "entry"]


def entry(name: str, *states: str) -> Any:
    """A write of a step's entry."""

    def meant(write: Write) -> bool:
        return (
            isinstance(write, Insert | Replace)
            and write.at.kind == "step"
            and write.at.key == name
            and write.state in states
        )

    return meant


def claim_in(flow: str, state: str) -> Any:
    """A write of a run's own record."""

    def meant(write: Write) -> bool:
        mine = write.at.kind == "run" and write.at.space.split("/")[1] == flow
        return mine and isinstance(write, Insert | Replace) and write.state == state and write.body is not None

    return meant


class Run(Scene):
    """A flow. Unknown outcomes are settled by a person who looks at the effects."""

    flow: Any

    def act(self, case: Case) -> Any:
        return self.flow(case.order)

    def recover(self, case: Case) -> Any:
        try:
            return [self.flow(case.order), "by itself"]
        except NeedsReview:
            self.settle(case)
        return [self.flow(case.order), "settled"]

    def settle(self, case: Case) -> None:
        raise NotImplementedError

    def run(self, case: Case) -> str:
        return f"{self.name}/order:{case.order}"


MAIL = "effect of a step never repeated"
UNSURE = {  # where it cannot be known whether the mail was sent: its intent had landed, and its record had not
    ("record of a checked step", LANDED),
    ("record of a checked step", AFTER),
    ("intent of a step never repeated", LANDED),
    ("intent of a step never repeated", AFTER),
    (MAIL, BEFORE),
    (MAIL, LANDED),
    (MAIL, AFTER),
    ("record of a step never repeated", BEFORE),
    ("run complete", BEFORE),
}


class Errand(Run):
    """A step of each kind of repeat."""

    name = "errand"
    points = (
        Point("run begun", claim_in("errand", "held")),
        Point("step record", entry("charge", "done")),
        Point("intent of a checked step", entry("invoice", "started")),
        Point("record of a checked step", entry("invoice", "done")),
        Point("intent of a step never repeated", entry("mail", "started")),
        Point("record of a step never repeated", entry("mail", "done")),
        Point("run complete", claim_in("errand", "done")),
        Point("effect of a keyed step"),
        Point("effect of a checked step"),
        Point(MAIL),
    )

    def declare(self, app: App) -> None:
        @app.step(repeat="keyed", retry=QUICK)
        def charge(order: int) -> str:
            self.do(order, "charge " + app.effect_key(), "effect of a keyed step")
            return "ch_1"

        def find(order: int) -> Any:
            return Happened("inv_1") if "invoice" in self.effects(order) else Absent

        @app.step(repeat=check(find, settling=0.0), retry=QUICK)
        def invoice(order: int) -> str:
            self.do(order, "invoice", "effect of a checked step")
            return "inv_1"

        @app.step(repeat="never")
        def mail(order: int) -> str:
            self.do(order, "mail", MAIL)
            return "sent"

        @app.flow(key="order:{order}", name=self.name, lease=LEASE)
        def errand(order: int) -> list[str]:
            return [charge(order), invoice(order), mail(order)]

        self.flow = errand

    def settle(self, case: Case) -> None:
        if "mail" in self.effects(case.order):
            self.app.settle_run(self.run(case), "happened", by="ann", result="sent")
        else:
            self.app.settle_run(self.run(case), "did-not-happen", by="ann")

    def judge(self, case: Case, seen: Seen) -> Iterator[str]:
        keyed = {what for what in seen.effects if what.startswith("charge")}
        others = sorted(what for what in seen.effects if what not in keyed)
        if len(keyed) != 1 or others != ["invoice", "mail"]:
            yield f"each once to its receiver expected, seen {seen.effects}"
        if seen.ended[0] != ["ch_1", "inv_1", "sent"]:
            yield f"a result other than that of its steps: {seen.ended}"
        if seen.told and seen.ended != [seen.told[0], "by itself"]:
            yield f"acknowledged as {seen.told[0]}, later {seen.ended}"
        asked = (case.point, case.position) in UNSURE
        if not case.again and seen.ended[1] != ("settled" if asked else "by itself"):
            yield f"{'settled' if asked else 'by itself'} expected, seen {seen.ended}"


class Started(Run):
    """Left to a worker."""

    name = "started"
    points = (
        Point("run started", claim_in("started", "queued")),
        Point("queued run taken", claim_in("started", "held")),
    )

    def declare(self, app: App) -> None:
        @app.step(repeat="safe")
        def save(order: int) -> str:
            self.do(order, "save")
            return "saved"

        @app.flow(key="order:{order}", name=self.name, lease=LEASE)
        def keep(order: int) -> str:
            return save(order)

        self.flow = keep

    def prepare(self, case: Case) -> None:
        if case.point == "queued run taken":
            self.flow.start(case.order)

    def act(self, case: Case) -> Any:
        return self.flow.start(case.order).id if case.point == "run started" else self.flow(case.order)

    def recover(self, case: Case) -> Any:
        state = self.app.attach(flow=self.name, key=f"order:{case.order}").state
        return [self.flow(case.order), state]

    def judge(self, case: Case, seen: Seen) -> Iterator[str]:
        if not 1 <= len(seen.effects) <= 2 + bool(case.again) or seen.ended[0] != "saved":
            yield f"saved expected, seen {seen.effects} {seen.ended}"
        if case.point == "run started" and case.position != BEFORE and not case.again and seen.ended[1] != "queued":
            yield f"what was started is lost: it is {seen.ended[1]!r}"


class Reviewed(Run):
    """A settlement of a run counts once."""

    name = "reviewed"
    points = (Point("run settled", entry("mail", "done")),)

    def declare(self, app: App) -> None:
        @app.step(repeat="never")
        def mail(order: int) -> str:
            raise TimeoutError("no answer")

        @app.flow(key="order:{order}", name=self.name, lease=LEASE)
        def tell(order: int) -> str:
            return mail(order)

        self.flow = tell

    def prepare(self, case: Case) -> None:
        try:
            self.flow(case.order)
        except NeedsReview:
            return
        raise AssertionError("it was to be in review")

    def act(self, case: Case) -> Any:
        self.app.settle_run(self.run(case), "happened", by="ann", result="by the first")
        return "by the first"

    def settle(self, case: Case) -> None:
        self.app.settle_run(self.run(case), "happened", by="bob", result="by the second")

    def judge(self, case: Case, seen: Seen) -> Iterator[str]:
        expected = "by the second" if case.position == BEFORE else "by the first"
        if seen.ended[0] != expected:
            yield f"{expected!r} expected, seen {seen.ended}"


RUN_SCENES: tuple[type[Scene], ...] = (Errand, Started, Reviewed)
