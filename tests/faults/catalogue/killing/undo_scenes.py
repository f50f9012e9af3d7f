"""Scenes of runs that are undone: after a failure, and by a person's decision."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.acceptance.journeys import entries
from tests.faults.catalogue.killing.deadly import Point
from tests.faults.catalogue.killing.run_scenes import Run, claim_in, entry
from tests.faults.catalogue.killing.scene import LEASE, QUICK, Case, Scene, Seen
from twiceproof import App, Cancelled, NeedsReview, PriorFailure, Waiting

__all__ = ["UNDO_SCENES"]


class Undone(Run):
    """A failure after steps with an undo: each is undone once, in reverse order, unless an outcome is unknown."""

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
        kinds = [what.split()[0] for what in dict.fromkeys(seen.effects)]  # keyed effects count once
        if kinds != ["reserve", "announce", "recall", "release"] or len(set(seen.effects)) != 4:
            yield f"done, and undone backwards once each, expected; seen {seen.effects}"
        if [seen.effects.count("announce"), seen.effects.count("recall")] != [1, 1]:
            yield f"announced and recalled once each expected, seen {seen.effects}"
        if seen.ended[1] != "failed" or seen.told not in ([], ["failed"]):
            yield f"failed expected, seen {seen.told} {seen.ended}"


class Stopped(Run):
    """Cancelled by a person while it waits: completed steps are undone once."""

    name = "stopped"
    result_at = 1
    points = (Point("cancel", lambda write: write.at.kind == "run" and write.at.space.split("/")[1] == "stopped"),)

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


UNDO_SCENES: tuple[type[Scene], ...] = (Undone, Stopped)
