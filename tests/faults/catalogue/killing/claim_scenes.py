"""Scenes of claims: taken, renewed, completed, failed, released, taken over, parked, settled, and large results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.faults.catalogue.killing.deadly import AFTER, BEFORE, LANDED, Point
from tests.faults.catalogue.killing.scene import LEASE, Case, Scene, Seen
from twiceproof import App, NeedsReview, NotDone, PriorFailure
from twiceproof.claims.claim import LostHold
from twiceproof.claims.once import ClaimBlock
from twiceproof.claims.policy import SettleVerdict
from twiceproof.operations import block
from twiceproof.records import Insert, Remove, Replace, Write

__all__ = ["CLAIM_SCENES"]


def _claim(kind: type, state: str) -> Any:
    def meant(write: Write) -> bool:
        return isinstance(write, kind) and write.at.kind == "claim" and getattr(write, "state", "") == state

    return meant


def _removed(write: Write) -> bool:
    return isinstance(write, Remove) and write.at.kind == "claim"


def _renewed(write: Write) -> bool:
    return isinstance(write, Replace) and write.state == "held" and write.body is None


class Charge(Scene):
    """A guarded function that is never repeated blindly. A person settles it by the effects, and it continues."""

    name = "charge"
    points: tuple[Point, ...] = (
        Point("claim", _claim(Insert, "held")),
        Point("effect of a guarded call"),
        Point("complete", _claim(Replace, "done")),
    )

    def declare(self, app: App) -> None:
        @app.once(key="order:{order}", name=self.name, lease=LEASE)
        def charge(order: int) -> str:
            self.do(order, "charge", "effect of a guarded call")
            return self.receipt(order)

        self.charge = charge

    def receipt(self, order: int) -> str:
        return f"receipt {order}"

    def act(self, case: Case) -> Any:
        return self.charge(case.order)

    def recover(self, case: Case) -> Any:
        try:
            return [self.charge(case.order), "by itself"]
        except NeedsReview:
            happened = bool(self.effects(case.order))
        if happened:
            self.app.settle(self.name, f"order:{case.order}", "happened", by="ann", result=self.receipt(case.order))
        else:
            self.app.settle(self.name, f"order:{case.order}", "did-not-happen", by="ann")
        return [self.charge(case.order), "settled"]

    def judge(self, case: Case, seen: Seen) -> Iterator[str]:
        if seen.effects != ["charge"]:
            yield f"once expected, seen {seen.effects}"
        if seen.ended[0] != self.receipt(case.order):
            yield f"{self.receipt(case.order)!r} expected, seen {seen.ended}"
        if seen.told and seen.ended != [seen.told[0], "by itself"]:
            yield f"acknowledged as {seen.told[0]!r}, later {seen.ended}"
        sure = (case.point, case.position) in (("claim", BEFORE), ("complete", LANDED), ("complete", AFTER))
        if sure and not case.again and seen.ended[1] == "settled":
            yield "a person was asked although nothing was unknown"


class Large(Charge):
    """A result that is kept beside its claim."""

    name = "large"
    points = (Point("large result", lambda write: isinstance(write, Insert) and write.at.kind == "resource"),)

    def receipt(self, order: int) -> str:
        return f"{order:07}" * 10_000


class Refused(Charge):
    """The other side refuses clearly: recorded as failed, and tried again by the next call."""

    name = "refused"
    points = (Point("fail", _claim(Replace, "failed")),)

    def declare(self, app: App) -> None:
        @app.once(key="order:{order}", name=self.name, lease=LEASE)
        def pay(order: int) -> str:
            if self.orders.point is not None:  # the process that is to be killed is refused, later ones are not
                raise NotDone("no")
            self.do(order, "charge")
            return self.receipt(order)

        self.charge = pay

    def act(self, case: Case) -> Any:
        try:
            return self.charge(case.order)
        except NotDone:
            return "refused"

    def judge(self, case: Case, seen: Seen) -> Iterator[str]:
        how = "settled" if case.position == BEFORE else "by itself"  # a claim left behind with an unknown outcome
        if seen.effects != ["charge"] or seen.ended[0] != self.receipt(case.order):
            yield f"once expected, seen {seen.effects} {seen.ended}"
        if seen.ended[1] != how and not case.again:
            yield f"{how} expected, seen {seen.ended}"


class Held(Scene):
    """A claim around a few lines. If it is left behind, it lapses; the scene says whether it may be repeated."""

    repeat: Any = "safe"

    def block(self, order: int) -> ClaimBlock:
        return self.app.claim(
            self.name,
            f"order:{order}",
            lease=LEASE,
            repeat=self.repeat,
            on_duplicate="return_prior",
            on_failure="release",
        )

    def leave_behind(self, order: int) -> None:
        self.block(order).__enter__()

    def work(self, order: int) -> Any:
        with self.block(order) as claim:
            if claim.held:
                self.do(order, "work")
                claim.result = f"worked {order}"
        return claim.result

    def act(self, case: Case) -> Any:
        return self.work(case.order)

    def recover(self, case: Case) -> Any:
        return self.work(case.order)

    def judge(self, case: Case, seen: Seen) -> Iterator[str]:
        if not 1 <= len(seen.effects) <= 2 + bool(case.again):
            yield f"at least once, and no more often than there were holders, expected; seen {seen.effects}"
        if seen.ended != f"worked {case.order}" or seen.told not in ([], [seen.ended]):
            yield f"told {seen.told}, ended {seen.ended!r}"
        if seen.told and len(seen.effects) != 1:
            yield f"acknowledged, and done again: {seen.effects}"


class TakenOver(Held):
    name = "taken-over"
    points = (Point("take over", _claim(Replace, "held")),)

    def prepare(self, case: Case) -> None:
        self.leave_behind(case.order)


class Renewed(Held):
    name = "renewed"
    points = (Point("renew", _renewed),)

    def act(self, case: Case) -> Any:
        with self.block(case.order) as claim:
            assert claim._scope is not None
            renewed = block(self.app.claims.renew(claim._scope.hold.held))
            if not isinstance(renewed, LostHold):
                self.do(case.order, "work")
            claim.result = f"worked {case.order}"
        return claim.result


class Released(Held):
    """Released after an error: as if it had never been taken."""

    name = "released"
    repeat = "never"
    points = (Point("release", _removed), Point("work before a release"))

    def act(self, case: Case) -> Any:
        try:
            with self.block(case.order):
                for position in (BEFORE, LANDED):
                    self.orders.pass_by("work before a release", position)
                raise NotDone("nothing was done")
        except NotDone:
            return "released"

    def recover(self, case: Case) -> Any:
        try:
            return [self.work(case.order), "by itself"]
        except NeedsReview:
            word: SettleVerdict = "happened" if self.effects(case.order) else "did-not-happen"
            self.app.settle(self.name, f"order:{case.order}", word, by="ann", result=f"worked {case.order}")
        return [self.work(case.order), "settled"]

    def judge(self, case: Case, seen: Seen) -> Iterator[str]:
        how = "settled" if case.position == BEFORE or case.point != "release" else "by itself"
        if seen.effects != ["work"] or seen.ended[0] != f"worked {case.order}":
            yield f"once expected, seen {seen.effects} {seen.ended}"
        if seen.ended[1] != how and not case.again:
            yield f"{how} expected, seen {seen.ended}"


class Parked(Held):
    """A holder died in work that must never be repeated: the next caller parks it, and a person settles it."""

    name = "parked"
    repeat = "never"
    points = (Point("park", _claim(Replace, "review")),)

    def prepare(self, case: Case) -> None:
        self.leave_behind(case.order)

    def act(self, case: Case) -> Any:
        try:
            return self.work(case.order)
        except NeedsReview:
            return "in review"

    def recover(self, case: Case) -> Any:
        try:
            return self.work(case.order)
        except NeedsReview:
            self.settle(case.order, "by the second")
        return self.work(case.order)

    def settle(self, order: int, result: str) -> None:
        self.app.settle(self.name, f"order:{order}", "happened", by="ann", result=result)

    def judge(self, case: Case, seen: Seen) -> Iterator[str]:
        if seen.effects or seen.ended != "by the second" or seen.told not in ([], ["in review"], [seen.ended]):
            yield f"nothing done without a person's word expected; seen {seen.effects} {seen.told} {seen.ended!r}"


class Settled(Parked):
    """A settlement counts once: the first one stays."""

    name = "settled"
    points = (Point("settle", _claim(Replace, "done")),)

    def prepare(self, case: Case) -> None:
        self.leave_behind(case.order)

    def act(self, case: Case) -> Any:
        self.settle(case.order, "by the first")
        return "by the first"

    def judge(self, case: Case, seen: Seen) -> Iterator[str]:
        expected = "by the second" if case.position == BEFORE else "by the first"
        if seen.effects or seen.ended != expected:
            yield f"{expected!r} and nothing done expected, seen {seen.effects} {seen.ended!r}"


class Failed(Scene):
    """A final refusal: recorded, and never run again unless a person decides so."""

    name = "failed"
    points = (Point("fail for good", _claim(Replace, "failed")),)

    def declare(self, app: App) -> None:
        @app.once(key="order:{order}", name=self.name, lease=LEASE)
        def charge(order: int) -> str:
            self.do(order, "charge")
            raise NotDone("a mistake", final=True)

        self.charge = charge

    def act(self, case: Case) -> Any:
        return self.recover(case)

    def recover(self, case: Case) -> Any:
        try:
            return self.charge(case.order)
        except (NotDone, PriorFailure):
            return "failed"
        except NeedsReview:
            return "in review"

    def judge(self, case: Case, seen: Seen) -> Iterator[str]:
        expected = "in review" if case.position == BEFORE else "failed"
        if seen.effects != ["charge"] or seen.ended != expected or seen.told not in ([], ["failed"]):
            yield f"once and {expected} expected, seen {seen.effects} {seen.told} {seen.ended!r}"


CLAIM_SCENES: tuple[type[Scene], ...] = (
    Charge,
    Large,
    Refused,
    Failed,
    TakenOver,
    Renewed,
    Released,
    Parked,
    Settled,
)
