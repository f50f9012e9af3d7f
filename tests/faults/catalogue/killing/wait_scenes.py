"""Scenes of waits: timers set and fired, callbacks delivered and received, approvals requested and decided."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.faults.catalogue.killing.deadly import BEFORE, Point
from tests.faults.catalogue.killing.run_scenes import claim_in
from tests.faults.catalogue.killing.scene import LEASE, Case, Scene, Seen
from twiceproof import App, Waiting
from twiceproof.claims.claim import address_of
from twiceproof.flows.waits.records import APPROVAL_KIND, approval_id
from twiceproof.records import Address, Insert, Replace

__all__ = ["WAIT_SCENES"]


class Waits(Scene):
    """`prepare` brings the run to its wait, unless the kill is to happen while the wait is set."""

    flow: Any
    sets = ""  # the point at which the wait is set

    def prepare(self, case: Case) -> None:
        if case.point != self.sets:
            self.go(case)

    def act(self, case: Case) -> Any:
        return self.go(case)

    def go(self, case: Case) -> Any:
        try:
            return self.flow(case.order)
        except Waiting:
            return "waiting"

    def save(self, app: App) -> Any:
        @app.step(repeat="keyed")
        def save(order: int, what: str) -> str:
            self.do(order, f"{what} {app.effect_key()}")
            return what

        return save

    def kinds(self, seen: Seen) -> list[str]:
        return [what.split()[0] for what in dict.fromkeys(seen.effects)]


class Timer(Waits):
    name = "timer"
    sets = "timer set"
    points = (Point(sets, claim_in("timer", "waiting")), Point("timer fired", claim_in("timer", "held")))

    def declare(self, app: App) -> None:
        before, after = app.step(repeat="safe", name="before")(self.note), app.step(repeat="safe")(self.note)

        @app.flow(key="order:{order}", name=self.name, lease=LEASE)
        def nap(order: int) -> str:
            before(order, "slept")
            app.sleep("20s")
            return str(after(order, "woke"))

        self.flow = nap

    def note(self, order: int, what: str) -> str:
        self.do(order, what)
        return what

    def recover(self, case: Case) -> Any:
        return self.go(case)

    def judge(self, case: Case, seen: Seen) -> Iterator[str]:
        just_set = case.point == self.sets and (case.position == BEFORE or case.again)
        if seen.ended != "woke" and not (just_set and seen.ended == "waiting"):
            yield f"a timer that nobody hears: {seen.effects} {seen.ended!r}"
        if self.kinds(seen) != (["slept", "woke"] if seen.ended == "woke" else ["slept"]):
            yield f"slept, then woke, expected; seen {seen.effects} {seen.ended!r}"


class Callback(Waits):
    name = "callback"
    sets = "callback awaited"
    points = (
        Point(sets, claim_in("callback", "waiting")),
        Point("callback deliver", lambda write: write.at.kind == "arrival" and isinstance(write, Insert | Replace)),
        Point("callback taken up", claim_in("callback", "held")),
    )

    def declare(self, app: App) -> None:
        save = self.save(app)

        @app.flow(key="order:{order}", name=self.name, lease=LEASE)
        def ship(order: int) -> str:
            return str(save(order, app.wait_for("paid")))

        self.flow = ship

    def prepare(self, case: Case) -> None:
        super().prepare(case)
        if case.point == "callback taken up":
            self.deliver(case, "first")

    def deliver(self, case: Case, payload: str) -> bool:
        said = self.app.deliver_to(flow=self.name, key=f"order:{case.order}", name="paid", payload=payload)
        return said.first

    def act(self, case: Case) -> Any:
        return self.deliver(case, "first") if case.point == "callback deliver" else self.go(case)

    def recover(self, case: Case) -> Any:
        if case.point != "callback deliver":
            self.go(case)
        self.deliver(case, "second")
        return self.go(case)

    def judge(self, case: Case, seen: Seen) -> Iterator[str]:
        never_came = case.point == self.sets or (case.point == "callback deliver" and case.position == BEFORE)
        expected = "second" if never_came else "first"
        if seen.ended != expected or self.kinds(seen) != [expected]:
            yield f"the {expected} callback alone expected, seen {seen.effects} {seen.ended!r}"


class Approval(Waits):
    name = "approval"
    sets = "approval asked"
    points = (
        Point(sets, lambda write: write.at.kind == "approval" and isinstance(write, Insert)),
        Point("approval record", lambda write: write.at.kind == "approval" and isinstance(write, Replace)),
        Point("approval taken up", claim_in("approval", "held")),
    )

    def declare(self, app: App) -> None:
        save = self.save(app)

        @app.flow(key="order:{order}", name=self.name, lease=LEASE)
        def ship(order: int) -> str:
            return str(save(order, app.approve("ship", show={"order": order}).by))

        self.flow = ship

    def prepare(self, case: Case) -> None:
        super().prepare(case)
        if case.point == "approval taken up":
            self.decide(case, "ann")

    def decide(self, case: Case, who: str) -> str:
        at = approval_at(self.name, case.order)
        decided = self.app.decide(at, True, by=who)
        return decided.decision.by if decided.decision else ""

    def act(self, case: Case) -> Any:
        return self.decide(case, "ann") if case.point == "approval record" else self.go(case)

    def recover(self, case: Case) -> Any:
        if case.point == self.sets:
            self.go(case)
        return [self.decide(case, "bob"), self.go(case)]

    def judge(self, case: Case, seen: Seen) -> Iterator[str]:
        nobody = case.point == self.sets or (case.point == "approval record" and case.position == BEFORE)
        expected = "bob" if nobody else "ann"
        if seen.ended != [expected, expected] or self.kinds(seen) != [expected]:
            yield f"decided once, by {expected}, expected; seen {seen.effects} {seen.ended}"


def approval_at(flow: str, order: int) -> str:
    return approval_id(Address(address_of("default", flow, f"order:{order}").space, APPROVAL_KIND, "ship"))


WAIT_SCENES: tuple[type[Scene], ...] = (Timer, Callback, Approval)
