"""Scenes of runs: begun, started, their steps of every kind, undone, cancelled, settled, in batches and in order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.acceptance.journeys import entries
from tests.prove.faults.killing.deadly import AFTER, BEFORE, LANDED, Point
from tests.prove.faults.killing.scene import LEASE, QUICK, Case, Scene, Seen
from twiceproof import Absent, App, Cancelled, Happened, NeedsReview, PriorFailure, Stale, Waiting, by, check
from twiceproof.records import Insert, Replace, Write

__all__ = ["RUN_SCENES", "claim_in", "entry"]


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
    """A write of a run's claim."""

    def meant(write: Write) -> bool:
        mine = write.at.kind == "claim" and write.at.space.split("/")[1] == flow
        return mine and isinstance(write, Insert | Replace) and write.state == state and write.body is not None

    return meant


class Run(Scene):
    """A flow. What nobody knows is settled by a person who looks at the outside."""

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
UNSURE = {  # where nobody can know whether the mail was sent: its intent had landed, and its record had not
    ("record of a checked step", LANDED), ("record of a checked step", AFTER),
    ("intent of a step never repeated", LANDED), ("intent of a step never repeated", AFTER),
    (MAIL, BEFORE), (MAIL, LANDED), (MAIL, AFTER),
    ("record of a step never repeated", BEFORE), ("run complete", BEFORE),
}  # fmt: skip


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


class Undone(Run):
    """A failure after what can be undone: undone once each, backwards, unless nobody knows what happened."""

    name = "undone"
    result_at = 1
    points = (
        Point("undo start", entry("undo:announce", "started")),
        Point("effect of an undo"),
        Point("undo end", entry("undo:announce", "done")),
        Point("run failed", claim_in("undone", "failed")),
    )

    def declare(self, app: App) -> None:
        @app.step(repeat="keyed", retry=QUICK)
        def release(order: int, result: str) -> None:
            self.do(order, f"release {result} {app.effect_key()}")

        def recall(order: int) -> None:
            self.do(order, "recall", "effect of an undo")

        @app.step(repeat="keyed", retry=QUICK, undo=release)
        def reserve(order: int) -> str:
            self.do(order, "reserve " + app.effect_key())
            return "A7"

        @app.step(repeat="never", undo=recall)
        def announce(order: int) -> None:
            self.do(order, "announce")

        @app.flow(key="order:{order}", name=self.name, lease=LEASE)
        def send(order: int) -> None:
            reserve(order)
            announce(order)
            raise ValueError("nobody pays")

        self.flow = send

    def act(self, case: Case) -> Any:
        return self.end(case)

    def end(self, case: Case) -> str:
        try:
            self.flow(case.order)
        except (ValueError, PriorFailure):
            return "failed"
        except NeedsReview:
            return "in review"
        return "done"

    def recover(self, case: Case) -> Any:
        first = self.end(case)
        if first == "in review":
            self.settle(case)
        return [first, self.end(case)]

    def settle(self, case: Case) -> None:
        steps = entries(self.app, self.name, f"order:{case.order}")
        (unknown,) = (name for name, found in steps.items() if found.state == "unknown")
        if ("recall" if unknown.startswith("undo:") else "announce") in self.effects(case.order):
            self.app.settle_run(self.run(case), "happened", by="ann", result=None)
        else:
            self.app.settle_run(self.run(case), "did-not-happen", by="ann")

    def judge(self, case: Case, seen: Seen) -> Iterator[str]:
        kinds = [what.split()[0] for what in dict.fromkeys(seen.effects)]  # what a provider knows by its key is one
        if kinds != ["reserve", "announce", "recall", "release"] or len(set(seen.effects)) != 4:
            yield f"done, and undone backwards once each, expected; seen {seen.effects}"
        if [seen.effects.count("announce"), seen.effects.count("recall")] != [1, 1]:
            yield f"announced and recalled once each expected, seen {seen.effects}"
        if seen.ended[1] != "failed" or seen.told not in ([], ["failed"]):
            yield f"failed expected, seen {seen.told} {seen.ended}"


