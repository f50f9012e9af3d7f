"""Scenes of many: the items of a batch, and the versions of an object."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.faults.catalogue.killing.deadly import Point
from tests.faults.catalogue.killing.run_scenes import Run, entry
from tests.faults.catalogue.killing.scene import LEASE, QUICK, Case, Scene, Seen
from twiceproof import Absent, App, Happened, Stale, by, check
from twiceproof.records import Insert, Replace

__all__ = ["MANY_SCENES"]


class Batched(Run):
    """Each item has its own state: only items that are not known to be done are done."""

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
    """Only newer versions of an object are applied; the older one arrives when the newer one was applied or is
    dying.
    """

    name = "ordered"
    points = (
        Point("version of an object", lambda write: write.at.kind == "mark" and isinstance(write, Insert | Replace)),
    )

    def declare(self, app: App) -> None:
        @app.flow(
            key="order:{order}@{version}", name=self.name, lease=LEASE, order=by(object="{order}", version="{version}")
        )
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


MANY_SCENES: tuple[type[Scene], ...] = (Batched, Ordered)
