"""Scenes of automatic starts: the ticks of a schedule, and the cursor of a poll."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from typing import Any

from tests.faults.catalogue.killing.deadly import AFTER, Point
from tests.faults.catalogue.killing.run_scenes import claim_in
from tests.faults.catalogue.killing.scene import LEASE, Case, Scene, Seen
from twiceproof import App, Polled
from twiceproof.flows.calls import call
from twiceproof.flows.workers.due_work import DueWork
from twiceproof.operations import block
from twiceproof.records import Replace, Write

__all__ = ["TRIGGER_SCENES"]


def _noted(kind: str, *, whole: bool) -> Any:
    def meant(write: Write) -> bool:
        return isinstance(write, Replace) and write.at.kind == kind and (write.body is not None) == whole

    return meant


class Triggered(Scene):
    """Each case has a schedule or a poll of its own, declared by every process that serves it."""

    duty: DueWork

    def declare(self, app: App) -> None:
        self._declared: set[int] = set()

    def declared(self, case: Case) -> None:
        if case.order not in self._declared:
            self._declared.add(case.order)
            self.declare_for(case.order)

    def declare_for(self, order: int) -> None:
        raise NotImplementedError

    def queue(self, order: int) -> str:
        raise NotImplementedError

    def prepare(self, case: Case) -> None:
        self.declared(case)
        block(self.duty.prepare())

    def act(self, case: Case) -> Any:
        self.declared(case)
        due = self.app.store.due(self.duty.kind, queues=(self.queue(case.order),)).block()
        for record in due.records:
            block(self.duty.carry_out(record))
        return len(due.records)


class Ticked(Triggered):
    """One run for each tick, and none is skipped."""

    name = "ticked"
    result_at = None
    points = (
        Point("schedule tick started", lambda write: write.at.space.split("/")[1].startswith("ticked-")),
        Point("schedule moved on", _noted("schedule", whole=True)),
    )

    def declare_for(self, order: int) -> None:
        self.duty = self.app.schedules

        @self.app.every("10m", name=f"ticked-{order}", overlap="allow", catch_up="all", lease=LEASE)
        def close_books(tick: datetime) -> None:
            self.do(order, tick.isoformat())

    def queue(self, order: int) -> str:
        return next(
            queue for queue, known in self.app.schedules.schedules.items() if known.flow.name.endswith(f"-{order}")
        )

    def recover(self, case: Case) -> Any:
        self.act(case)
        flow = self.app.flows[f"ticked-{case.order}"]
        ticks = self._due_at_first(case, sorted(run.key for run in self.app.runs(flow=flow.name)))
        for tick in ticks:
            block(call(flow, (datetime.fromisoformat(tick),), {}))
        return ticks

    def _due_at_first(self, case: Case, ticks: list[str]) -> list[str]:
        """The wall clock continues: ticks that fall due between two recoveries are not judged."""
        if not self.outside.read("until")[self.name, case.order]:
            self.outside.note(self.name, case.order, "until", max(ticks, default=""))
        until = self.outside.read("until")[self.name, case.order][0]
        return [tick for tick in ticks if tick <= until]

    def judge(self, case: Case, seen: Seen) -> Iterator[str]:
        if sorted(seen.effects) != seen.ended or not seen.ended:
            yield f"one run for each tick expected, seen {seen.effects}, runs {seen.ended}"
        ticks = [datetime.fromisoformat(key).timestamp() for key in seen.ended]
        if any(later - earlier != 600 for earlier, later in pairwise(ticks)):
            yield f"a tick was left out: {seen.ended}"


class Asked(Triggered):
    """Everything since the last poll: the cursor advances when each item has its run."""

    name = "asked"
    result_at = 1
    points = (
        Point("poll taken", _noted("poll", whole=False)),
        Point("polled item claimed", claim_in("asked", "queued")),
        Point("poll cursor moved", _noted("poll", whole=True)),
    )

    def declare(self, app: App) -> None:
        super().declare(app)
        self.duty = app.polls

        @app.flow(key="{item}", name=self.name, lease=LEASE)
        def take(item: str) -> str:
            order, _, what = item.partition(":")
            self.do(int(order), what)
            return what

        self.flow = take

    def declare_for(self, order: int) -> None:
        @self.app.poll(every="1m", start=self.flow, name=f"asked-{order}")
        def source(since: Any) -> Polled:
            self.outside.note(self.name, order, "since", since)
            return Polled([] if since == "tomorrow" else [f"{order}:a", f"{order}:b"], "tomorrow")

    def queue(self, order: int) -> str:
        return next(queue for queue, known in self.app.polls.polls.items() if known.name == f"asked-{order}")

    def recover(self, case: Case) -> Any:
        self.act(case)
        keys = [f"{case.order}:{what}" for what in "ab"]
        states = [self.app.attach(flow=self.name, key=key).state for key in keys]
        return [states, [self.flow(key) for key in keys], list(self.outside.read("since")[self.name, case.order])]

    def judge(self, case: Case, seen: Seen) -> Iterator[str]:
        states, results, since = seen.ended
        if sorted(seen.effects) != ["a", "b"] or results != ["a", "b"]:
            yield f"each item once expected, seen {seen.effects} {results}"
        if "" in states:
            yield f"an item was left out: {states}"
        moved = (case.point, case.position) == ("poll cursor moved", AFTER)
        if len(since) > 1 and since[1] != "tomorrow" and moved:
            yield f"the cursor was acknowledged, and the next one asked since {since[1]!r}"


TRIGGER_SCENES: tuple[type[Scene], ...] = (Ticked, Asked)