class Stopped(Run):
    """Cancelled by a person while it waits: what was done is undone once."""

    name = "stopped"
    result_at = 1
    points = (Point("cancel", lambda write: write.at.kind == "claim" and write.at.space.split("/")[1] == "stopped"),)

    def declare(self, app: App) -> None:
        @app.step(repeat="keyed", retry=QUICK)
        def release(order: int, result: str) -> None:
            self.do(order, "release " + app.effect_key())

        @app.step(repeat="keyed", retry=QUICK, undo=release)
        def reserve(order: int) -> str:
            self.do(order, "reserve " + app.effect_key())
            return "A7"

        @app.flow(key="order:{order}", name=self.name, lease=LEASE)
        def rent(order: int) -> None:
            reserve(order)
            app.wait_for("paid")

        self.flow = rent

    def prepare(self, case: Case) -> None:
        _until_waiting(self.flow, case.order)

    def act(self, case: Case) -> Any:
        return self.app.attach(flow=self.name, key=f"order:{case.order}").cancel("ann")

    def recover(self, case: Case) -> Any:
        said = self.act(case)
        try:
            self.flow(case.order)
        except (Cancelled, PriorFailure):
            return [said, "cancelled"]
        return [said, "done"]

    def judge(self, case: Case, seen: Seen) -> Iterator[str]:
        kinds = [what.split()[0] for what in dict.fromkeys(seen.effects)]
        if kinds != ["reserve", "release"] or seen.ended[1] != "cancelled":
            yield f"undone once and cancelled expected, seen {seen.effects} {seen.ended}"


def _until_waiting(flow: Any, order: int) -> None:
    try:
        flow(order)
    except Waiting:
        return
    raise AssertionError("it was to wait")


class Reviewed(Run):
    """A person's word about a run, once."""

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


class Batched(Run):
    """State per item: only what is not known to be done is done."""

    name = "batched"
    points = (Point("batch item", entry("pick[b]", "done", "started")), Point("effect on an item"))

    def declare(self, app: App) -> None:
        def find(item: str) -> Any:
            order, _, sku = item.partition("/")
            return Happened(sku) if sku in self.effects(int(order)) else Absent

        @app.step(repeat=check(find, settling=0.0), retry=QUICK)
        def pick(item: str) -> str:
            order, _, sku = item.partition("/")
            self.do(int(order), sku, "effect on an item" if sku == "b" else "")
            return sku

        @app.flow(key="order:{order}", name=self.name, lease=LEASE)
        def collect(order: int) -> list[str]:
            skus = [f"{order}/{sku}" for sku in "abc"]
            return list(app.each(skus, pick, key=lambda item: item.partition("/")[2], concurrency=1))

        self.flow = collect

    def judge(self, case: Case, seen: Seen) -> Iterator[str]:
        if sorted(seen.effects) != ["a", "b", "c"] or seen.ended != [["a", "b", "c"], "by itself"]:
            yield f"each item once expected, seen {seen.effects} {seen.ended}"


class Ordered(Run):
    """Of an object only newer versions are applied; the older one comes when the newer one was applied, or dying."""

    name = "ordered"
    points = (
        Point("version of an object", lambda write: write.at.kind == "mark" and isinstance(write, Insert | Replace)),
    )

    def declare(self, app: App) -> None:
        @app.flow(
            key="order:{order}@{version}", name=self.name, lease=LEASE, order=by(object="{order}", version="{version}")
        )  # fmt: skip
        def sync(order: int, version: int) -> str:
            return put(order, version)

        @app.step(repeat="keyed", retry=QUICK)
        def put(order: int, version: int) -> str:
            self.do(order, f"{version} {app.effect_key()}")
            return f"applied {version}"

        self.flow = sync

    def act(self, case: Case) -> Any:
        return self.flow(case.order, 2)

    def recover(self, case: Case) -> Any:
        newer = self.flow(case.order, 2)
        try:
            return [newer, self.flow(case.order, 1)]
        except Stale:
            return [newer, "stale"]

    def judge(self, case: Case, seen: Seen) -> Iterator[str]:
        versions = [what.split()[0] for what in dict.fromkeys(seen.effects)]
        if versions != ["2"] or seen.ended != ["applied 2", "stale"]:
            yield f"the newer applied and the older not expected, seen {seen.effects} {seen.ended}"


RUN_SCENES: tuple[type[Scene], ...] = (Errand, Started, Undone, Stopped, Reviewed, Batched, Ordered)
